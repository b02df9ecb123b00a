package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

const (
	// maxStreamLine is above the longest line of a stream: a record of 16 MiB
	// in base64 with its key and headers.
	maxStreamLine = 32 << 20
	// rawParallel is how many texts are asked for at once.
	rawParallel = 16
)

func newReplay(p *process, c *connection) *cobra.Command {
	var r replay
	var partition int
	var from, delimiter string
	to := int64(-1)
	cmd := &cobra.Command{
		Use: "replay TOPIC --partition P", Short: "Print the log of a partition",
		Long: `Print the log of a partition, from the oldest record to the high watermark, without
leases and wherever the records are kept. A record is printed as a line of JSON.

The command fails when the stream breaks off before its end, and says where to
go on. --raw prints values alone with --delimiter after each: JSON on one line,
everything else byte for byte. Texts are asked for one by one and are slower.`,
		Example: `  tidemark replay orders --partition 0
  tidemark replay orders --partition 0 --from 2026-11-01T00:00:00Z --raw
  tidemark replay orders --partition 0 --from 100 --to 200`,
		Args: args("TOPIC"),
	}
	f := cmd.Flags()
	f.IntVar(&partition, "partition", -1, "partition to read (required)")
	f.StringVar(&from, "from", "", "first offset, or a time such as 2026-11-29T08:30:00Z (default the oldest record)")
	f.Int64Var(&to, "to", -1, "offset to stop before (default the high watermark)")
	f.BoolVar(&r.follow, "follow", false, "go on with new records until interrupted")
	f.BoolVar(&r.out.raw, "raw", false, "print values alone")
	jsonLines(cmd)
	f.StringVar(&delimiter, "delimiter", `\n`, "what follows each value of --raw; \\n, \\t and \\0 are understood, '' is nothing")
	c.flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := broker.ValidateName("topic", args[0]); err != nil {
			return usageError{err}
		}
		if !f.Changed("partition") {
			return usagef("replay: --partition is missing: a log is read partition by partition (`tidemark topic info %s` lists them)", args[0])
		}
		if partition < 0 || partition >= broker.MaxPartitions {
			return usagef("--partition %d is not between 0 and %d", partition, broker.MaxPartitions-1)
		}
		r.topic, r.partition, r.query = args[0], strconv.Itoa(partition), url.Values{}
		if err := r.bounds(from, to, f.Changed("to")); err != nil {
			return err
		}
		var err error
		if r.wire, err = c.wire(); err != nil {
			return err
		}
		w := bufio.NewWriterSize(p.stdout, 64<<10)
		r.out.w, r.out.delimiter = w, unescape(delimiter)
		err = r.run(cmd.Context(), w)
		return errors.Join(err, r.out.explain(w.Flush()))
	}
	return cmd
}

// replay reads one partition to its end.
type replay struct {
	wire      *wire
	topic     string
	partition string
	query     url.Values
	follow    bool
	out       output
	next      int64 // offset after the last record that was printed
	printed   bool
}

// bounds puts --from and --to into the query.
func (r *replay) bounds(from string, to int64, toGiven bool) error {
	if toGiven {
		if to < 0 {
			return usagef("--to %d is negative", to)
		}
		r.query.Set("to", strconv.FormatInt(to, 10))
	}
	if r.follow {
		r.query.Set("follow", "true")
	}
	if from == "" {
		return nil
	}
	if n, err := strconv.ParseUint(from, 10, 64); err == nil && n <= math.MaxInt64 {
		if toGiven && int64(n) > to {
			return usagef("--from %d is after --to %d", n, to)
		}
		r.query.Set("from", from)
		return nil
	}
	if _, err := time.Parse(time.RFC3339Nano, from); err != nil {
		return usagef("--from %q is neither an offset nor a time such as 2026-11-29T08:30:00Z", from)
	}
	r.query.Set("at", from)
	return nil
}

func (r *replay) run(ctx context.Context, w *bufio.Writer) error {
	path := topicPath(r.topic, "/partitions/"+r.partition+"/records")
	res, err := r.wire.send(ctx, http.MethodGet, path, r.query, "application/x-ndjson")
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }() // it has been read
	lines := bufio.NewReaderSize(res.Body, 256<<10)
	if r.out.raw {
		return r.values(ctx, lines, w)
	}
	for {
		line, end, err := r.line(ctx, lines)
		if err != nil || end {
			return err
		}
		if err := r.out.line(line); err != nil {
			return err
		}
		if err := r.noteOffset(line); err != nil {
			return err
		}
		// What was read is shown before more is waited for.
		if lines.Buffered() == 0 {
			if err := w.Flush(); err != nil {
				return r.out.explain(err)
			}
		}
	}
}

