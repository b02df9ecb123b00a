package partition

import (
	"container/list"
	"context"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/segment"
)

// decodedCacheBytes bounds the decoded batches that one-record reads keep.
const decodedCacheBytes = 64 << 20

// recordOverhead is about what a decoded record takes beside its bytes.
const recordOverhead = 128

// headerOverhead is about what a header takes beside its bytes.
const headerOverhead = 48

// decodedCache keeps decoded batches, so that reading a large batch one record
// at a time decompresses it once. A batch that several readers miss at once is
// decoded by one of them.
type decodedCache struct {
	mu    sync.Mutex
	byKey map[decodedKey]*list.Element // -> *decoded
	lru   *list.List
	size  int64
	limit int64
}

// decodedKey names the records of a range of offsets. Visible records never
// change (I3), so the range says what they are, in whatever batch they stand.
type decodedKey struct {
	p          broker.PartitionID
	base, next int64
}

type decoded struct {
	key  decodedKey
	done chan struct{} // closed when recs, err and left are set
	recs []broker.Record
	err  error
	left bool // whoever should have decoded it gave up: somebody else has to

	counted int64 // guarded by decodedCache.mu
}

func newDecodedCache(limit int64) *decodedCache {
	return &decodedCache{byKey: make(map[decodedKey]*list.Element), lru: list.New(), limit: limit}
}

// get returns the records of key, decoding the batch that load returns when
// they are not cached. load ends with ctx. The records are immutable and stay
// valid. A caller whose ctx ends leaves, and takes nobody with it.
func (c *decodedCache) get(ctx context.Context, key decodedKey, load func() ([]byte, error)) ([]broker.Record, error) {
	for {
		c.mu.Lock()
		el, ok := c.byKey[key]
		if !ok {
			d := &decoded{key: key, done: make(chan struct{})}
			c.byKey[key] = c.lru.PushFront(d)
			c.mu.Unlock()
			c.decode(ctx, d, load)
			return d.recs, d.err
		}
		c.lru.MoveToFront(el)
		d := el.Value.(*decoded)
		c.mu.Unlock()
		select {
		case <-d.done:
		default:
			select {
			case <-d.done:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		if !d.left {
			return d.recs, d.err
		}
	}
}

func (c *decodedCache) decode(ctx context.Context, d *decoded, load func() ([]byte, error)) {
	defer close(d.done)
	var batch []byte
	if batch, d.err = load(); d.err == nil {
		// A scratch of its own: the records keep pointing into it.
		d.recs, d.err = segment.DecodeBatch(nil, batch, new(segment.Scratch))
	}
	d.left = d.err != nil && ctx.Err() != nil
	c.account(d)
}

// peek returns the records of key if they are cached and decoded, else nil.
func (c *decodedCache) peek(key decodedKey) []broker.Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	el, ok := c.byKey[key]
	if !ok {
		return nil
	}
	d := el.Value.(*decoded)
	if d.counted == 0 { // not decoded yet: recs belong to who does it
		return nil
	}
	c.lru.MoveToFront(el)
	return d.recs
}

// account counts d and makes room for it.
func (c *decodedCache) account(d *decoded) {
	size := int64(0)
	for i := range d.recs {
		r := &d.recs[i]
		size += int64(len(r.Key)+len(r.Value)) + recordOverhead
		for _, h := range r.Headers {
			size += int64(len(h.Name)+len(h.Value)) + headerOverhead
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	el, ok := c.byKey[d.key]
	if !ok || el.Value != d {
		return // dropped before it was counted
	}
	d.counted = size
	c.size += size
	if d.err != nil {
		c.drop(el) // the next reader tries again
	}
	for c.size > c.limit && c.lru.Len() > 1 {
		c.drop(c.lru.Back())
	}
}

func (c *decodedCache) drop(el *list.Element) {
	d := c.lru.Remove(el).(*decoded)
	delete(c.byKey, d.key)
	c.size -= d.counted
}

// recentKeys are the last few batches of one partition that were decoded: where
// its consumers read.
type recentKeys struct {
	slots [4]atomic.Pointer[decodedKey]
	next  atomic.Uint32
}

// find returns the records of the batch that holds offset if it is one of them
// and still cached, else nil.
func (r *recentKeys) find(c *decodedCache, offset int64) []broker.Record {
	for i := range r.slots {
		k := r.slots[i].Load()
		if k == nil || offset < k.base || offset >= k.next {
			continue
		}
		if recs := c.peek(*k); holds(recs, offset) {
			return recs
		}
	}
	return nil
}

func (r *recentKeys) add(k decodedKey) {
	for i := range r.slots {
		if old := r.slots[i].Load(); old != nil && *old == k {
			return
		}
	}
	r.slots[r.next.Add(1)%uint32(len(r.slots))].Store(&k)
}

// holds says whether one of recs, in order, stands at offset.
func holds(recs []broker.Record, offset int64) bool {
	i := sort.Search(len(recs), func(i int) bool { return recs[i].Offset >= offset })
	return i < len(recs) && recs[i].Offset == offset
}
