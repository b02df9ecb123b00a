package client

import (
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

const (
	maxInFlight = 4096
	longestWait = 10 * time.Second // of one request: what a node grants
	// settleGrace is how long a Consumer that stops at once tries to settle what
	// its handlers have done.
	settleGrace = 5 * time.Second
)

// ConsumerOptions say how records are taken. The zero value is a good start.
type ConsumerOptions struct {
	Partition *uint32 // nil: any
	Handlers  int     // at a time; 0: 8. With 1 the records of a partition come in order
	// InFlight bounds the records that are leased and not settled, so those that
	// wait for a handler too; 0: twice Handlers, at most 4096. Equal to Handlers,
	// nothing is leased before a handler is free.
	InFlight int
	Wait     time.Duration // of one request for records; 0: 10 s, which is the most
	// NackDelay is how long a record stays hidden after its handler failed with err;
	// nil: a second, doubled with each delivery, up to a minute.
	NackDelay func(m Message, err error) time.Duration
	// OnError hears of everything that went wrong and that the Consumer goes on
	// after: failed handlers, lost leases, acks that did not arrive, a node that
	// cannot be reached. The facts topic, partition and offset of an [Error] name
	// the record. It is called from several goroutines and must not block; nil:
	// nobody hears.
	OnError func(error)
}

func (o ConsumerOptions) withDefaults() ConsumerOptions {
	if o.Handlers == 0 {
		o.Handlers = 8
	}
	if o.InFlight == 0 {
		o.InFlight = min(2*o.Handlers, maxInFlight)
	}
	if o.Wait == 0 {
		o.Wait = longestWait
	}
	if o.NackDelay == nil {
		o.NackDelay = func(m Message, _ error) time.Duration {
			return min(time.Second<<min(m.Attempt-1, 10), time.Minute)
		}
	}
	if o.OnError == nil {
		o.OnError = func(error) {}
	}
	return o
}

func (o *ConsumerOptions) validate() error {
	switch {
	case o.Handlers < 1 || o.Handlers > maxInFlight:
		return errcode.New(errcode.InvalidArgument, "Handlers %d is not between 1 and %d", o.Handlers, maxInFlight)
	case o.InFlight < o.Handlers || o.InFlight > maxInFlight:
		return errcode.New(errcode.InvalidArgument, "InFlight %d is not between Handlers (%d) and %d", o.InFlight, o.Handlers, maxInFlight)
	case o.Wait < 0:
		return errcode.New(errcode.InvalidArgument, "Wait %s is negative", o.Wait)
	default:
		return nil
	}
}
