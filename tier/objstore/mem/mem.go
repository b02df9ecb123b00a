package mem

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/google/btree"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Store holds objects in memory.
type Store struct {
	name string
	now  func() time.Time
	mu   struct {
		sync.RWMutex
		objects *btree.BTreeG[object]
	}
}

type object struct {
	key      string
	data     []byte // never written again
	modified time.Time
}

func (o object) info() objstore.Info {
	return objstore.Info{Key: o.key, Size: int64(len(o.data)), Modified: o.modified}
}

// New returns an empty store; now is its clock, nil for the system's.
func New(name string, now func() time.Time) *Store {
	if now == nil {
		now = time.Now
	}
	s := &Store{name: name, now: now}
	s.mu.objects = btree.NewG(32, func(a, b object) bool { return a.key < b.key })
	return s
}

// Clone returns a store with the same objects as they are now. Changes of one
// are not seen in the other; it costs next to nothing, whatever it holds.
func (s *Store) Clone() *Store {
	out := &Store{name: s.name, now: s.now}
	s.mu.Lock()
	defer s.mu.Unlock()
	out.mu.objects = s.mu.objects.Clone()
	return out
}

// Put implements objstore.Store.
func (s *Store) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, opts objstore.PutOptions) error {
	if err := objstore.CheckKey(key); err != nil {
		return err
	}
	if err := objstore.CheckBody(key, body, size); err != nil {
		return err
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(body, data); err != nil {
		return errcode.Wrap(errcode.Internal, err, "put %s: read the body", key)
	}
	check := objstore.NewVerifier(opts)
	check.Add(data)
	if err := check.Check(key); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := objstore.Ended(ctx, "put", key); err != nil {
		return err
	}
	if opts.CreateOnly && s.mu.objects.Has(object{key: key}) {
		return errcode.New(errcode.Exists, "put %s: the key is taken", key)
	}
	s.mu.objects.ReplaceOrInsert(object{key, data, s.now()})
	return nil
}

func (s *Store) find(ctx context.Context, op, key string) (object, error) {
	if err := objstore.CheckKey(key); err != nil {
		return object{}, err
	}
	if err := objstore.Ended(ctx, op, key); err != nil {
		return object{}, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	o, ok := s.mu.objects.Get(object{key: key})
	if !ok {
		return object{}, errcode.New(errcode.NotFound, "%s %s: no such object", op, key)
	}
	return o, nil
}

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, key string) (io.ReadCloser, objstore.Info, error) {
	o, err := s.find(ctx, "get", key)
	if err != nil {
		return nil, objstore.Info{}, err
	}
	info := o.info()
	return objstore.ExactBody(ctx, io.NopCloser(bytes.NewReader(o.data)), key, info.Size), info, nil
}

// GetRange implements objstore.Store.
func (s *Store) GetRange(ctx context.Context, key string, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errcode.New(errcode.InvalidArgument, "get range of %s: offset %d is negative", key, off)
	}
	o, err := s.find(ctx, "get range of", key)
	if err != nil || off >= int64(len(o.data)) {
		return 0, err
	}
	return copy(p, o.data[off:]), nil
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	o, err := s.find(ctx, "head", key)
	if err != nil {
		return objstore.Info{}, err
	}
	return o.info(), nil
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix, startAfter string, limit int) (objstore.Page, error) {
	if err := objstore.CheckPrefix(prefix); err != nil {
		return objstore.Page{}, err
	}
	limit, err := objstore.PageLimit(limit)
	if err != nil {
		return objstore.Page{}, err
	}
	if err := objstore.Ended(ctx, "list", prefix); err != nil {
		return objstore.Page{}, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	var page objstore.Page
	s.mu.objects.AscendGreaterOrEqual(object{key: max(prefix, startAfter)}, func(o object) bool {
		switch {
		case o.key <= startAfter:
			return true
		case !strings.HasPrefix(o.key, prefix):
			return false
		case len(page.Objects) == limit:
			page.More = true
			return false
		}
		page.Objects = append(page.Objects, o.info())
		return true
	})
	return page, nil
}

// Delete implements objstore.Store.
func (s *Store) Delete(ctx context.Context, keys []string) error {
	if err := objstore.CheckKeys(keys); err != nil {
		return err
	}
	if err := objstore.Ended(ctx, "delete", "objects"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		s.mu.objects.Delete(object{key: k})
	}
	return nil
}

// Capabilities implements objstore.Store.
func (s *Store) Capabilities() objstore.Capabilities {
	return objstore.Capabilities{Kind: "mem", URL: "mem://" + s.name, CreateOnly: true}
}

// Close implements objstore.Store; the objects stay.
func (s *Store) Close() error { return nil }