var endMarker = []byte(`{"end":true`)

// line returns the next record's line, without its line break. end: the stream
// ended as the node meant it.
func (r *replay) line(ctx context.Context, lines *bufio.Reader) (line []byte, end bool, err error) {
	for {
		part, err := lines.ReadSlice('\n')
		line = append(line, part...)
		if err == nil {
			break
		}
		if errors.Is(err, bufio.ErrBufferFull) && len(line) < maxStreamLine {
			continue
		}
		return nil, false, r.broken(ctx, err)
	}
	line = bytes.TrimSuffix(line, []byte("\n"))
	return line, bytes.HasPrefix(line, endMarker), nil
}

// broken is the error of a stream without its end marker.
func (r *replay) broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		if r.follow {
			return nil // interrupted, as it has to be
		}
		return errcode.New(errcode.Canceled, "interrupted")
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	where := "nothing was printed"
	if r.printed {
		where = "go on with --from " + strconv.FormatInt(r.next, 10)
	}
	return errcode.New(errcode.Transient, "the log broke off before its end marker: %w; %s", err, where)
}

func (r *replay) noteOffset(line []byte) error {
	offset, err := offsetOf(line)
	r.next, r.printed = offset+1, true
	return err
}

// offsetOf reads the offset that a line begins with. Decoding all of a line
// would cost more than printing it.
func offsetOf(line []byte) (int64, error) {
	if rest, ok := bytes.CutPrefix(line, []byte(`{"offset":`)); ok {
		if end := bytes.IndexAny(rest, ",}"); end > 0 {
			if n, err := strconv.ParseInt(string(rest[:end]), 10, 64); err == nil {
				return n, nil
			}
		}
	}
	var rec struct {
		Offset *int64 `json:"offset"`
	}
	if err := json.Unmarshal(line, &rec); err != nil || rec.Offset == nil {
		return 0, errcode.New(errcode.Internal, "the log has a line that is no record: %.100q", line)
	}
	return *rec.Offset, nil
}

// shown is a record of the stream, as far as its value is concerned.
type shown struct {
	Offset   int64           `json:"offset"`
	Payload  json.RawMessage `json:"payload"`
	Encoding string          `json:"payload_encoding"`
}

// values prints values alone. Those that come as a string are asked for one by
// one, several at a time: a text and the JSON string of it look the same in the
// stream.
func (r *replay) values(ctx context.Context, lines *bufio.Reader, w *bufio.Writer) error {
	for {
		recs, end, err := r.some(ctx, lines)
		if err != nil {
			return err
		}
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(rawParallel)
		for i := range recs {
			g.Go(func() error { return r.exact(gctx, &recs[i]) })
		}
		if err := g.Wait(); err != nil {
			return errcode.Wrap(errcode.Internal, err, "read the values from offset %d on", recs[0].Offset)
		}
		for i := range recs {
			if err := r.out.value(recs[i].Payload); err != nil {
				return err
			}
			r.next, r.printed = recs[i].Offset+1, true
		}
		if err := w.Flush(); err != nil || end {
			return r.out.explain(err)
		}
	}
}

// exact puts the value's own bytes where its JSON was.
func (r *replay) exact(ctx context.Context, rec *shown) (err error) {
	if len(rec.Payload) == 0 || rec.Payload[0] != '"' {
		return nil
	}
	if rec.Encoding == "base64" {
		return json.Unmarshal(rec.Payload, (*[]byte)(&rec.Payload))
	}
	q := url.Values{"partition": {r.partition}, "offset": {strconv.FormatInt(rec.Offset, 10)}}
	_, rec.Payload, err = r.wire.read(ctx, http.MethodGet, topicPath(r.topic, "/consume"), q, "application/octet-stream")
	return err
}

// some returns the next records: at least one unless the log has ended, and
// more as long as they have arrived.
func (r *replay) some(ctx context.Context, lines *bufio.Reader) (recs []shown, end bool, err error) {
	for len(recs) < rawParallel {
		line, end, err := r.line(ctx, lines)
		if err != nil || end {
			return recs, end, err
		}
		var rec shown
		if err := json.Unmarshal(line, &rec); err != nil {
			return recs, false, errcode.Wrap(errcode.Internal, err, "the log has a line that is no record: %.100q", line)
		}
		recs = append(recs, rec)
		if lines.Buffered() == 0 {
			break
		}
	}
	return recs, false, nil
}
