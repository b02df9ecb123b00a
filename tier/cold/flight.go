package cold

import (
	"context"
	"sync/atomic"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// flight is a chunk that is on its way or has arrived, for any number of
// readers. All but bad and refs is set before done is closed and never after.
//
// data stand in a block, which is held until the last holder of the flight has
// left: the map of flights, the writer (or the download, when the chunk does not go
// to disk), and every scan and run that uses it. To take a hold one must have one,
// or the lock of the map that has.
type flight struct {
	done    chan struct{}
	data    []byte
	block   *block // nil: data are nobody else's
	at      int    // of data in the block
	err     error
	good    span        // batches that were verified in block
	kept    bool        // data are from the disk, where they may have gone bad
	unsaved bool        // does not go to disk
	bad     atomic.Bool // its bytes do not verify: not for the disk
	refs    atomic.Int32
}

// fit says that what has landed may go to disk.
func (f *flight) fit() bool { return f.err == nil && !f.unsaved && !f.bad.Load() }

// newFlight returns a flight with a number of holders.
func newFlight(holders int32) *flight {
	f := &flight{done: make(chan struct{})}
	f.refs.Store(holders)
	return f
}

// landed is done from the beginning.
var landed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// precedes says that g's data come right behind f's in one block: a slice of the
// block may span both. The caller holds both.
func (f *flight) precedes(g *flight) bool {
	return f.block != nil && f.block == g.block && f.at+len(f.data) == g.at
}

// release takes one holder away; it must not look at data any more.
func (f *flight) release() {
	if f.refs.Add(-1) == 0 && f.block != nil {
		f.block.release()
	}
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

// maxGet is how many adjacent chunks one request fetches at most: 8 MiB. A request
// costs the store about as much as 1 MiB of an answer, and so does the file that it
// ends in; above 8 MiB that hardly counts any more, and memory does.
const maxGet = 8

// source is one object in chunks.
type source struct {
	seg *manifest.Segment
	key string
}

// length is the number of bytes of chunk n.
func (s source) length(n uint32) int {
	return int(min(ChunkSize, s.seg.Bytes-int64(n)*ChunkSize))
}

// hold keeps one chunk for a reader: in memory or on its way there, or on disk.
type hold struct {
	f       *flight
	pin     *slot // f == nil
	counted bool  // as read-ahead
}

func (c *Cache) unhold(h hold) {
	if h.counted {
		c.ahead.Add(-ChunkSize)
	}
	if h.f != nil {
		h.f.release()
	}
	if h.pin != nil {
		c.disk.unpin(h.pin)
	}
}

// request returns holds on the chunks in [from, to), and starts the download of
// those that are neither on disk nor on their way. Adjacent ones share a request.
func (c *Cache) request(s source, from, to uint32) ([]hold, error) {
	out := make([]hold, to-from)
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
			f.refs.Add(1)
			out[n-from] = hold{f: f}
			c.metrics.shared.Inc()
			continue
		}
		if s := c.disk.pin(id); s != nil {
			launch(n)
			out[n-from] = hold{pin: s}
			continue
		}
		f := newFlight(3) // the map, the writer or the download, the caller
		c.mu.flights[id], out[n-from] = f, hold{f: f}
		run = append(run, f)
		if len(run) == maxGet {
			launch(n + 1)
		}
	}
	launch(to)
	return out, nil
}

// keep begins to write a download to disk, chunk by chunk as they land, and says
// whether it does: not when as many are being written as may be.
func (c *Cache) keep(s source, first uint32, flights []*flight) bool {
	select {
	case c.writes <- struct{}{}:
	default:
		return false
	}
	c.mu.running.Go(func() { // the download is one of those that run
		c.write(s, first, flights)
		<-c.writes
	})
	return true
}

// save takes the room for n bytes on their way to disk; false: the disk does not
// keep up.
func (c *Cache) save(n int64) bool {
	if c.unsaved.Add(n) <= writeBytes {
		return true
	}
	c.unsaved.Add(-n)
	return false
}

// land forgets a flight.
func (c *Cache) land(id chunkID, f *flight) {
	c.mu.Lock()
	known := c.mu.flights[id] == f
	if known {
		delete(c.mu.flights, id)
	}
	c.mu.Unlock()
	if known {
		f.release()
	}
}

// forget takes a chunk whose content is wrong out of the cache. One that is
// being written this moment may come back, and is found out again.
func (c *Cache) forget(id chunkID) {
	c.mu.Lock()
	f := c.mu.flights[id]
	if f != nil {
		f.bad.Store(true)
		delete(c.mu.flights, id)
	}
	c.mu.Unlock()
	if f != nil {
		f.release()
	}
	c.disk.drop(id)
}

// direct fetches a range past the cache, for one reader.
func (c *Cache) direct(s source, pos int64, size int) (*flight, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return nil, errcode.New(errcode.Closed, "the cache of archived chunks is closed")
	}
	f := newFlight(1)
	c.mu.running.Go(func() {
		defer close(f.done)
		f.err = c.fetchInto(s.seg, s.key, pos, func() []byte {
			f.data = make([]byte, size)
			return f.data
		})
		if f.err != nil {
			f.data, f.err = nil, judge(s.seg, pos, f.err)
		}
	})
	return f, nil
}

// fetchInto fills a buffer that memory returns with the bytes of an object at
// pos. A failed or short answer is asked for once more, with other memory: it
// may have been cut on its way.
func (c *Cache) fetchInto(seg *manifest.Segment, key string, pos int64, memory func() []byte) error {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
	var err error
	for range 2 {
		buf := memory()
		var n int
		if n, err = c.get(key, buf, pos); err == nil && n == len(buf) {
			c.metrics.bytes.Add(float64(n))
			return nil
		}
		if c.ctx.Err() != nil {
			return c.ctx.Err()
		}
		if err == nil {
			err = errcode.New(errcode.Corrupt, "the object ends after %d bytes, the chain says %d", pos+int64(n), seg.Bytes)
		}
		c.metrics.retries.Inc()
	}
	return err
}

func (c *Cache) get(key string, buf []byte, pos int64) (int, error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.cfg.Timeout)
	defer cancel()
	return c.store.GetRange(ctx, key, buf, pos)
}
