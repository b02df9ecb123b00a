package partition

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/segment"
)

// Sixteen writers over two partitions, readers that scan from the beginning
// and readers that follow the tail, one-record reads, times, flushers, sealing,
// checkpoints, eviction, release of the log, archiving, local copies that go
// missing, stats and group entries, all at once. Every reader sees each offset
// once, in order, with what its writer was told; nothing blocks for ever, and a
// restart has it all.
func TestEverythingAtOnce(t *testing.T) {
	const partitions, writers = 2, 16
	each := 200
	if testing.Short() {
		each = 60
	}
	fs := vfs.NewMem()
	archive, groups := newMemArchive(), newTally()
	change := func(o *Options) {
		o.Archive, o.Compress = archive, noCompression
		o.FlushBytes, o.SegmentBytes, o.MemoryBudget = 2<<10, 16<<10, 64<<10
		o.CheckpointInterval, o.SealAge, o.SealMinBytes = 2*time.Millisecond, 20*time.Millisecond, 1
	}
	r := openWith(t, fs, groups.config(change))
	r.create(0, 1)
	ctx, stop := context.WithTimeout(context.Background(), 60*time.Second)
	defer stop()

	var written [partitions]sync.Map // offset -> value
	var total [partitions]atomic.Int64
	var writing, others sync.WaitGroup
	for w := range writers {
		writing.Add(1)
		go func() {
			defer writing.Done()
			for i := range each {
				var parts []Part
				v := fmt.Sprintf("w%d-%d-%0100d", w, i, i)
				for n := range uint32(partitions) {
					if (w+i)%3 != int(n) {
						parts = append(parts, r.part(n, v))
					}
				}
				lsn, err := r.append(parts, time.Now().UnixMilli()) // the budget is small: some wait
				if err != nil {
					t.Errorf("append: %v", err)
					return
				}
				if i%17 == 0 {
					r.engine.Late(parts)
				} else if err := r.log.WaitDurable(ctx, lsn); err != nil {
					t.Errorf("wait: %v", err)
					return
				} else {
					r.engine.Advance(parts)
				}
				for _, p := range parts {
					written[p.Partition.ID.Partition].Store(p.Base, v)
					total[p.Partition.ID.Partition].Add(1)
				}
			}
		}()
	}
	done := make(chan struct{}) // closed when the writers are
	go func() { writing.Wait(); close(done) }()
	over := func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
	background := func(f func(rng *rand.Rand)) {
		others.Add(1)
		go func() {
			defer others.Done()
			rng := rand.New(rand.NewPCG(rand.Uint64(), 1))
			for !over() && ctx.Err() == nil {
				f(rng)
			}
		}()
	}

	// seen checks a record against what its writer was told, if it was yet.
	seen := func(n int, rec *broker.Record) {
		if v, ok := written[n].Load(rec.Offset); ok && v != string(rec.Value) {
			t.Errorf("partition %d, offset %d: %q, written was %q", n, rec.Offset, rec.Value, v)
		}
	}
	follow := func(n int, from int64) {
		defer others.Done()
		p := r.engine.Get(pid(uint32(n)))
		var buf Buffer
		for {
			changed := p.Changed()
			run, err := p.Read(ctx, from, 4<<10, &buf)
			if err != nil {
				t.Errorf("read at %d: %v", from, err)
				return
			}
			for _, b := range run {
				recs, err := segment.DecodeBatch(nil, b, nil)
				if err != nil {
					t.Error(err)
					return
				}
				for i := range recs {
					if recs[i].Offset < from {
						continue
					}
					if recs[i].Offset != from {
						t.Errorf("partition %d: offset %d after %d", n, recs[i].Offset, from-1)
						return
					}
					seen(n, &recs[i])
					from++
				}
			}
			if len(run) > 0 {
				continue
			}
			if over() && from == total[n].Load() {
				return
			}
			select {
			case <-changed:
			case <-done:
				// What came late is visible in a moment.
				select {
				case <-changed:
				case <-time.After(time.Millisecond):
				}
			case <-ctx.Done():
				t.Errorf("partition %d: a reader stands at %d of %d", n, from, total[n].Load())
				return
			}
		}
	}
	for n := range partitions {
		others.Add(1)
		go follow(n, 0)
		background(func(*rand.Rand) { // scans from the beginning, again and again
			others.Add(1)
			follow := r.engine.Get(pid(uint32(n)))
			from, end := int64(0), follow.HighWatermark()
			defer others.Done()
			for from < end {
				run, err := follow.Read(ctx, from, 64<<10, nil)
				if err != nil || len(run) == 0 {
					t.Errorf("scan at %d of %d: %d batches %v", from, end, len(run), err)
					return
				}
				h, err := segment.ParseHeader(run[len(run)-1])
				if err != nil {
					t.Error(err)
					return
				}
				from = h.NextOffset()
			}
		})
	}
	background(func(rng *rand.Rand) {
		n := rng.IntN(partitions)
		p := r.engine.Get(pid(uint32(n)))
		if hw := p.HighWatermark(); hw > 0 {
			at := rng.Int64N(hw)
			rec, err := p.Record(ctx, at)
			if err != nil || rec.Offset != at {
				t.Errorf("record %d of %d: %d %v", at, hw, rec.Offset, err)
				return
			}
			seen(n, &rec)
			if got, err := p.FindTime(ctx, singleTime); err != nil || got != 0 {
				t.Errorf("the first record by time: %d %v", got, err)
			}
		}
	})
	background(func(rng *rand.Rand) {
		p := r.engine.Get(pid(uint32(rng.IntN(partitions))))
		if err := r.engine.Seal(p); err != nil {
			t.Errorf("seal: %v", err)
		}
		r.archiveAll(archive, p.ID.Partition)
		p.Stats()
		p.UnarchivedFrom()
		<-time.After(time.Millisecond)
	})
	background(func(rng *rand.Rand) {
		n := uint32(rng.IntN(partitions))
		if err := r.engine.Release(ctx, r.log.NextLSN()); err != nil && ctx.Err() == nil {
			t.Errorf("release: %v", err)
		}
		p := r.engine.Get(pid(n))
		p.evict(1 << 30)
		// What is archived may go at any time, once the local state says so.
		end := r.entry(n).ArchivedEnd
		for _, path := range r.segments(n) {
			if base, _, _ := segment.ParseName(fs.PathBase(path)); base < end && rng.IntN(4) == 0 {
				if err := fs.Remove(path); err != nil {
					t.Errorf("remove: %v", err)
				}
			}
		}
		<-time.After(3 * time.Millisecond)
	})
	var settled atomic.Uint64
	background(func(*rand.Rand) {
		lsn, err := groups.settle(r.engine, pid(0), settled.Load())
		if err == nil {
			err = r.log.WaitWritten(ctx, lsn)
		}
		if err != nil {
			t.Errorf("settle: %v", err)
			return
		}
		settled.Add(1)
	})
	others.Wait()
	if t.Failed() {
		return
	}
	var want [partitions][]string
	for n := range want {
		want[n] = r.all(uint32(n))
		if int64(len(want[n])) != total[n].Load() {
			t.Fatalf("partition %d: %d records, %d were written", n, len(want[n]), total[n].Load())
		}
	}
	r.checkpoint()
	r.close()
	again := newTally()
	r = openWith(t, fs, again.config(change))
	for n := range want {
		equal(t, r.all(uint32(n)), want[n])
	}
	again.has(t, pid(0), settled.Load())
	r.close()
}
