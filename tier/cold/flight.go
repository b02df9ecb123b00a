package cold

import (
	"context"
	"sync/atomic"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// flight is a download that any number of readers wait for. data and err are
// set before done is closed and never after.
type flight struct {
	done chan struct{}
	data []byte
	err  error
	bad  atomic.Bool // its bytes do not verify: not for the disk
}

// wait returns the downloaded bytes. A caller whose ctx ends leaves; the
// download goes on.
func (f *flight) wait(ctx context.Context) ([]byte, error) {
	select {
	case <-f.done:
		return f.data, f.err
	default:
	}
	select {
	case <-f.done:
		return f.data, f.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// maxGet is how many adjacent chunks one request fetches at most: 4 MiB.
const maxGet = 4

// source is one object in chunks.
type source struct {
	seg *manifest.Segment
	key string
}

// length is the number of bytes of chunk n.
func (s source) length(n uint32) int {
	return int(min(ChunkSize, s.seg.Bytes-int64(n)*ChunkSize))
}

// request returns the flights of the chunks in [from, to) that are not on disk,
// nil for those that are, and starts those that nobody has started. Adjacent
// ones share a request.
func (c *Cache) request(s source, from, to uint32) ([]*flight, error) {
	out := make([]*flight, to-from)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return nil, errcode.New(errcode.Closed, "the cache of archived chunks is closed")
	}
	var run []*flight // started now, up to chunk n
	launch := func(n uint32) {
		if len(run) > 0 {
			fl, first := run, n-uint32(len(run))
			c.mu.running.Go(func() { c.download(s, first, fl) })
			run = nil
		}
	}
	for n := from; n < to; n++ {
		id := idOf(s.key, n)
		if f := c.mu.flights[id]; f != nil {
			launch(n)
			out[n-from] = f
			c.metrics.shared.Inc()
			continue
		}
		if c.disk.has(id) {
			launch(n)
			continue
		}
		f := &flight{done: make(chan struct{})}
		c.mu.flights[id], out[n-from] = f, f
		run = append(run, f)
		if len(run) == maxGet {
			launch(n + 1)
		}
	}
	launch(to)
	return out, nil
}

// download fetches adjacent chunks with one request and hands each to whoever
// waits, and to the disk.
func (c *Cache) download(s source, first uint32, flights []*flight) {
	size := 0
	for i := range flights {
		size += s.length(first + uint32(i))
	}
	pos := int64(first) * ChunkSize
	buf, err := c.fetch(s.seg, s.key, pos, size)
	if err != nil {
		err = judge(s.seg, pos, err)
	}
	for i, f := range flights {
		n := first + uint32(i)
		id := idOf(s.key, n)
		if err != nil {
			f.err = err
			c.land(id, f)
			close(f.done)
			continue
		}
		f.data, buf = buf[:s.length(n):s.length(n)], buf[s.length(n):]
		c.metrics.misses.Inc()
		close(f.done)
		select {
		case c.writes <- write{id, n, f}:
		default: // the disk does not keep up
			c.metrics.unkept.Inc()
			c.land(id, f)
		}
	}
}

// land forgets a flight.
func (c *Cache) land(id chunkID, f *flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.flights[id] == f {
		delete(c.mu.flights, id)
	}
}

// forget takes a chunk whose content is wrong out of the cache. One that is
// being written this moment may come back, and is found out again.
func (c *Cache) forget(id chunkID) {
	c.mu.Lock()
	if f := c.mu.flights[id]; f != nil {
		f.bad.Store(true)
		delete(c.mu.flights, id)
	}
	c.mu.Unlock()
	c.disk.drop(id)
}

// direct fetches a range past the cache, for one reader.
func (c *Cache) direct(s source, pos int64, size int) (*flight, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return nil, errcode.New(errcode.Closed, "the cache of archived chunks is closed")
	}
	f := &flight{done: make(chan struct{})}
	c.mu.running.Go(func() {
		defer close(f.done)
		if f.data, f.err = c.fetch(s.seg, s.key, pos, size); f.err != nil {
			f.err = judge(s.seg, pos, f.err)
		}
	})
	return f, nil
}

// fetch reads exactly size bytes of an object at pos. A failed or short answer
// is asked for once more: it may have been cut on its way.
func (c *Cache) fetch(seg *manifest.Segment, key string, pos int64, size int) ([]byte, error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-c.ctx.Done():
		return nil, c.ctx.Err()
	}
	buf := make([]byte, size)
	var err error
	for range 2 {
		var n int
		if n, err = c.get(key, buf, pos); err == nil && n == size {
			c.metrics.bytes.Add(float64(size))
			return buf, nil
		}
		if c.ctx.Err() != nil {
			return nil, c.ctx.Err()
		}
		if err == nil {
			err = errcode.New(errcode.Corrupt, "the object ends after %d bytes, the chain says %d", pos+int64(n), seg.Bytes)
		}
		c.metrics.retries.Inc()
	}
	return nil, err
}

func (c *Cache) get(key string, buf []byte, pos int64) (int, error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.cfg.Timeout)
	defer cancel()
	return c.store.GetRange(ctx, key, buf, pos)
}
