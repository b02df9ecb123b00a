package node

import (
	"bytes"
	"context"
	"runtime"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/partition"
	"github.com/tidemark-mq/tidemark/segment"
)

// Times that the records of a client's batch may have. What lies outside is a
// time in another unit, or a clock that is wrong: it would be found by every
// lookup by time from then on.
const (
	earliestTime = 315_532_800_000 // 1980 in ms; of seconds or minutes taken for ms all lie before
	timeAhead    = time.Hour       // of the broker's clock
)

// checkers bounds how many batches of clients are decoded at a time, and with that
// the memory of what they decode to: one for each processor, since nothing waits in
// between. What an element holds is reused unless it grew large.
var checkers = func() chan *segment.Scratch {
	c := make(chan *segment.Scratch, runtime.GOMAXPROCS(0))
	for range cap(c) {
		c <- new(segment.Scratch)
	}
	return c
}()

// keptScratch is the largest memory that a checker keeps.
const keptScratch = 1 << 20

// encoded checks a batch that a client encoded and makes it the only part of a
// produce: its bytes are stored as they are.
func (t *topic) encoded(ctx context.Context, in *broker.EncodedBatch, now int64) ([]partition.Part, error) {
	p, err := t.partition(int64(in.Partition))
	if err != nil {
		return nil, err
	}
	var s *segment.Scratch
	select {
	case s = <-checkers:
	case <-ctx.Done():
		return nil, errcode.New(errcode.Overloaded, "the batch was not looked at in time, others are before it; nothing was stored").After(time.Second)
	}
	defer func() {
		if s.Size() > keptScratch {
			s = new(segment.Scratch)
		}
		checkers <- s
	}()
	h, err := segment.CheckClient(in.Data, in.Bounds.Records, in.Bounds.Decoded, s, func(i int, r *broker.Record) error {
		return checkRecord(&in.Bounds, i, r, now)
	})
	if err == nil {
		err = checkTime(h.BaseTimestamp, now)
	}
	if err != nil {
		return nil, err
	}
	batch := partition.Batch{Data: bytes.Clone(in.Data), Span: int64(h.Records)} // the tail keeps it
	return []partition.Part{{Partition: p, Batches: []partition.Batch{batch}}}, nil
}

// checkRecord holds a record to the bounds that records of every other kind of
// body have.
func checkRecord(b *broker.RecordBounds, i int, r *broker.Record, now int64) error {
	size := 0
	var err *errcode.Error
	for j := range r.Headers {
		name := r.Headers[j].Name
		size += len(name) + len(r.Headers[j].Value)
		switch {
		case name == "":
			err = errcode.New(errcode.InvalidArgument, "message %d: a record header has no name", i)
		case !utf8.ValidString(name):
			err = errcode.New(errcode.InvalidArgument, "message %d: the record header %.60q has a name that is not UTF-8", i, name)
		case strings.HasPrefix(name, "tm-"):
			err = errcode.New(errcode.InvalidArgument, "message %d: record header %.60q: names that begin with tm- are the broker's own", i, name)
		}
	}
	large := func(what string, n, limit int) *errcode.Error {
		return errcode.New(errcode.TooLarge, "message %d: the %s has %d bytes, the most is %d; nothing was stored", i, what, n, limit).With("limit", limit)
	}
	switch {
	case len(r.Value) > b.Value:
		err = large("payload", len(r.Value), b.Value)
	case len(r.Key) > b.Key:
		err = large("key", len(r.Key), b.Key)
	case len(r.Headers) > b.Headers:
		err = errcode.New(errcode.InvalidArgument, "message %d: the record has %d headers; the most is %d", i, len(r.Headers), b.Headers)
	case size > b.HeaderBytes:
		err = large("headers", size, b.HeaderBytes)
	case err == nil:
		if wrong := checkTime(r.Timestamp, now); wrong != nil {
			err = errcode.New(errcode.InvalidArgument, "message %d: %v", i, wrong)
		}
	}
	if err != nil {
		return err.With("message", i)
	}
	return nil
}

func checkTime(ms, now int64) error {
	if ms < earliestTime || ms > now+timeAhead.Milliseconds() {
		return errcode.New(errcode.InvalidArgument, "the timestamp %d is not in milliseconds between 1980 and an hour from now; nothing was stored", ms)
	}
	return nil
}
