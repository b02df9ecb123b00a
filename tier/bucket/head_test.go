package bucket

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
)

// headLies are what a store can say wrong about an object without its bytes.
var headLies = map[string]fault.Action{
	"fails": fault.Fail, "loses its answer": fault.LoseAnswer, "denies the object": fault.Pretend,
	"says a smaller size": fault.Tear, "says a larger size": fault.Flip,
}

// A HEAD that fails or lies ends an inspection with an error: a footer is never
// read from another place than its own (I13).
func TestHeadOfASegmentLies(t *testing.T) {
	st, all := archive(t)
	for _, segs := range all {
		for name, do := range headLies {
			bad := fault.New(st, fault.Options{})
			h := bad.Add(fault.Rule{Ops: []string{fault.Head}, Do: do})
			key := segs[1].Key()
			if v, err := Inspect(ctx, bad, key, Decoders{}); err == nil {
				t.Errorf("inspect, HEAD %s: %+v", name, v)
			}
			r, size, err := OpenObject(ctx, bad, key)
			if err == nil {
				_, _, err = segment.OpenReader(key, r, size)
			}
			if err == nil || h.Hits() < 2 {
				t.Errorf("open, HEAD %s: no error, %d lies", name, h.Hits())
			}
			h.Remove()
			if v, err := Inspect(ctx, bad, key, Decoders{}); err != nil || v.Bytes != segs[1].Bytes {
				t.Errorf("when it is over: %v", err)
			}
		}
	}
	// What was there a moment ago and is not any more.
	gone := all[broker.PartitionID{Topic: 1}][0].Key()
	stale := &staleHead{Store: st, key: gone, size: all[broker.PartitionID{Topic: 1}][0].Bytes}
	remove(t, st, gone)
	if _, err := Inspect(t.Context(), stale, gone, Decoders{}); !errcode.Is(err, errcode.NotFound) {
		t.Errorf("an object that is gone: %v", err)
	}
}

// A merge happens while an archive is verified, so that its output is asked about
// by HEAD, which fails or lies: that is told about this object, whose range stays
// under suspicion, and about no other one (B210).
func TestVerifyWhenAHeadLies(t *testing.T) {
	pid := broker.PartitionID{Topic: 2, Partition: 1}
	for name, do := range headLies {
		st, all := archive(t)
		bad := fault.New(st, fault.Options{})
		h := bad.Add(fault.Rule{Ops: []string{fault.Head}, Do: do})
		out, data := segmentOf(t, pid, 10, 30)
		out.Nonce = 99
		var done atomic.Bool
		b := &beside{Store: bad, shown: func(key string) {
			// Behind the place of the output in the list, in front of the last input.
			if key != all[pid][2].Key() || !done.CompareAndSwap(false, true) {
				return
			}
			c, err := manifest.Load(ctx, st, pid, 0)
			if err != nil {
				t.Error(err)
				return
			}
			put(t, st, out.Key(), data)
			if err := c.Replace(ctx, owner(1), all[pid][1:4], out); err != nil {
				t.Error(err)
			}
			remove(t, st, all[pid][1].Key(), all[pid][2].Key(), all[pid][3].Key())
		}}
		got, sum := verify(t, b, Options{})
		if h.Hits() == 0 {
			t.Errorf("HEAD %s: nobody asked", name)
		}
		if len(got) == 0 || sum.Problems == 0 {
			t.Errorf("HEAD %s: nothing was found", name)
		}
		for _, f := range got {
			if f.Key != out.Key() {
				t.Errorf("HEAD %s: %+v is about another object", name, f)
			}
		}
	}
}

// staleHead answers for one object as it was before it went.
type staleHead struct {
	objstore.Store
	key  string
	size int64
}

func (s *staleHead) Head(ctx context.Context, key string) (objstore.Info, error) {
	if key == s.key {
		return objstore.Info{Key: key, Size: s.size}, nil
	}
	return s.Store.Head(ctx, key)
}
