package upload

import (
	"context"
	"errors"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// maxPublish is how many segments one entry adds at most.
const maxPublish = 64

// upload brings one segment's object into the store.
func (u *Uploader) upload(ctx context.Context, p *partition, it *item) error {
	chain, err := u.cfg.Chains.Chain(ctx, p.pid)
	if err != nil {
		return u.judge(p, it, err)
	}
	if it.found, it.same, it.done, err = covered(ctx, chain, it); err != nil || it.done {
		return u.judge(p, it, err)
	}
	if err := u.attempt(ctx, p.pid, it, chain.Generation()); err != nil {
		return err
	}
	return u.judge(p, it, u.sender.put(ctx, p.pid, it))
}

// attempt gives the segment the key that it goes under. It keeps its key for
// as long as an object there can be this generation's own.
func (u *Uploader) attempt(ctx context.Context, pid broker.PartitionID, it *item, generation uint32) error {
	if it.fresh && it.attempt.Generation == generation {
		return nil
	}
	a := Attempt{Generation: generation, Nonce: u.cfg.Nonce()}
	if u.cfg.Hooks.Attempting != nil {
		if err := u.cfg.Hooks.Attempting(ctx, pid, it.sealed, a); err != nil {
			return errcode.Wrap(errcode.Storage, err, "record the upload of %s", it.sealed.Path)
		}
	}
	it.attempt, it.fresh, it.sent, it.doubts = a, true, false, 0
	return nil
}

// publish adds the uploaded segments at the head of the queue to the chain, in
// order, and takes them out of the queue.
func (u *Uploader) publish(ctx context.Context, p *partition) error {
	u.mu.Lock()
	heads := p.heads(maxPublish)
	u.mu.Unlock()
	if len(heads) == 0 {
		return nil
	}
	chain, err := u.cfg.Chains.Chain(ctx, p.pid)
	if err != nil {
		return u.judge(p, heads[0], err)
	}
	if heads[0].done {
		u.finish(p, heads[0:1], chain.Seq())
		return nil
	}
	n := 0
	var segs []manifest.Segment
	for n < len(heads) && !heads[n].done && heads[n].attempt.Generation == chain.Generation() {
		if n > 0 && heads[n].sealed.Info.Base != heads[n-1].sealed.Info.Next {
			break // a gap between them: the chain says where it goes on
		}
		segs = append(segs, segmentOf(p.pid, &heads[n].sealed, heads[n].attempt))
		n++
	}
	if n == 0 {
		// The partition came back with a new generation in between: the
		// object's key names the old one, so it goes up again.
		u.again(p, heads)
		return nil
	}
	err = chain.Add(ctx, segs...)
	if err == nil {
		for i, it := range heads[:n] {
			it.found, it.same = segs[i], true
		}
		u.finish(p, heads[:n], chain.Seq())
		return nil
	}
	if errcode.Is(err, errcode.Exists) {
		// The chain has moved: look at each of them again.
		u.again(p, heads)
	}
	return u.judge(p, heads[0], err)
}

func (u *Uploader) again(p *partition, items []*item) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, it := range items {
		it.phase = waiting
	}
}

// finish takes items, which stand at the head of p's queue, out of it and
// tells the node. It holds p.commits, so the head does not change meanwhile.
func (u *Uploader) finish(p *partition, items []*item, seq uint64) {
	u.mu.Lock()
	if u.mu.parts[p.pid] != p {
		u.mu.Unlock()
		return // dropped in the meantime
	}
	before := p.bytes
	p.pop(len(items))
	u.mu.queued -= len(items)
	u.mu.bytes -= before - p.bytes
	if len(p.items) == 0 && p.busy == 1 {
		delete(u.mu.parts, p.pid)
	}
	u.mu.Unlock()
	for _, it := range items {
		if it.same {
			u.metrics.segments.Inc()
			if h := u.cfg.Hooks.Archived; h != nil {
				h(p.pid, it.sealed, it.found, seq)
			}
		} else if h := u.cfg.Hooks.Covered; h != nil {
			h(p.pid, it.sealed, it.found.Next)
		}
	}
}

// judge sorts an error: of another owner, beyond help, or worth a retry.
func (u *Uploader) judge(p *partition, it *item, err error) error {
	var damaged errDamaged
	switch {
	case err == nil:
		return nil
	case errcode.Is(err, errcode.Fenced):
		u.mu.Lock()
		mine := u.mu.parts[p.pid] == p
		u.drop(p.pid)
		u.mu.Unlock()
		if h := u.cfg.Hooks.Fenced; h != nil && mine {
			h(p.pid, err)
		}
	case errors.As(err, &damaged):
		u.mu.Lock()
		first := u.mu.parts[p.pid] == p && !p.stopped
		p.stopped, p.err = true, damaged.error // together: a status never says stopped without why
		u.mu.Unlock()
		if h := u.cfg.Hooks.Stopped; h != nil && first {
			h(p.pid, it.sealed, damaged.error)
		}
		return damaged.error
	}
	return err
}
