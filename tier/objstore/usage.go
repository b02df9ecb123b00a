package objstore

import "sync/atomic"

// operations are the calls that are counted, by the names of their metrics.
var operations = [...]string{"put", "get", "get_range", "head", "list", "delete"}

// Usage is what one cause has asked of a store since the process started,
// attempt by attempt.
type Usage struct {
	Cause    string
	Requests map[string]int64 // by operation; those that were not made are missing
	Dollars  float64          // of the requests, see priceOf
	Sent     int64            // bytes of objects that were put
	Received int64            // bytes of objects that were read
}

// usage counts what Usage says.
type usage struct {
	requests       [numCauses][len(operations)]atomic.Int64
	sent, received [numCauses]atomic.Int64
}

func (u *usage) request(c Cause, op string) {
	for i, name := range operations {
		if name == op {
			u.requests[known(c)][i].Add(1)
		}
	}
}

// known is c, or CauseOther for what no list has.
func known(c Cause) Cause {
	if c < numCauses {
		return c
	}
	return CauseOther
}

// UsageOf returns what has been asked of s, by cause and without those that have
// asked nothing. ok is false when nobody counts it.
func UsageOf(s Store) (all []Usage, ok bool) {
	for {
		if d, ok := s.(*measured); ok {
			return d.m.usage.all(), true
		}
		u, ok := s.(interface{ Unwrap() Store })
		if !ok {
			return nil, false
		}
		s = u.Unwrap()
	}
}

func (u *usage) all() (all []Usage) {
	for c := range numCauses {
		out := Usage{Cause: c.String(), Requests: map[string]int64{}, Sent: u.sent[c].Load(), Received: u.received[c].Load()}
		for i, op := range operations {
			if n := u.requests[c][i].Load(); n > 0 {
				out.Requests[op] = n
				out.Dollars += float64(n) * priceOf(op)
			}
		}
		if len(out.Requests) > 0 {
			all = append(all, out)
		}
	}
	return all
}
