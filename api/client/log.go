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
	"strings"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// maxLine is more than the longest line of a stream: a record of 16 MiB in
// base64, with its key and headers.
const maxLine = 32 << 20

// ReadOptions say what to read. The zero value reads the whole log as it is.
type ReadOptions struct {
	From   *int64    // nil: the oldest offset
	At     time.Time // in place of From: the first record at or after a time
	To     *int64    // exclusive; nil: the end
	Max    int       // records; 0: no bound
	Follow bool      // go on at the end until ctx ends
}

// LogReader reads a partition as a stream.
type LogReader struct {
	res    *http.Response
	body   io.ReadCloser
	cancel context.CancelCauseFunc
	in     *bufio.Reader
	frames *frameReader // nil: NDJSON
	line   []byte
	resume int64
	done   bool
}

// ReadLog opens one stream, which ends with ctx and is not taken up again when it
// breaks off: Replay does that.
func (c *Client) ReadLog(ctx context.Context, topic string, partition uint32, o ReadOptions) (*LogReader, error) {
	return c.readLog(ctx, topic, partition, o, c.retry)
}

func (c *Client) readLog(ctx context.Context, topic string, partition uint32, o ReadOptions, retry Retry) (*LogReader, error) {
	q := url.Values{}
	r := &LogReader{resume: -1}
	if o.From != nil {
		q.Set("from", strconv.FormatInt(*o.From, 10))
		r.resume = *o.From
	}
	if !o.At.IsZero() {
		q.Set("at", o.At.UTC().Format(time.RFC3339Nano))
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
	req := request{method: http.MethodGet, path: partitionPath(topic, partition, "records"), query: q}
	ctx, r.cancel = context.WithCancelCause(ctx)
	err := retry.again(ctx, harmless, func(ctx context.Context) error { return r.open(ctx, c, req) })
	if err != nil {
		r.cancel(nil)
		return nil, err
	}
	if !o.Follow {
		// A node that follows has nothing to say for as long as nothing happens.
		r.body = newIdleBody(r.body, headerWait, r.cancel)
	}
	r.in = bufio.NewReaderSize(r.body, logBuffer)
	if mediaOf(r.res) == mediaFrames {
		r.frames = &frameReader{in: r.in}
	}
	return r, nil
}

// open asks for frames, which keep every byte of a value; and for lines where the
// node has no frames, or something on the way takes the trailer off that says
// whether a stream of them is whole.
func (r *LogReader) open(ctx context.Context, c *Client, req request) error {
	for {
		req.accept = mediaFrames
		if c.noFrames.Load() {
			req.accept = mediaLines
		}
		res, err := c.attempt(ctx, &req)
		switch {
		case err != nil && req.accept == mediaFrames && errcode.Is(err, errcode.UnsupportedType):
			c.noFrames.Store(true)
		case err != nil:
			return err
		case mediaOf(res) == mediaFrames && !announced(res):
			_ = res.Body.Close() // nothing has been read
			c.noFrames.Store(true)
		default:
			r.res, r.body = res, res.Body
			return nil
		}
	}
}

const (
	mediaLines    = "application/x-ndjson"
	resumeTrailer = "Tidemark-Resume-Offset"
	logBuffer     = 64 << 10
)

func mediaOf(res *http.Response) string {
	kind, _, _ := strings.Cut(res.Header.Get("Content-Type"), ";")
	return strings.TrimSpace(kind)
}

func announced(res *http.Response) bool {
	_, ok := res.Trailer[resumeTrailer]
	return ok
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
	var m broker.Message
	var err error
	if r.frames != nil {
		m, err = r.nextFrame()
	} else {
		m, err = r.nextLine()
	}
	if err != nil {
		if r.done {
			return broker.Record{}, io.EOF
		}
		return broker.Record{}, r.broken(err)
	}
	r.resume = m.Offset + 1
	return m.Record, nil
}

func (r *LogReader) nextFrame() (broker.Message, error) {
	m, err := r.frames.next()
	if !errors.Is(err, io.EOF) {
		return m, err
	}
	resume, convErr := strconv.ParseInt(r.res.Trailer.Get(resumeTrailer), 10, 64)
	if convErr != nil {
		return m, io.ErrUnexpectedEOF
	}
	r.done, r.resume = true, resume
	return m, io.EOF
}

func (r *LogReader) nextLine() (broker.Message, error) {
	var l line
	if err := r.readLine(); err != nil {
		return broker.Message{}, err
	}
	if err := json.Unmarshal(r.line, &l); err != nil {
		return broker.Message{}, errcode.New(errcode.Internal, "the log has a line that is no record: %.100q: %w", r.line, err)
	}
	if l.End {
		r.done, r.resume = true, l.Resume
		return broker.Message{}, io.EOF
	}
	return l.decode()
}

// readLine reads a line that ended with a line break.
func (r *LogReader) readLine() error {
	r.line = r.line[:0]
	for {
		part, err := r.in.ReadSlice('\n')
		r.line = append(r.line, part...)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return whole(err)
		case len(r.line) > maxLine:
			return errcode.New(errcode.Internal, "a line of the stream has more than %d bytes; is this a Tidemark node?", maxLine)
		}
	}
}

func (r *LogReader) broken(err error) error {
	where := "nothing was read"
	if r.resume >= 0 {
		where = "read on from offset " + strconv.FormatInt(r.resume, 10)
	}
	code, what := errcode.Transient, "the stream broke off before its end marker"
	switch {
	case errcode.Is(err, errcode.Internal):
		what = "the stream cannot be read"
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		code = errcode.Canceled
	}
	return errcode.Wrap(code, err, "%s; %s", what, where)
}

// ResumeOffset is where a new read goes on after the last record that Next
// returned; -1 before the first record of a read from the oldest offset.
func (r *LogReader) ResumeOffset() int64 { return r.resume }

// Buffered is how many bytes of the stream have arrived and were not returned: at
// 0 the next Next waits for the node.
func (r *LogReader) Buffered() int { return r.in.Buffered() }

// Close ends the stream.
func (r *LogReader) Close() error {
	r.cancel(nil)
	return r.body.Close()
}
