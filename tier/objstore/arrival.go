package objstore

import "context"

type arrivalKey struct{}

// WithArrival makes GetRange calls with the returned context tell how far an answer
// has come, so that bytes can be used while they are in the processor's cache and
// before the last one is there. arrived is called in the goroutine of the call, each
// time with a larger n: p[:n] holds the object's bytes then, and nobody writes to
// them any more, not even when the call fails or is repeated. A store need not call
// it; what the call returns counts in any case.
func WithArrival(ctx context.Context, arrived func(n int)) context.Context {
	return context.WithValue(ctx, arrivalKey{}, arrived)
}

// Arrival returns who is to be told, nil for nobody. A decorator that changes what
// arrived takes it away from the store below.
func Arrival(ctx context.Context) func(n int) {
	arrived, _ := ctx.Value(arrivalKey{}).(func(n int))
	return arrived
}
