package cold

import (
	"context"
	"sort"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// download is one request for adjacent chunks. Each chunk is handed to whoever
// waits, and to the disk, as soon as its bytes are there, and batches are verified
// then as well: a core's cache holds a megabyte, and to fetch it from memory again
// for each of these costs more than they do.
type download struct {
	cache   *Cache
	source  source
	first   uint32 // chunk
	flights []*flight
	writer  bool // takes what lands to the disk
	landed  int  // chunks that were handed out

	// Of the attempt that runs; another one has other memory.
	mem   *block
	base  int           // number of landed chunks that are not in mem
	index segment.Index // empty: nothing is verified here
	good  span          // of batches in mem that are verified
	next  int           // batch to verify, Len of index: none
}

// span is a range of batches by their numbers.
type span struct{ from, to int }

func (s span) has(batch int) bool { return s.from <= batch && batch < s.to }

// download fetches adjacent chunks with one request, and with another one what the
// first one did not bring.
func (c *Cache) download(s source, first uint32, flights []*flight) {
	d := &download{cache: c, source: s, first: first, flights: flights}
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-c.ctx.Done():
		d.fail(c.ctx.Err())
		return
	}
	d.writer = c.keep(s, first, flights)
	var err error
	// What the store says in the end does not matter once all chunks are here.
	for n := 0; n < 2 && d.landed < len(flights); n++ {
		if err = d.attempt(); c.ctx.Err() != nil {
			err = c.ctx.Err()
			break
		}
		if err != nil {
			c.metrics.retries.Inc()
		}
	}
	d.fail(err)
}

// pos is where chunk i of the download begins in the object.
func (d *download) pos(i int) int64 { return int64(d.first+uint32(i)) * ChunkSize }

// attempt asks for the chunks that have not landed.
func (d *download) attempt() error {
	c, last := d.cache, len(d.flights)-1
	pos := d.pos(d.landed)
	size := int(d.pos(last)-pos) + d.source.length(d.first+uint32(last))
	d.mem, d.base = c.blocks.get(size), d.landed
	d.index = segment.Index{}
	ctx, cancel := context.WithTimeout(objstore.WithArrival(c.ctx, d.arrived), c.cfg.Timeout)
	defer cancel()
	n, err := c.store.GetRange(ctx, d.source.key, d.mem.buf, pos)
	// Memory that a failed request was given does not go back to the pool: if
	// the store should still write to it, nobody else reads it.
	if err != nil {
		return err
	}
	if n != size {
		return errcode.New(errcode.Corrupt, "the object ends after %d bytes, the chain says %d", pos+int64(n), d.source.seg.Bytes)
	}
	d.arrived(n)
	d.mem.release()
	return nil
}

// arrived hands out the chunks that are whole when n bytes of the attempt are
// there. What a store announces beyond what it was asked for is not there.
func (d *download) arrived(n int) {
	n = min(n, len(d.mem.buf))
	d.verify(n)
	for d.landed < len(d.flights) {
		at := (d.landed - d.base) * ChunkSize
		size := d.source.length(d.first + uint32(d.landed))
		if at+size > n {
			return
		}
		f := d.flights[d.landed]
		d.mem.hold(1)
		f.block, f.at, f.data, f.good = d.mem, at, d.mem.buf[at:at+size:at+size], d.good
		d.landed++
		d.cache.metrics.misses.Inc()
		d.cache.metrics.bytes.Add(float64(size))
		d.writer = d.writer && d.cache.save(int64(size))
		f.unsaved = !d.writer
		close(f.done)
		if f.unsaved {
			d.cache.metrics.unkept.Inc()
			d.forget(d.landed - 1)
		}
	}
}

// fail ends the chunks that have not landed; without an error there are none.
func (d *download) fail(err error) {
	if err != nil {
		err = judge(d.source.seg, d.pos(d.landed), err)
	}
	for i := d.landed; i < len(d.flights); i++ {
		d.flights[i].err = err
		d.forget(i)
		close(d.flights[i].done)
	}
}

// forget takes chunk i, which does not go to disk, out of the map: before a reader
// hears of an error, so that one who asks again is not given the same flight.
func (d *download) forget(i int) {
	d.cache.land(idOf(d.source.key, d.first+uint32(i)), d.flights[i])
	d.flights[i].release()
}

// verify goes on to the batches that are whole when n bytes are there, if the index
// is in memory by now. A bad one ends it: the reader that comes to it knows what to
// do.
func (d *download) verify(n int) {
	pos := d.pos(d.base)
	if d.index.Len() == 0 {
		d.index = d.cache.indexes.peek(d.source.key)
		d.next = sort.Search(d.index.Len(), func(i int) bool { return d.index.At(i).Position >= pos })
		d.good = span{d.next, d.next}
	}
	for ; d.next < d.index.Len(); d.next++ {
		e := d.index.At(d.next)
		if e.End() > pos+int64(n) {
			return
		}
		if _, err := segment.VerifyBatch(d.mem.buf[e.Position-pos : e.End()-pos]); err != nil {
			d.next = d.index.Len()
			return
		}
		d.good.to = d.next + 1
	}
}
