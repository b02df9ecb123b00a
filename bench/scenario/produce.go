package scenario

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/tidemark-mq/tidemark/bench/load"
	"github.com/tidemark-mq/tidemark/bench/rawhttp"
	"github.com/tidemark-mq/tidemark/bench/records"
	"github.com/tidemark-mq/tidemark/bench/report"
)

// Produce measures one record a request.
func Produce(ctx context.Context, o Options) (*report.Report, error) {
	b, err := start("produce", o)
	if err != nil {
		return nil, err
	}
	b.timed()
	return b.finish(b.rates(ctx, func(t *trial, p load.Plan) (*load.Result, error) {
		return t.produced(ctx, p, t.single)
	}))
}

// Batch measures many records a request.
func Batch(ctx context.Context, o Options) (*report.Report, error) {
	b, err := start("batch", o)
	if err != nil {
		return nil, err
	}
	b.timed()
	b.rep.Set("records of a batch", strconv.Itoa(o.Batch))
	b.rep.Set("batches as", map[bool]string{true: "application/x-ndjson", false: typeFrames}[o.NDJSON])
	return b.finish(b.rates(ctx, func(t *trial, p load.Plan) (*load.Result, error) {
		return t.produced(ctx, p, t.batch)
	}))
}

const typeFrames = "application/vnd.tidemark.frames"

// sender makes the operation of a connection.
type sender func(c *rawhttp.Conn, src *records.Source) load.Op

// produced runs a plan whose operation produces, and reads everything back.
func (t *trial) produced(ctx context.Context, p load.Plan, send sender) (*load.Result, error) {
	res, err := t.produce(ctx, p, send)
	if err == nil {
		err = t.nothing(res)
	}
	if err == nil {
		err = t.readBack(ctx)
	}
	return res, err
}

// produce runs a plan whose operation produces.
func (t *trial) produce(ctx context.Context, p load.Plan, send sender) (*load.Result, error) {
	began := p.Began
	p.Began = func(now time.Time) {
		t.base = now
		if began != nil {
			began(now)
		}
	}
	p.Open = func(ctx context.Context, i int) (load.Op, func(), error) {
		src, err := t.run.Source(i)
		if err != nil {
			return nil, nil, err
		}
		c, err := t.b.Target.Dial(ctx)
		if err != nil {
			return nil, nil, err
		}
		if t.b.Timeout > 0 {
			c.AnswerWithin(t.b.Timeout)
		}
		return send(c, src), c.Close, nil
	}
	return load.Run(ctx, p)
}

func (t *trial) path(rest string) string {
	path := topicPath(t.topic, rest)
	if t.b.Ack != "" {
		path += "?ack=" + t.b.Ack
	}
	return path
}

// single produces one record a request.
func (t *trial) single(c *rawhttp.Conn, src *records.Source) load.Op {
	r := rawhttp.Request{Method: http.MethodPost, Path: t.path("/produce"), Type: "application/octet-stream"}
	return func(_ context.Context, due time.Time) (load.Done, error) {
		seq := src.Seq()
		r.Body = src.Next(due.Sub(t.base))
		a, err := c.Do(r)
		if err == nil {
			err = a.Refused(r, http.StatusAccepted, http.StatusOK)
		}
		if err != nil {
			return load.Done{}, t.missed(src, seq, 1, err)
		}
		t.ledger.Accepted(src.Stream(), seq, 1)
		return load.Done{Records: 1, Bytes: int64(t.b.Size)}, nil
	}
}

// batch produces a batch a request.
func (t *trial) batch(c *rawhttp.Conn, src *records.Source) load.Op {
	r := rawhttp.Request{Method: http.MethodPost, Path: t.path("/produce/batch"), Type: typeFrames}
	if t.b.NDJSON {
		r.Type = "application/x-ndjson"
	}
	return func(_ context.Context, due time.Time) (load.Done, error) {
		seq := src.Seq()
		r.Body = r.Body[:0]
		for range t.b.Batch {
			r.Body = t.appendRecord(r.Body, src.Next(due.Sub(t.base)))
		}
		a, err := c.Do(r)
		if err == nil {
			err = a.Refused(r, http.StatusAccepted, http.StatusOK)
		}
		if err == nil {
			err = tookAll(a, t.b.Batch)
		}
		if err != nil {
			return load.Done{}, t.missed(src, seq, t.b.Batch, err)
		}
		t.ledger.Accepted(src.Stream(), seq, t.b.Batch)
		return load.Done{Records: t.b.Batch, Bytes: int64(t.b.Batch) * int64(t.b.Size)}, nil
	}
}

func (t *trial) appendRecord(b, value []byte) []byte {
	if t.b.NDJSON {
		return append(append(b, value...), '\n')
	}
	return appendFrame(b, value)
}

// appendFrame appends a record without a key as a frame.
func appendFrame(b, value []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, 0xFFFFFFFF)
	b = binary.BigEndian.AppendUint32(b, uint32(len(value)))
	return append(b, value...)
}

// tookAll checks that the answer to a batch names all of its records.
func tookAll(a rawhttp.Answer, want int) error {
	var out struct {
		Accepted   int `json:"accepted"`
		Partitions []struct {
			Count int `json:"count"`
		} `json:"partitions"`
	}
	if err := json.Unmarshal(a.Body, &out); err != nil {
		return fmt.Errorf("the answer to a batch is %.200q: %w", a.Body, err)
	}
	for _, p := range out.Partitions {
		out.Accepted += p.Count
	}
	if out.Accepted != want {
		return fmt.Errorf("of a batch of %d records the broker says it took %d", want, out.Accepted)
	}
	return nil
}
