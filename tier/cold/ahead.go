package cold

import (
	"context"

	"github.com/tidemark-mq/tidemark/tier/manifest"
)

const (
	// maxWindow is how many chunks one sequential reader has ahead at most: 64 MiB,
	// which are eight of the largest requests. A store far away gives each of them
	// only so many bytes a second.
	maxWindow = 64
	// fairWindow is how many it has when readers together hold half of all the
	// read-ahead that there may be.
	fairWindow = 32
)

// ahead brings the chunks of one object to one sequential reader. It reads ahead
// more and more while the reader goes on, and into the object that follows.
type ahead struct {
	cache   *Cache
	seg     manifest.Segment
	key     string
	window  int             // chunks
	held    map[uint32]hold // requested and not passed yet
	cur     *flight         // the reader is in it; nil: in none
	at      uint32          // number of cur
	opening *opening        // where the scan began; nil: passed, or there was none
	then    *ahead          // of the segment that follows; nil: not known
}

func newAhead(c *Cache, seg manifest.Segment, key string) *ahead {
	return &ahead{cache: c, seg: seg, key: key, window: 1, held: make(map[uint32]hold)}
}

func (a *ahead) source() source { return source{&a.seg, a.key} }

// chunk returns chunk n, which is held until another one is asked for, and keeps
// the window behind it filled.
func (a *ahead) chunk(ctx context.Context, n uint32) (*flight, error) {
	if a.cur != nil && a.at == n {
		return a.cur, nil
	}
	if err := a.cache.governor.pay(ctx, a.source().length(n)); err != nil {
		return nil, err
	}
	if err := a.fill(n, a.window); err != nil {
		return nil, err
	}
	f := a.held[n].f
	if f == nil {
		var err error
		if f, err = a.kept(n); err != nil {
			return nil, err
		}
	}
	if _, err := f.wait(ctx); err != nil {
		if ctx.Err() == nil {
			a.drop(n) // the next call asks again
		}
		return nil, err
	}
	a.pass(n, f)
	return f, nil
}

// kept returns a chunk that was on disk when it was requested. One whose file is
// damaged is a miss after all, and so are those behind it in the file.
func (a *ahead) kept(n uint32) (*flight, error) {
	c, id := a.cache, idOf(a.key, n)
	f, file := c.disk.get(id, &c.blocks), a.held[n].pin
	a.drop(n)
	if f != nil && len(f.data) == a.source().length(n) {
		c.metrics.hits.Inc()
		a.held[n] = hold{f: f}
		return f, nil
	}
	if f != nil {
		f.release()
		c.disk.drop(id)
	}
	to := n + 1
	for ; a.held[to].pin == file; to++ { // a missing one has none
		a.drop(to)
	}
	holds, err := c.request(a.source(), n, to)
	if err != nil {
		return nil, err
	}
	for i, h := range holds[1:] {
		a.hold(n+1+uint32(i), h)
	}
	if h := holds[0]; h.f != nil {
		a.held[n] = h
		return h.f, nil
	}
	// It came back meanwhile. No reader waits for the cache to make up its mind.
	c.unhold(holds[0])
	if f, err = c.direct(a.source(), int64(n)*ChunkSize, a.source().length(n)); err != nil {
		return nil, err
	}
	a.held[n] = hold{f: f}
	return f, nil
}

// pass makes f, chunk n, the current one and widens the window.
func (a *ahead) pass(n uint32, f *flight) {
	a.leave()
	f.refs.Add(1)
	a.cur, a.at = f, n
	for k := range a.held {
		if k <= n {
			a.drop(k)
		}
	}
	a.window = min(2*a.window, maxWindow)
}

// leave lets the current chunk go.
func (a *ahead) leave() {
	if a.cur != nil {
		a.cur.release()
		a.cur = nil
	}
}

// fill requests chunk n and what the window wants behind it, a whole request at
// a time once the window is that large.
func (a *ahead) fill(n uint32, window int) error {
	c := a.cache
	if c.ahead.Load() >= c.cfg.AheadBytes/2 {
		window = min(window, fairWindow)
	}
	end := uint32((a.seg.DataLength + ChunkSize - 1) / ChunkSize)
	have := n
	for _, ok := a.held[have]; ok; _, ok = a.held[have] {
		have++
	}
	if int(have-n) > max(window/2, window-maxGet) {
		return nil
	}
	to := min(end, n+uint32(window))
	full := c.ahead.Load() >= c.cfg.AheadBytes
	if have == n && full {
		to = n + 1 // what is needed now is always asked for
	}
	for k := have; k < to; k++ {
		if _, ok := a.held[k]; ok {
			to = k // a bad chunk was thrown away before it
		}
	}
	if whole := (to - have) / maxGet * maxGet; have < to && to < end && whole > 0 {
		to = have + whole // the rest comes with what follows it
	}
	if have == n || have < to && !full {
		holds, err := c.request(a.source(), have, to)
		if err != nil {
			return err
		}
		for i, h := range holds {
			a.hold(have+uint32(i), h)
		}
	}
	rest := int(n) + window - int(end)
	if a.then == nil || rest <= 0 || full || rest < maxGet && window >= 2*maxGet {
		return nil // at speed only whole requests are worth it
	}
	if len(a.then.held) == 0 {
		// Only begun here, so that it is in memory when the reader gets there;
		// what is wrong with it the reader hears then.
		_, _, _, _ = c.findIndex(&a.then.seg, a.then.key)
	}
	return a.then.fill(0, rest)
}

// hold puts chunk n into the window.
func (a *ahead) hold(n uint32, h hold) {
	if h.counted = h.f != nil; h.counted { // on disk it takes no memory
		a.cache.ahead.Add(ChunkSize)
	}
	a.held[n] = h
}

// drop gives chunk n of the window back.
func (a *ahead) drop(n uint32) {
	if h, ok := a.held[n]; ok {
		delete(a.held, n)
		a.cache.unhold(h)
	}
}

// forget takes chunk n, whose content is wrong, out of the window and the cache.
func (a *ahead) forget(n uint32) {
	a.drop(n)
	a.cache.forget(idOf(a.key, n))
}

// close gives everything back. Downloads that run go on, into the cache.
func (a *ahead) close() {
	a.leave()
	a.opening = nil
	for n := range a.held {
		a.drop(n)
	}
	if a.then != nil {
		a.then.close()
		a.then = nil
	}
}
