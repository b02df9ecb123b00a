package cold

import (
	"container/list"
	"context"
	"fmt"
	"sync"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// maxIndex bounds index and footer of one segment in bytes: what 64 MiB of the
// smallest batches need.
const maxIndex = 32 << 20

// indexes keeps the indexes that were used last, up to a number of bytes.
type indexes struct {
	max int64
	mu  struct {
		sync.Mutex
		known   map[string]*list.Element // of *indexed, by object key
		order   *list.List
		bytes   int64
		flights map[string]*indexFlight
	}
}

type indexed struct {
	key   string
	index segment.Index
	size  int64
}

// indexFlight is a fetch that any number of readers wait for. index and err are
// set before done is closed.
type indexFlight struct {
	done  chan struct{}
	index segment.Index
	err   error
}

func newIndexes(limit int64) *indexes {
	x := &indexes{max: limit}
	x.mu.known, x.mu.order, x.mu.flights = make(map[string]*list.Element), list.New(), make(map[string]*indexFlight)
	return x
}

// index returns the index of seg, from memory or with one request that is
// shared and goes on when ctx ends.
func (c *Cache) index(ctx context.Context, seg manifest.Segment) (segment.Index, error) {
	key := seg.Key()
	f, _, x, err := c.findIndex(&seg, key)
	if f == nil {
		return x, err
	}
	return f.wait(ctx)
}

// wait returns the index when it is there. A caller whose ctx ends leaves.
func (f *indexFlight) wait(ctx context.Context) (segment.Index, error) {
	select {
	case <-f.done:
		return f.index, f.err
	case <-ctx.Done():
		return segment.Index{}, ctx.Err()
	}
}

// findIndex returns the index, or the flight that brings it; begun says that it
// was begun by this call.
func (c *Cache) findIndex(seg *manifest.Segment, key string) (f *indexFlight, begun bool, known segment.Index, err error) {
	x := c.indexes
	x.mu.Lock()
	defer x.mu.Unlock()
	if e, ok := x.mu.known[key]; ok {
		x.mu.order.MoveToFront(e)
		return nil, false, e.Value.(*indexed).index, nil
	}
	if f := x.mu.flights[key]; f != nil {
		return f, false, segment.Index{}, nil
	}
	if size := seg.Bytes - seg.DataLength; seg.DataLength <= 0 || size < segment.FooterSize || size > maxIndex {
		return nil, false, segment.Index{}, errcode.New(errcode.Corrupt, "archived object %s: the chain gives its index and footer %d bytes", key, size)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return nil, false, segment.Index{}, errcode.New(errcode.Closed, "the cache of archived chunks is closed")
	}
	f = &indexFlight{done: make(chan struct{})}
	x.mu.flights[key] = f
	own := *seg
	c.mu.running.Go(func() {
		f.index, f.err = c.fetchIndex(&own, key)
		x.land(key, f, own.Bytes-own.DataLength)
		close(f.done)
	})
	return f, true, segment.Index{}, nil
}

// peek returns an index that is in memory, else one without batches.
func (x *indexes) peek(key string) (known segment.Index) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e, ok := x.mu.known[key]; ok {
		known = e.Value.(*indexed).index
	}
	return known
}

// land remembers an index that was fetched and lets go of older ones.
func (x *indexes) land(key string, f *indexFlight, size int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.mu.flights, key)
	if f.err != nil || size > x.max {
		return
	}
	x.mu.known[key] = x.mu.order.PushFront(&indexed{key, f.index, size})
	x.mu.bytes += size
	for x.mu.bytes > x.max {
		old := x.mu.order.Remove(x.mu.order.Back()).(*indexed)
		delete(x.mu.known, old.key)
		x.mu.bytes -= old.size
	}
}

// fetchIndex reads index and footer, which end the object, and holds them
// against the chain's entry. Bytes that do not verify are fetched once more.
func (c *Cache) fetchIndex(seg *manifest.Segment, key string) (segment.Index, error) {
	var err error
	for range 2 {
		var b []byte
		err = c.fetchInto(seg, key, seg.DataLength, func() []byte {
			b = make([]byte, seg.Bytes-seg.DataLength) // stays in memory as it is
			return b
		})
		if err != nil {
			return segment.Index{}, judge(seg, seg.DataLength, err)
		}
		var x segment.Index
		if x, err = parseIndex(seg, b); err == nil {
			return x, nil
		}
		c.metrics.corrupt.Inc()
	}
	if errcode.Is(err, errcode.UnsupportedVersion) {
		return segment.Index{}, errcode.Wrap(errcode.UnsupportedVersion, err, "archived object %s", key)
	}
	return segment.Index{}, corrupt(seg, seg.DataLength, err)
}

func parseIndex(seg *manifest.Segment, b []byte) (segment.Index, error) {
	at := len(b) - segment.FooterSize
	f, err := segment.ParseFooter(b[at:])
	if err != nil {
		return segment.Index{}, err
	}
	if err := compareFooter(seg, &f); err != nil {
		return segment.Index{}, err
	}
	return segment.ParseIndex(b[:at], &f)
}

// compareFooter holds the footer against the entry: an object under the right
// key with another content is found here, before a byte of it is served.
func compareFooter(seg *manifest.Segment, f *segment.Footer) error {
	for _, x := range []struct {
		what      string
		want, got any
	}{
		{"topic", seg.OriginTopic, f.Topic},
		{"partition", seg.Partition.Partition, f.Partition},
		{"first offset", seg.Base, f.Base},
		{"next offset", seg.Next, f.Next},
		{"records", seg.Records, f.Records},
		{"data length", seg.DataLength, f.DataLength},
		{"size", seg.Bytes, f.Size()},
		{"footer position", seg.FooterPosition, f.DataLength + f.IndexLength},
		{"lowest timestamp", seg.MinTimestamp, f.MinTimestamp},
		{"highest timestamp", seg.MaxTimestamp, f.MaxTimestamp},
		{"first generation", seg.FirstGeneration, f.FirstGeneration},
		{"last generation", seg.LastGeneration, f.LastGeneration},
		{"data SHA-256", seg.DataSHA256, manifest.Hash(f.DataSHA256)},
	} {
		if x.want != x.got {
			return errcode.New(errcode.Corrupt, "footer says %s %s, the chain says %s", x.what, fmt.Sprint(x.got), fmt.Sprint(x.want))
		}
	}
	return nil
}
