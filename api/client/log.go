package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// maxLine is more than the longest line of a stream: a record of 16 MiB in
// base64, with its key and headers.
const maxLine = 32 << 20

// ReadOptions say what to read. The zero value reads the whole log as it is.
type ReadOptions struct {
	From   *int64 // nil: the oldest offset
	To     *int64 // exclusive; nil: the end
	Max    int    // records; 0: no bound
	Follow bool   // go on at the end until ctx ends
}

// LogReader reads a partition as a stream.
type LogReader struct {
	body   io.ReadCloser
	lines  *bufio.Scanner
	resume int64
	done   bool
}

// ReadLog opens a stream. It ends with ctx.
func (c *Client) ReadLog(ctx context.Context, topic string, partition uint32, o ReadOptions) (*LogReader, error) {
	q := url.Values{}
	r := &LogReader{resume: -1}
	if o.From != nil {
		q.Set("from", strconv.FormatInt(*o.From, 10))
		r.resume = *o.From
	}
	if o.To != nil {
		q.Set("to", strconv.FormatInt(*o.To, 10))
	}
	if o.Max > 0 {
		q.Set("max", strconv.Itoa(o.Max))
	}
	if o.Follow {
		q.Set("follow", "true")
	}
	res, err := c.send(ctx, request{method: http.MethodGet, path: partitionPath(topic, partition, "records"), query: q, accept: "application/x-ndjson"}) //nolint:bodyclose // the reader owns the body and closes it
	if err != nil {
		return nil, err
	}
	r.body = res.Body
	r.lines = bufio.NewScanner(res.Body)
	r.lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	return r, nil
}

// line is a record, or the end marker.
type line struct {
	message
	End    bool  `json:"end"`
	Resume int64 `json:"resume_offset"`
}

// Next returns the next record. io.EOF: the stream ended as the node meant it.
// A stream that ends without its marker has lost records: code Transient, and
// the read can go on at ResumeOffset.
func (r *LogReader) Next() (broker.Record, error) {
	if r.done {
		return broker.Record{}, io.EOF
	}
	if !r.lines.Scan() {
		return broker.Record{}, r.broken(r.lines.Err())
	}
	var l line
	if err := json.Unmarshal(r.lines.Bytes(), &l); err != nil {
		return broker.Record{}, r.broken(err)
	}
	if l.End {
		r.done, r.resume = true, l.Resume
		return broker.Record{}, io.EOF
	}
	m, err := l.decode()
	if err != nil {
		return broker.Record{}, errcode.Wrap(errcode.Internal, err, "decode the record at offset %d", l.Offset)
	}
	r.resume = m.Offset + 1
	return m.Record, nil
}

func (r *LogReader) broken(err error) error {
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	code := errcode.Transient
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		code = errcode.Canceled
	}
	return errcode.Wrap(code, err, "the stream broke off before its end marker; read on from offset %d", r.resume)
}

// ResumeOffset is where a new read goes on after the last record that Next
// returned; -1 before the first record of a read from the oldest offset.
func (r *LogReader) ResumeOffset() int64 { return r.resume }

// Close ends the stream.
func (r *LogReader) Close() error { return r.body.Close() }
