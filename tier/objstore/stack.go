package objstore

import (
	"context"
	"time"
)

// StackOptions are the parts of the stack that stores of one node share, and what
// is set for one store. Nil parts are made with their defaults.
type StackOptions struct {
	Retry     RetryPolicy
	Deadlines Deadlines
	Budget    *RetryBudget   // of the node
	Limiter   *Limiter       // of the node
	Metrics   *Metrics       // of the node; nil: not counted
	Rand      func() float64 // of the pauses, in [0, 1)
}

// Stack wraps a backend in the decorators, in the order that the package comment
// explains.
func Stack(backend Store, o StackOptions) Store {
	s := backend
	if o.Metrics != nil {
		s = WithMetrics(s, o.Metrics)
	}
	s = WithDeadlines(s, o.Deadlines)
	if o.Limiter == nil {
		o.Limiter = NewLimiter(Limits{}, nil)
	}
	s = WithLimits(s, o.Limiter)
	return WithRetries(s, o.Retry, o.Budget, o.Rand)
}

// sweeper is a backend whose unfinished uploads stay until they are swept.
type sweeper interface {
	SweepUploads(ctx context.Context, before time.Time) (int, error)
}

// SweepUploads removes what uploads that began before the given time left behind
// in s and never finished, and returns how many. Stores that clean up by
// themselves have nothing to sweep. It is background work, for now and then.
func SweepUploads(ctx context.Context, s Store, before time.Time) (int, error) {
	for {
		if b, ok := s.(sweeper); ok {
			return b.SweepUploads(ctx, before)
		}
		u, ok := s.(interface{ Unwrap() Store })
		if !ok {
			return 0, nil
		}
		s = u.Unwrap()
	}
}
