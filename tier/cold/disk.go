package cold

import (
	"container/list"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// disk is the directory of chunk files: what is in it, and in which order it
// was used.
type disk struct {
	fs  vfs.FS
	dir string
	max int64
	mu  struct {
		sync.Mutex
		slots map[chunkID]*list.Element // of *slot
		order *list.List                // the one used last is in front
		bytes int64                     // of slots and of what is being written
		busy  map[chunkID]struct{}      // being written
	}
}

type slot struct {
	id   chunkID
	size int64 // of the file
	pins int   // readers in the file
}

// openDisk takes over what is in dir. Contents are checked when they are read.
func openDisk(fs vfs.FS, dir string, limit int64) (*disk, error) {
	d := &disk{fs: fs, dir: dir, max: limit}
	d.mu.slots, d.mu.order, d.mu.busy = make(map[chunkID]*list.Element), list.New(), make(map[chunkID]struct{})
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return nil, errcode.Wrap(errcode.Storage, err, "create cache directory %s", dir)
	}
	names, err := fs.List(dir)
	if err != nil {
		return nil, errcode.Wrap(errcode.Storage, err, "list cache directory %s", dir)
	}
	type found struct {
		slot
		used time.Time
	}
	var all []found
	for _, name := range names {
		id, ok := parseFile(name)
		if !ok {
			continue // not ours
		}
		st, err := fs.Stat(fs.PathJoin(dir, name))
		if err != nil {
			continue // it is a miss
		}
		all = append(all, found{slot{id: id, size: st.Size()}, st.ModTime()})
	}
	slices.SortFunc(all, func(a, b found) int { return a.used.Compare(b.used) })
	for _, f := range all {
		d.mu.slots[f.id] = d.mu.order.PushFront(&f.slot)
		d.mu.bytes += f.size
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.room(0)
	return d, nil
}

func (d *disk) has(id chunkID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.mu.slots[id]
	return ok
}

// get reads a chunk into a block of mem and returns it as a flight that has
// landed, which the caller releases; nil when the chunk is not there. A file that
// does not verify is removed.
func (d *disk) get(id chunkID, n uint32, mem *blocks) *flight {
	d.mu.Lock()
	e, ok := d.mu.slots[id]
	if !ok {
		d.mu.Unlock()
		return nil
	}
	s := e.Value.(*slot)
	s.pins++
	d.mu.order.MoveToFront(e)
	d.mu.Unlock()
	f, err := d.read(s, n, mem)
	d.mu.Lock()
	defer d.mu.Unlock()
	s.pins--
	if err != nil && d.mu.slots[id] == e {
		d.remove(e)
	}
	return f
}

func (d *disk) read(s *slot, n uint32, mem *blocks) (*flight, error) {
	if s.size <= chunkHeader || s.size > chunkHeader+ChunkSize {
		return nil, errcode.New(errcode.Corrupt, "chunk %s has %d bytes", s.id.file(), s.size)
	}
	f, err := d.fs.Open(d.fs.PathJoin(d.dir, s.id.file()))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := make([]byte, chunkHeader)
	if err := readFull(f, h, 0); err != nil {
		return nil, err
	}
	b := mem.get(int(s.size - chunkHeader))
	err = readFull(f, b.buf, chunkHeader)
	if err == nil {
		err = checkChunk(h, b.buf, s.id, n)
	}
	if err != nil {
		b.release()
		return nil, err
	}
	out := &flight{done: landed, data: b.buf, block: b}
	out.refs.Store(1)
	return out, nil
}

// readFull fills p; fewer bytes are a failed read.
func readFull(f vfs.File, p []byte, pos int64) error {
	n, err := f.ReadAt(p, pos)
	if n == len(p) {
		return nil
	}
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// put writes a chunk and lists it. It may run for several chunks at once.
func (d *disk) put(id chunkID, n uint32, data []byte) error {
	size := int64(chunkHeader + len(data))
	if ok, err := d.admit(id, size); !ok {
		return err
	}
	// Written where it stays: nobody opens a file that is not listed. Nothing is
	// synced: what a crash tears does not verify.
	path := d.fs.PathJoin(d.dir, id.file())
	err := d.write(path, id, n, data)
	if err != nil {
		_ = d.fs.Remove(path) // left behind, it is found by the next start and does not verify
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.mu.busy, id)
	if err != nil {
		d.mu.bytes -= size
		return errcode.Wrap(errcode.Storage, err, "write chunk %s", path)
	}
	d.mu.slots[id] = d.mu.order.PushFront(&slot{id: id, size: size})
	return nil
}

// admit says whether a chunk is to be written, and takes the room for it.
func (d *disk) admit(id chunkID, size int64) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, known := d.mu.slots[id]
	_, busy := d.mu.busy[id]
	if known || busy {
		return false, nil
	}
	if !d.room(size) {
		return false, errcode.New(errcode.Overloaded, "the cache of %d bytes has no room for a chunk of %d", d.max, size)
	}
	d.mu.bytes += size
	d.mu.busy[id] = struct{}{}
	return true, nil
}

func (d *disk) write(path string, id chunkID, n uint32, data []byte) error {
	f, err := d.fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	h := encodeChunk(id, n, data)
	if _, err = f.WriteAt(h[:], 0); err == nil {
		_, err = f.WriteAt(data, chunkHeader)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// drop removes a chunk whose content turned out to be wrong.
func (d *disk) drop(id chunkID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e, ok := d.mu.slots[id]; ok {
		d.remove(e)
	}
}

// room makes room for size bytes and says whether there is. Locked.
func (d *disk) room(size int64) bool {
	for e := d.mu.order.Back(); e != nil && d.mu.bytes+size > d.max; {
		before := e.Prev()
		if e.Value.(*slot).pins == 0 {
			d.remove(e)
		}
		e = before
	}
	return d.mu.bytes+size <= d.max
}

// remove takes a chunk out. The file goes under the lock, so that it cannot be
// a newer one of that name; to unlink is quick.
func (d *disk) remove(e *list.Element) {
	s := d.mu.order.Remove(e).(*slot)
	delete(d.mu.slots, s.id)
	d.mu.bytes -= s.size
	_ = d.fs.Remove(d.fs.PathJoin(d.dir, s.id.file())) // left behind, it is found by the next start
}

func (d *disk) usage() (chunks int, bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.mu.slots), d.mu.bytes
}
