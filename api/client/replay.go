package client

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// ReplayOptions say what to replay. The zero value replays the log from its
// oldest record to its end.
type ReplayOptions struct {
	From   *int64    // nil: the oldest offset
	At     time.Time // in place of From: the first record at or after a time
	To     *int64    // exclusive; nil: the end
	Max    int       // records; 0: no bound
	Follow bool      // go on at the end, with what is appended, until ctx ends
	// Patience is how long a stream that breaks off, or a node that cannot be
	// reached, is tried again without a record in between; 0: a minute, negative:
	// until ctx ends.
	Patience time.Duration
}

// Replay returns the records of a partition in the order of their offsets. A
// stream that breaks off is taken up again behind the last record that came: none
// is lost, none comes twice. Records stay valid; one at a time is held here.
//
// The last pair may be an error, after which nothing comes: Gone when retention
// has taken the next record, OutOfRange when From is above the end, Canceled when
// ctx ended. The range may be left early, and may be run again, from the start.
func (c *Client) Replay(ctx context.Context, topic string, partition uint32, o ReplayOptions) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		r := replay{c: c, topic: topic, partition: partition, o: o, since: time.Now(), left: o.Max}
		defer r.close()
		for {
			rec, err := r.next(ctx)
			if errors.Is(err, io.EOF) {
				return
			}
			if !yield(rec, err) || err != nil {
				return
			}
		}
	}
}

// replay is one run of Replay.
type replay struct {
	c         *Client
	topic     string
	partition uint32
	o         ReplayOptions // From, once it is known, is at
	at        int64         // the offset to go on at: a copy, not the caller's
	left      int           // records, when o.Max bounds them
	stream    *LogReader    // nil: to be opened
	asked     bool
	try       int       // failures since the last record
	since     time.Time // of the last record
}

func (r *replay) close() {
	if r.stream != nil {
		_ = r.stream.Close() // it was only read
		r.stream = nil
	}
}

// next returns io.EOF at the end of what was asked for.
func (r *replay) next(ctx context.Context) (Record, error) {
	for {
		if r.o.Max > 0 && r.left == 0 || r.reached() {
			return Record{}, io.EOF
		}
		rec, err := r.read(ctx)
		switch {
		case err == nil:
			if err := r.took(&rec); err != nil {
				return Record{}, err
			}
			return rec, nil
		case errors.Is(err, io.EOF):
			resume := r.stream.ResumeOffset()
			r.close()
			if !r.o.Follow {
				return Record{}, io.EOF
			}
			// The node stops. What follows comes from its next life.
			if r.o.From == nil && resume >= 0 || r.o.From != nil && resume > *r.o.From {
				r.goOn(resume)
			}
			err = errcode.New(errcode.Closed, "the node has ended the stream at offset %d", resume)
			if r.reached() {
				return Record{}, io.EOF
			}
		default:
			r.close()
		}
		if err := r.again(ctx, err); err != nil {
			return Record{}, err
		}
	}
}

// reached reports whether To is, once the node has been asked at all.
func (r *replay) reached() bool {
	return r.asked && r.o.To != nil && r.o.From != nil && *r.o.From >= *r.o.To
}

func (r *replay) goOn(offset int64) { r.at, r.o.From, r.o.At = offset, &r.at, time.Time{} }

// read returns the stream's next record.
func (r *replay) read(ctx context.Context) (rec Record, err error) {
	if r.stream == nil {
		o := ReadOptions{From: r.o.From, At: r.o.At, To: r.o.To, Follow: r.o.Follow, Max: r.left}
		if r.stream, err = r.c.readLog(ctx, r.topic, r.partition, o, Retry{Tries: 1}); err != nil {
			r.stream = nil
			return rec, err
		}
		r.asked = true
	}
	return r.stream.Next()
}

// took notes a record.
func (r *replay) took(rec *Record) error {
	if r.o.From != nil && rec.Offset < *r.o.From {
		return errcode.New(errcode.Corrupt, "partition %d of topic %q: the record at offset %d came where offset %d or a later one was due", r.partition, r.topic, rec.Offset, *r.o.From)
	}
	r.goOn(rec.Offset + 1)
	r.left--
	r.try, r.since = 0, time.Now()
	return nil
}

// again waits before the stream is opened once more, or returns the error to end
// with.
func (r *replay) again(ctx context.Context, err error) error {
	patience := r.o.Patience
	if patience == 0 {
		patience = time.Minute
	}
	if ctx.Err() != nil || !harmless.may(err) || patience > 0 && time.Since(r.since) >= patience {
		return r.failed(err)
	}
	r.try++
	policy := r.c.retry
	policy.patient = true
	d, _ := policy.pause(r.try, err)
	if patience > 0 {
		d = min(d, patience)
	}
	if !sleep(ctx, d) {
		return r.failed(errcode.Wrap(errcode.Canceled, ctx.Err(), "go on after %q", err))
	}
	return nil
}

func (r *replay) failed(err error) error {
	if r.o.From == nil {
		return errcode.Wrap(errcode.Internal, err, "replay partition %d of topic %q", r.partition, r.topic)
	}
	return errcode.Wrap(errcode.Internal, err, "replay partition %d of topic %q, at offset %d", r.partition, r.topic, *r.o.From)
}
