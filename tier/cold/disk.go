package cold

import (
	"container/list"
	"io"
	"slices"
	"strings"
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
		bytes int64
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
	d.mu.slots, d.mu.order = make(map[chunkID]*list.Element), list.New()
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
		if strings.HasPrefix(name, tempPrefix) {
			_ = fs.Remove(fs.PathJoin(dir, name)) // half written before a stop; harmless when it stays
			continue
		}
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

// get reads a chunk into buf, which is replaced when it is too small, and
// returns the chunk's bytes and the buffer that holds them. A file that does not
// verify is removed.
func (d *disk) get(id chunkID, n uint32, buf []byte) (data, used []byte, ok bool) {
	d.mu.Lock()
	e, ok := d.mu.slots[id]
	if !ok {
		d.mu.Unlock()
		return nil, buf, false
	}
	s := e.Value.(*slot)
	s.pins++
	d.mu.order.MoveToFront(e)
	d.mu.Unlock()
	data, buf, err := d.read(s, n, buf)
	d.mu.Lock()
	defer d.mu.Unlock()
	s.pins--
	if err != nil {
		if d.mu.slots[id] == e {
			d.remove(e)
		}
		return nil, buf, false
	}
	return data, buf, true
}

func (d *disk) read(s *slot, n uint32, buf []byte) (data, used []byte, err error) {
	if s.size < chunkHeader || s.size > chunkHeader+ChunkSize {
		return nil, buf, errcode.New(errcode.Corrupt, "chunk %s has %d bytes", s.id.file(), s.size)
	}
	f, err := d.fs.Open(d.fs.PathJoin(d.dir, s.id.file()))
	if err != nil {
		return nil, buf, err
	}
	defer f.Close()
	if int64(cap(buf)) < s.size {
		buf = make([]byte, s.size)
	}
	buf = buf[:s.size]
	if k, err := f.ReadAt(buf, 0); k < len(buf) {
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		return nil, buf, err
	}
	data, err = decodeChunk(buf, s.id, n)
	return data, buf, err
}

// put writes a chunk and lists it. It is called from one goroutine.
func (d *disk) put(id chunkID, n uint32, data []byte) error {
	size := int64(chunkHeader + len(data))
	d.mu.Lock()
	_, known := d.mu.slots[id]
	fits := known || d.room(size)
	d.mu.Unlock()
	if known {
		return nil
	}
	if !fits {
		return errcode.New(errcode.Overloaded, "the cache of %d bytes has no room for a chunk of %d", d.max, size)
	}
	// Written under another name first, so that no reader ever opens half a
	// file. Nothing is synced: a file that a crash tears does not verify.
	temp := d.fs.PathJoin(d.dir, tempPrefix+id.file())
	if err := d.write(temp, id, n, data); err != nil {
		_ = d.fs.Remove(temp) // the next start removes it otherwise
		return errcode.Wrap(errcode.Storage, err, "write chunk %s", temp)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.fs.Rename(temp, d.fs.PathJoin(d.dir, id.file())); err != nil {
		_ = d.fs.Remove(temp)
		return errcode.Wrap(errcode.Storage, err, "rename chunk %s", temp)
	}
	d.mu.slots[id] = d.mu.order.PushFront(&slot{id: id, size: size})
	d.mu.bytes += size
	return nil
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
