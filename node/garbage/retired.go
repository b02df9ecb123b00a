package garbage

import (
	"context"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

const (
	maxRetired    = 100_000 // segments that wait for their grace, about 8 MB
	maxPartitions = 64      // of one batch: each costs a GET behind its chain's end
	maxBatches    = 8       // of one part in one turn
)

// segment is one segment object, without what the key says twice.
type segment struct {
	id         broker.PartitionID
	base, next int64
	generation uint32
	nonce      uint32
	bytes      int64
}

func (s *segment) key() string {
	return manifest.SegmentKey(s.id, s.base, s.next, s.generation, s.nonce)
}

// retired is a segment that its chain named until then.
type retired struct {
	segment
	since time.Time
	due   time.Time
}

// retiredQueue holds segments in the order in which they are due, but for those
// that were put off.
type retiredQueue struct {
	items []retired
	bytes int64
}

func (q *retiredQueue) push(r retired) {
	q.items = append(q.items, r)
	q.bytes += r.bytes
}

// take removes what is due, at most one batch.
func (q *retiredQueue) take(now time.Time) (out []retired) {
	parts := map[broker.PartitionID]bool{}
	kept := q.items[:0:0]
	for i := range q.items {
		r := &q.items[i]
		full := len(out) == maxBatch || !parts[r.id] && len(parts) == maxPartitions
		if full || r.due.After(now) {
			kept = append(kept, *r)
			continue
		}
		parts[r.id] = true
		out = append(out, *r)
		q.bytes -= r.bytes
	}
	if len(out) > 0 {
		q.items = kept
	}
	return out
}

func (q *retiredQueue) tally(t *tally) {
	for i := range q.items {
		t.wait(1, q.items[i].bytes, q.items[i].since)
	}
}

// Discard says that a chain of this node's generation does not name these
// segments any more: the trim or the merge that took them out has succeeded.
// Their objects go after the grace, if the chain still does not name them then.
// At the bound of the queue they are left to the sweep of orphans. It does not
// block.
func (c *Collector) Discard(id broker.PartitionID, segs []manifest.Segment) {
	now := c.opts.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range segs {
		if len(c.mu.retired.items) >= maxRetired {
			c.metrics.forgotten.Add(float64(len(segs) - i))
			return
		}
		s := &segs[i]
		// The key follows from the ids; a copy of another topic's object has the
		// prefix of the partition that lists it.
		c.mu.retired.push(retired{
			segment: segment{id: id, base: s.Base, next: s.Next, generation: s.Generation, nonce: s.Nonce, bytes: s.Bytes},
			since:   now, due: now.Add(c.opts.Grace),
		})
	}
}

// collectRetired deletes the retired segments that are due.
func (c *Collector) collectRetired(ctx context.Context) (more bool, err error) {
	for n := 0; ; n++ {
		now := c.opts.Now()
		c.mu.Lock()
		batch := c.mu.retired.take(now)
		c.mu.Unlock()
		if len(batch) == 0 {
			return false, nil
		}
		if n == maxBatches {
			c.putBack(batch)
			return true, nil
		}
		if err := c.removeRetired(ctx, batch); err != nil {
			return false, err
		}
	}
}

// putBack returns what was taken and is not decided.
func (c *Collector) putBack(batch []retired) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range batch {
		c.mu.retired.push(r)
	}
}

func (c *Collector) removeRetired(ctx context.Context, batch []retired) error {
	segs := make([]segment, len(batch))
	byKey := make(map[string]*retired, len(batch))
	for i := range batch {
		segs[i] = batch[i].segment
		byKey[segs[i].key()] = &batch[i]
	}
	var later []string
	gone, err := c.remove(ctx, Retired, candidates(segs), func(ctx context.Context, st *raftmeta.State) ([]candidate, error) {
		var going []segment
		for id, part := range byPartition(segs) {
			if deletedTopic(st, id.Topic) {
				continue // they go with the topic
			}
			v, err := c.judge(ctx, st, id, part)
			if local(err) {
				c.opts.Logger.Warn("retired segments of a partition wait, its chain cannot be read", "partition", id.String(), "error", err)
				v, err = verdict{later: part}, nil
			}
			if err != nil {
				return nil, err
			}
			going = append(going, v.garbage...)
			for i := range v.later {
				later = append(later, v.later[i].key())
			}
			for i := range v.keep {
				c.opts.Logger.Error("a segment that was to be deleted is needed, it stays", "key", v.keep[i].key(), "reason", v.why)
			}
		}
		return candidates(going), nil
	})
	if err != nil {
		c.putBack(batch)
		return err
	}
	// What a snapshot holds, or a merge reads, comes up again after a grace.
	now := c.opts.Now()
	for _, o := range gone {
		delete(byKey, o.key)
	}
	var again []retired
	for _, key := range later {
		if r := byKey[key]; r != nil {
			again = append(again, *r)
			delete(byKey, key)
		}
	}
	for key, r := range byKey {
		if c.opts.Pinned(key) {
			again = append(again, *r)
		}
	}
	for i := range again {
		again[i].due = now.Add(c.opts.Grace)
	}
	c.putBack(again)
	return nil
}

func candidates(segs []segment) []candidate {
	out := make([]candidate, len(segs))
	for i := range segs {
		out[i] = candidate{segs[i].key(), segs[i].bytes}
	}
	return out
}

func byPartition(segs []segment) map[broker.PartitionID][]segment {
	out := make(map[broker.PartitionID][]segment)
	for _, s := range segs {
		out[s.id] = append(out[s.id], s)
	}
	return out
}
