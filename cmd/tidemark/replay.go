package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/api/client"
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// maxStreamLine is above the longest line of a stream: a record of 16 MiB
// in base64 with its key and headers.
const maxStreamLine = 32 << 20

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
go on. --raw prints values alone, byte for byte, and --delimiter after each.`,
		Example: `  tidemark replay orders --partition 0
  tidemark replay orders --partition 0 --from 2026-11-01T00:00:00Z --raw
  tidemark replay orders --partition 0 --from 100 --to 200`,
		Args: args("TOPIC"),
	}
	f := cmd.Flags()
	f.IntVar(&partition, "partition", -1, "partition to read (required)")
	f.StringVar(&from, "from", "", "first offset, or a time such as 2026-11-29T08:30:00Z (default the oldest record)")
	f.Int64Var(&to, "to", -1, "offset to stop before (default the high watermark)")
	f.BoolVar(&r.read.Follow, "follow", false, "go on with new records until interrupted")
	f.BoolVar(&r.out.raw, "raw", false, "print values alone, byte for byte")
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
		r.topic, r.partition = args[0], uint32(partition)
		if err := r.bounds(from, to, f.Changed("to")); err != nil {
			return err
		}
		cl, err := c.open()
		if err != nil {
			return err
		}
		if r.wire, err = c.wire(); err != nil {
			return err
		}
		w := bufio.NewWriterSize(p.stdout, 64<<10)
		r.out.w, r.out.delimiter = w, unescape(delimiter)
		if r.out.raw {
			err = r.values(cmd.Context(), cl, w)
		} else {
			err = r.lines(cmd.Context(), w)
		}
		return errors.Join(err, r.out.explain(w.Flush()))
	}
	return cmd
}

// replay reads one partition to its end.
type replay struct {
	wire      *wire
	topic     string
	partition uint32
	read      client.ReadOptions
	out       output
	next      int64 // offset after the last record that was printed
	printed   bool
}

// bounds reads --from and --to.
func (r *replay) bounds(from string, to int64, toGiven bool) error {
	if toGiven {
		if to < 0 {
			return usagef("--to %d is negative", to)
		}
		r.read.To = &to
	}
	if from == "" {
		return nil
	}
	if n, err := strconv.ParseInt(from, 10, 64); err == nil && n >= 0 {
		if toGiven && n > to {
			return usagef("--from %d is after --to %d", n, to)
		}
		r.read.From = &n
		return nil
	}
	var err error
	if r.read.At, err = time.Parse(time.RFC3339Nano, from); err != nil {
		return usagef("--from %q is neither an offset nor a time such as 2026-11-29T08:30:00Z", from)
	}
	return nil
}

// query is what the node is asked.
func (r *replay) query() url.Values {
	q := url.Values{}
	if r.read.From != nil {
		q.Set("from", strconv.FormatInt(*r.read.From, 10))
	}
	if !r.read.At.IsZero() {
		q.Set("at", r.read.At.UTC().Format(time.RFC3339Nano))
	}
	if r.read.To != nil {
		q.Set("to", strconv.FormatInt(*r.read.To, 10))
	}
	if r.read.Follow {
		q.Set("follow", "true")
	}
	return q
}

// lines prints records as the node writes them.
func (r *replay) lines(ctx context.Context, w *bufio.Writer) error {
	path := topicPath(r.topic, "/partitions/"+strconv.Itoa(int(r.partition))+"/records")
	res, err := r.wire.send(ctx, http.MethodGet, path, r.query(), "application/x-ndjson")
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }() // it has been read
	lines := bufio.NewReaderSize(res.Body, 256<<10)
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
		return r.interrupted()
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

// interrupted is how a log that goes on has to end, and no other.
func (r *replay) interrupted() error {
	if r.read.Follow {
		return nil
	}
	return errcode.New(errcode.Canceled, "interrupted")
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

// values prints values alone, from a stream of frames, which keep every byte.
func (r *replay) values(ctx context.Context, cl *client.Client, w *bufio.Writer) error {
	log, err := cl.ReadLog(ctx, r.topic, r.partition, r.read)
	if err != nil {
		return explain(err, r.wire.base)
	}
	defer func() { _ = log.Close() }() // it has been read
	for {
		// What was read is shown before more is waited for.
		if log.Buffered() == 0 {
			if err := w.Flush(); err != nil {
				return r.out.explain(err)
			}
		}
		rec, err := log.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && ctx.Err() != nil:
			return r.interrupted()
		case err != nil:
			return err // says where to go on
		}
		if err := r.out.value(rec.Value); err != nil {
			return err
		}
	}
}
