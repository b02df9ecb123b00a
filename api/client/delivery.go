package client

import (
	"context"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Delivered says where a record stands. The level accepted does not name places;
// committed and archived do.
type Delivered struct {
	Partition int32 // -1: not known
	Offset    int64 // -1: not known
	Archived  bool
}

// Delivery is the fate of one record that a Producer took. It is small and may be
// copied or dropped.
type Delivery struct {
	batch *pending
	index int
}

// known is closed from the start on, for deliveries of no record.
var known = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Done is closed when the fate is known.
func (d Delivery) Done() <-chan struct{} {
	if d.batch == nil {
		return known
	}
	return d.batch.done
}

// Wait waits for the fate. An error of class RetryUnknown means that the record
// may be stored, every other one that it is not. When ctx ends first the error
// has the code Canceled, and the record is still on its way.
func (d Delivery) Wait(ctx context.Context) (Delivered, error) {
	if d.batch == nil {
		return Delivered{-1, -1, false}, errcode.New(errcode.InvalidArgument, "this delivery is of no record: Send failed")
	}
	select {
	case <-d.batch.done:
		return d.batch.result(d.index)
	case <-ctx.Done():
		return Delivered{-1, -1, false}, errcode.Wrap(errcode.Canceled, ctx.Err(), "wait for a delivery")
	}
}
