package manifest

import (
	"context"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// A chain is fenced, appended to, read back, and closed to its former owner.
func TestChainLife(t *testing.T) {
	ctx := context.Background()
	store := mem.New("t", nil)
	c, err := Load(ctx, store, testPID, 0)
	if err != nil || c.Seq() != 0 || c.End() != 0 {
		t.Fatalf("empty chain: %v", err)
	}
	if err := c.Add(ctx, testOwner(1), testSegment(0, 10, 1, 1)); !errcode.Is(err, errcode.PreconditionFailed) {
		t.Fatalf("add before fence: %v", err)
	}
	if _, err := c.Fence(ctx, testOwner(1), FenceParams{}); err != nil {
		t.Fatal(err)
	}
	for i := range int64(20) {
		if err := c.Add(ctx, testOwner(1), testSegment(10*i, 10*i+10, 1, uint32(i))); err != nil {
			t.Fatal(err)
		}
	}
	d, err := Load(ctx, store, testPID, c.Seq())
	if err != nil {
		t.Fatal(err)
	}
	f, err := d.Fence(ctx, testOwner(2), FenceParams{Start: Unclean, PreviousEndAtLeast: 205})
	if err != nil || f.PreviousEnd != 205 || f.Start != 205+UncleanSkip {
		t.Fatalf("fence: %+v %v", f, err)
	}
	if d.End() != 200 {
		t.Fatalf("end %d, want 200: the adopted tail is still to come", d.End())
	}
	if err := d.Add(ctx, testOwner(2), testSegment(200, 205, 2, 9)); err != nil {
		t.Fatal(err)
	}
	if d.End() != f.Start {
		t.Fatalf("end %d, want %d", d.End(), f.Start)
	}
	if err := c.Add(ctx, testOwner(1), testSegment(200, 210, 1, 99)); !errcode.Is(err, errcode.Fenced) {
		t.Fatalf("zombie: %v", err)
	}
	dropped, err := d.Trim(ctx, testOwner(2), 105)
	if err != nil || len(dropped) != 10 || d.Len() != 11 {
		t.Fatalf("trim dropped %d, %d left: %v", len(dropped), d.Len(), err)
	}
	e, err := Load(ctx, store, testPID, 0)
	if err != nil {
		t.Fatal(err)
	}
	if e.Start() != 105 || e.End() != d.End() || e.Seq() != d.Seq() || e.Totals() != d.Totals() {
		t.Fatalf("loaded %d..%d %+v, want %d..%d %+v", e.Start(), e.End(), e.Totals(), d.Start(), d.End(), d.Totals())
	}
}
