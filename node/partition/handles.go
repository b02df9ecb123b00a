package partition

import (
	"container/list"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/segment"
)

// handles keeps the most recently read sealed segments open, so that a node
// with many segments needs few descriptors. A handle in use is never closed.
type handles struct {
	fs  vfs.FS
	max int

	mu   sync.Mutex
	byID map[string]*list.Element // path -> *handle
	lru  *list.List               // front: most recent
}

// handle is one open sealed segment.
type handle struct {
	*segment.Reader
	data [32]byte // SHA-256 of the data, as the footer says
	path string
	file vfs.File
	refs int  // guarded by handles.mu
	dead bool // closed when refs reaches 0
}

func newHandles(fs vfs.FS, limit int) *handles {
	return &handles{fs: fs, max: max(limit, 1), byID: make(map[string]*list.Element), lru: list.New()}
}

// open returns the segment at path; the caller releases it. listed says whether
// the segment is still one of its partition: a file that was removed while it was
// being opened is read once and not kept, or its descriptor would keep the disk
// space. It is asked after the handle is in the cache, and forgetting looks into
// the cache after the segment is unlisted, so one of them sees the other.
func (h *handles) open(path string, listed func() bool) (*handle, error) {
	h.mu.Lock()
	if el, ok := h.byID[path]; ok {
		h.lru.MoveToFront(el)
		hd := el.Value.(*handle)
		hd.refs++
		h.mu.Unlock()
		return hd, nil
	}
	h.mu.Unlock()
	hd, err := h.load(path)
	if err != nil {
		return nil, err
	}
	hd = h.keep(hd)
	if !listed() {
		h.forgetFile(path)
	}
	return hd, nil
}

// keep puts a handle that was just opened into the cache and returns the one to
// use, which the caller releases.
func (h *handles) keep(hd *handle) *handle {
	h.mu.Lock()
	defer h.mu.Unlock()
	if el, ok := h.byID[hd.path]; ok { // somebody was faster
		_ = hd.file.Close() // read-only, nothing to lose
		hd = el.Value.(*handle)
	} else {
		h.byID[hd.path] = h.lru.PushFront(hd)
	}
	hd.refs++
	h.shrink()
	return hd
}

// forgetFile closes one segment, as soon as nobody reads it.
func (h *handles) forgetFile(path string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if el, ok := h.byID[path]; ok {
		h.remove(el)
	}
}

func (h *handles) load(path string) (*handle, error) {
	f, err := h.fs.Open(path, vfs.RandomReadsOption)
	if err != nil {
		return nil, errcode.Wrap(errcode.Storage, err, "open segment %s", path)
	}
	st, err := f.Stat()
	var r *segment.Reader
	var footer *segment.Footer
	if err == nil {
		r, footer, err = segment.OpenReader(path, f, st.Size())
	}
	if err != nil {
		_ = f.Close()
		return nil, errcode.Wrap(errcode.Storage, err, "read segment %s", path)
	}
	return &handle{Reader: r, data: footer.DataSHA256, path: path, file: f}, nil
}

func (h *handles) release(hd *handle) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if hd.refs--; hd.refs == 0 && hd.dead {
		_ = hd.file.Close()
	}
}

// shrink closes what is above the limit, least recently used first. The caller
// holds h.mu.
func (h *handles) shrink() {
	for h.lru.Len() > h.max {
		h.remove(h.lru.Back())
	}
}

func (h *handles) remove(el *list.Element) {
	hd := h.lru.Remove(el).(*handle)
	delete(h.byID, hd.path)
	hd.dead = true
	if hd.refs == 0 {
		_ = hd.file.Close()
	}
}

// forget closes the segments in dir.
func (h *handles) forget(dir string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for el := h.lru.Front(); el != nil; {
		next := el.Next()
		if hd := el.Value.(*handle); h.fs.PathDir(hd.path) == dir {
			h.remove(el)
		}
		el = next
	}
}

func (h *handles) closeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.lru.Len() > 0 {
		h.remove(h.lru.Back())
	}
}

// openSealed opens p's file of the sealed segment s, as open does. Corrupt: it is
// another segment's file, which would read well and hold other offsets.
func (p *Partition) openSealed(s *state.Sealed) (*handle, error) {
	path := p.segmentPath(s.Base)
	h, err := p.e.handles.open(path, func() bool { return p.lists(path) })
	if err != nil {
		return nil, err
	}
	if h.data != s.DataSHA256 || h.Base() != s.Base || h.Next() != s.Next {
		p.e.handles.release(h)
		return nil, errcode.New(errcode.Corrupt, "segment %s holds offsets %d to %d with data of SHA-256 %x, what was sealed holds %d to %d, %x", path, h.Base(), h.Next(), h.data, s.Base, s.Next, s.DataSHA256)
	}
	return h, nil
}
