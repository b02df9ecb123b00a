package partition

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/segment"
)

// timed appends one batch of records with these timestamps.
func (r *rig) timed(n uint32, times ...int64) {
	r.t.Helper()
	recs := make([]broker.Record, len(times))
	for i, ms := range times {
		recs[i] = broker.Record{Offset: int64(i), Timestamp: ms, Value: []byte("some value of a record")}
	}
	data, err := segment.AppendBatch(nil, recs, segment.BatchOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	parts := []Part{{Partition: r.engine.Get(pid(n)), Batches: []Batch{{Data: data, Span: int64(len(times))}}}}
	lsn, err := r.engine.Append(parts, 1)
	if err == nil {
		err = r.log.WaitDurable(context.Background(), lsn)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.engine.Advance(parts)
}

// Lookups by time against a plain list, while records with times in any order move
// from memory into files and the archive, files are evicted, and the log is
// trimmed, to within batches too: the first record at or after the time that is
// not trimmed, wherever it is, and the end when there is none (B119, B120, B122,
// B123).
func TestFindTimeInAllTiers(t *testing.T) {
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 5))
		archive := newMemArchive()
		r := open(t, vfs.NewMem(), func(o *Options) { o.Archive = archive })
		r.create(0)
		p := r.engine.Get(pid(0))
		var times []int64
		check := func(what string, ms int64) {
			t.Helper()
			oldest := p.Oldest()
			want := oldest
			for want < int64(len(times)) && times[want] < ms {
				want++
			}
			if at, err := p.FindTime(context.Background(), ms); err != nil || at != want {
				t.Fatalf("seed %d, after %s, log from %d to %d: time %d at %d %v, want %d", seed, what, oldest, len(times), ms, at, err, want)
			}
		}
		for step := range 120 {
			what := ""
			switch k := rng.IntN(20); {
			case k < 12:
				what = "append"
				batch := make([]int64, 1+rng.IntN(6))
				for i := range batch {
					// Rising on the whole, with spikes and falls.
					batch[i] = int64(10*step) + rng.Int64N(200)
					if rng.IntN(20) == 0 {
						batch[i] += 2000
					}
				}
				times = append(times, batch...)
				r.timed(0, batch...)
			case k < 14:
				what = "flush"
				r.flush(0)
				if rng.IntN(2) == 0 {
					p.evict(1 << 30)
				}
			case k < 16:
				what = "seal"
				if len(times) > 0 {
					if err := r.engine.Seal(p); err != nil {
						t.Fatal(err)
					}
				}
			case k < 18:
				what = "archive and evict"
				r.archiveAll(archive, 0)
				r.checkpoint()
				if rng.IntN(2) == 0 {
					p.evict(1 << 30)
					if _, err := r.engine.Evict(p, rng.Int64N(int64(len(times))+1)); err != nil {
						t.Fatal(err)
					}
				}
			default:
				what = "trim"
				if to := p.Oldest() + rng.Int64N(12); to <= p.HighWatermark() {
					if _, err := r.engine.Trim(p, to); err != nil {
						t.Fatal(err)
					}
				}
			}
			for range 8 {
				check(what, rng.Int64N(int64(10*step)+400))
			}
			check(what, 0)
			check(what, 1<<50)
			if len(times) > 0 {
				at := times[rng.IntN(len(times))]
				check(what, at)
				check(what, at+1)
			}
		}
		r.close()
	}
}
