package partition

import (
	"container/list"
	"sync"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/segment"
)

// decodedCacheBytes bounds the decoded batches that one-record reads keep.
const decodedCacheBytes = 64 << 20

// recordOverhead is about what a decoded record takes beside its bytes.
const recordOverhead = 128

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
	key     decodedKey
	once    sync.Once
	recs    []broker.Record
	err     error
	counted int64 // guarded by decodedCache.mu
}

func newDecodedCache(limit int64) *decodedCache {
	return &decodedCache{byKey: make(map[decodedKey]*list.Element), lru: list.New(), limit: limit}
}

// get returns the records of key, decoding the batch that load returns when
// they are not cached. The records are immutable and stay valid.
func (c *decodedCache) get(key decodedKey, load func() ([]byte, error)) ([]broker.Record, error) {
	c.mu.Lock()
	el, ok := c.byKey[key]
	if ok {
		c.lru.MoveToFront(el)
	} else {
		el = c.lru.PushFront(&decoded{key: key})
		c.byKey[key] = el
	}
	d := el.Value.(*decoded)
	c.mu.Unlock()
	d.once.Do(func() {
		var batch []byte
		if batch, d.err = load(); d.err == nil {
			// A scratch of its own: the records keep pointing into it.
			d.recs, d.err = segment.DecodeBatch(nil, batch, new(segment.Scratch))
		}
		c.account(d)
	})
	return d.recs, d.err
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
		size += int64(len(d.recs[i].Key)+len(d.recs[i].Value)) + recordOverhead
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
