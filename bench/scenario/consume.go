package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-mq/tidemark/bench/load"
	"github.com/tidemark-mq/tidemark/bench/rawhttp"
	"github.com/tidemark-mq/tidemark/bench/records"
	"github.com/tidemark-mq/tidemark/bench/report"
)

const (
	fillConnections = 4
	stalled         = 20 * time.Second // without a record, a drain has failed
	takeWait        = "200ms"          // of a consume at the end of a drain
	drainTime       = 12 * time.Hour
)

// Consume measures consume and ack until a topic is empty, as many records at a
// time as the options say.
func Consume(ctx context.Context, o Options) (*report.Report, error) {
	b, err := start("consume", o)
	if err != nil {
		return nil, err
	}
	b.rep.Set("connections", strconv.Itoa(o.Connections))
	b.rep.Set("records of a run", fmt.Sprintf("%d, the first tenth of them not measured", o.Records))
	return b.finish(b.consume(ctx))
}

func (b *bench) consume(ctx context.Context) error {
	for i := range b.Runs {
		for _, take := range b.Take {
			err := b.try(ctx, func(t *trial) error {
				stage := fmt.Sprintf("consume by %d, %d of %d", take, i+1, b.Runs)
				if err := t.fill(ctx, stage); err != nil {
					return err
				}
				// The warm-up consumes too.
				if _, err := t.drain(ctx, stage, take, int64(b.Records)/10); err != nil {
					return err
				}
				res, err := t.drain(ctx, stage, take, int64(b.Records))
				if err != nil {
					return err
				}
				m := b.rep.Measure(fmt.Sprintf("consume and ack, %d at a time", take), report.Loop(res))
				m.Runs = append(m.Runs, report.Of(res))
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// fill produces the records of a run in batches.
func (t *trial) fill(ctx context.Context, stage string) error {
	return t.fillTo(ctx, int64(t.b.Records), func(done, total int64) { t.b.Progress(stage+": filling", done, total) })
}

// fillTo produces that many records in batches.
func (t *trial) fillTo(ctx context.Context, total int64, progress func(done, total int64)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var given, taken atomic.Int64
	var wg sync.WaitGroup
	for i := range fillConnections {
		wg.Go(func() {
			if err := t.fillFrom(ctx, i, total, &given, &taken, progress); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// fillFrom produces one stream of a fill.
func (t *trial) fillFrom(ctx context.Context, stream int, total int64, given, taken *atomic.Int64, progress func(done, total int64)) error {
	src, err := t.run.Source(stream)
	if err != nil {
		return err
	}
	c, err := t.b.Target.Dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	r := rawhttp.Request{Method: http.MethodPost, Path: t.path("/produce/batch"), Type: typeFrames}
	// Batches of records up to 1 MiB together, and of one at least.
	most := int64(min(maxBatch, max(1, 1<<20/t.b.Size)))
	for {
		from := given.Add(most) - most
		n := int(min(most, total-from))
		if n <= 0 {
			return nil
		}
		seq := src.Seq()
		r.Body = r.Body[:0]
		for range n {
			r.Body = appendFrame(r.Body, src.Next(0))
		}
		a, err := c.Do(r)
		if err == nil {
			err = a.Refused(r, http.StatusAccepted, http.StatusOK)
		}
		// What fills is not measured: it goes as fast as the node takes it.
		for begun := time.Now(); err != nil && bear(ctx, err, begun); {
			if a, err = c.Do(r); err == nil {
				err = a.Refused(r, http.StatusAccepted, http.StatusOK)
			}
		}
		if err == nil {
			err = tookAll(a, n)
		}
		if err != nil {
			return err
		}
		t.ledger.Accepted(stream, seq, n)
		progress(taken.Add(int64(n)), total)
	}
}

// drain consumes and acks until that many records of the trial were seen.
func (t *trial) drain(ctx context.Context, stage string, take int, until int64) (*load.Result, error) {
	if _, seen := t.ledger.Counts(); int64(seen) >= until {
		return nil, fmt.Errorf("the warm-up has taken all of %d records: give more --records", until)
	}
	var last atomic.Int64 // when a record came last
	p := load.Plan{
		Connections: t.b.Connections, Duration: drainTime,
		Began: func(now time.Time) { last.Store(now.UnixNano()) },
		Open: func(ctx context.Context, _ int) (load.Op, func(), error) {
			c, err := t.b.Target.Dial(ctx)
			if err != nil {
				return nil, nil, err
			}
			k := t.taker(c, take, takeWait)
			return func(context.Context, time.Time) (load.Done, error) {
				for {
					_, seen := t.ledger.Counts()
					if seen%512 == 0 {
						t.b.Progress(stage, int64(seen), int64(t.b.Records))
					}
					if int64(seen) >= until {
						return load.Done{}, io.EOF
					}
					n, err := k.take(func(records.Stamp) {})
					if err != nil {
						return load.Done{}, err
					}
					if n > 0 {
						last.Store(time.Now().UnixNano())
						return load.Done{Records: n, Bytes: int64(n) * int64(t.b.Size)}, nil
					}
					if time.Since(time.Unix(0, last.Load())) > stalled {
						return load.Done{}, fmt.Errorf("%d of %d records came, and no more within %v: the others are lost", seen, until, stalled)
					}
				}
			}, c.Close, nil
		},
	}
	return load.Run(ctx, p)
}

// taker consumes and acks on one connection.
type taker struct {
	t       *trial
	c       *rawhttp.Conn
	consume rawhttp.Request
	ack     rawhttp.Request
	many    bool
	handles []string
	bear    func(error) bool // waits after a refusal, and says whether to send the request again; may be nil
}

// taker returns what consumes up to n records at a time and waits for the first.
func (t *trial) taker(c *rawhttp.Conn, n int, wait string) *taker {
	k := &taker{t: t, c: c, many: n > 1}
	k.consume = rawhttp.Request{Method: http.MethodPost, Path: topicPath(t.topic, "/consume?wait="+wait), Accept: "application/octet-stream"}
	k.ack = rawhttp.Request{Method: http.MethodPost, Path: topicPath(t.topic, "/ack")}
	if k.many {
		k.consume.Path += "&max=" + strconv.Itoa(n)
		k.consume.Accept = ""
		k.ack.Type = typeJSON
	}
	return k
}

// take consumes records, verifies and acks them, and returns how many came. Got
// hears of each as soon as it was verified.
func (k *taker) take(got func(records.Stamp)) (int, error) {
	a, err := k.c.Do(k.consume)
	if err == nil {
		err = a.Refused(k.consume, http.StatusOK, http.StatusNoContent)
	}
	if err != nil || a.Status == http.StatusNoContent {
		return 0, err
	}
	if k.many {
		return k.takeMany(a, got)
	}
	if s, err := k.t.ledger.Seen(a.Body); err == nil { // else it is in the verdict
		got(s)
	}
	ack := k.ack
	ack.Path += "?receipt_handle=" + url.QueryEscape(a.Header.Get("Tidemark-Receipt-Handle"))
	for {
		if a, err = k.c.Do(ack); err == nil {
			err = a.Refused(ack, http.StatusNoContent)
		}
		if err == nil || k.bear == nil || !k.bear(err) {
			return 1, err
		}
	}
}

func (k *taker) takeMany(a rawhttp.Answer, got func(records.Stamp)) (int, error) {
	n, err := k.messages(a.Body, got)
	if err != nil {
		return 0, err
	}
	b := append(k.ack.Body[:0], `{"receipt_handles":[`...)
	for i, h := range k.handles {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), h...), '"')
	}
	k.ack.Body = append(b, "]}"...)
	a, err = k.c.Do(k.ack)
	if err == nil {
		err = a.Refused(k.ack, http.StatusOK)
	}
	if err != nil {
		return n, err
	}
	if acked := bytes.Count(a.Body, []byte(`"status":204`)); acked != n {
		return n, fmt.Errorf("%d of %d records were acked: %.300s", acked, n, a.Body)
	}
	return n, nil
}

// Where a message begins and its handle stands.
var (
	messageStart = []byte(`{"topic":`)
	handleStart  = []byte(`"receipt_handle":"`)
)

// messages counts the records of a JSON answer and keeps their handles. It cuts the
// answer into messages at what begins one, which stands in no record of a
// benchmark, and looks at the rest of it no closer than that.
func (k *taker) messages(body []byte, got func(records.Stamp)) (n int, err error) {
	k.handles = k.handles[:0]
	at := bytes.Index(body, messageStart)
	for at >= 0 {
		message := body[at:]
		next := bytes.Index(message[1:], messageStart)
		if next >= 0 {
			message = message[:next+1]
			at += next + 1
		} else {
			at = -1
		}
		message = message[:bytes.LastIndexByte(message, '}')+1]
		if next < 0 { // the list and the object around it end too
			message = bytes.TrimSuffix(bytes.TrimSuffix(message, []byte("}")), []byte("]"))
		}
		value, err := payload(message, k.t.b.Size, k.t.b.Kind)
		if err != nil {
			return n, err
		}
		h := bytes.LastIndex(message, handleStart)
		if h < 0 {
			return n, fmt.Errorf("%.100q has no receipt handle", message)
		}
		handle, _, ok := bytes.Cut(message[h+len(handleStart):], []byte(`"`))
		if !ok {
			return n, errors.New("a receipt handle has no end")
		}
		if s, err := k.t.ledger.Seen(value); err == nil { // else it is in the verdict
			got(s)
		}
		k.handles = append(k.handles, string(handle))
		n++
	}
	return n, nil
}
