package cold

import (
	"container/list"
	"hash/crc32"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// disk is the directory of chunk files: what is in it, and in which order it
// was used. A file holds the chunks of one request: to make a file costs about
// as much as to write 1 MiB into it.
type disk struct {
	fs  vfs.FS
	dir string
	max int64
	mu  struct {
		sync.Mutex
		chunks map[chunkID]*list.Element // of *slot, for each chunk in the file
		order  *list.List                // the one used last is in front
		bytes  int64                     // of slots and of what is being written
		busy   map[chunkID]struct{}      // first chunk of files that are being written
	}
}

// slot is one chunk file.
type slot struct {
	first chunkID
	size  int64 // of the file
	pins  int   // readers in the file
}

func (s *slot) chunks() int { return chunksIn(s.size - chunkHeader) }

// openDisk takes over what is in dir. Contents are checked when they are read.
func openDisk(fs vfs.FS, dir string, limit int64) (*disk, error) {
	d := &disk{fs: fs, dir: dir, max: limit}
	d.mu.chunks, d.mu.order, d.mu.busy = make(map[chunkID]*list.Element), list.New(), make(map[chunkID]struct{})
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
		first, ok := parseFile(name)
		if !ok {
			continue // not ours
		}
		st, err := fs.Stat(fs.PathJoin(dir, name))
		if err != nil {
			continue // it is a miss
		}
		if size := st.Size() - chunkHeader; size <= 0 || size > maxGet*ChunkSize {
			_ = fs.Remove(fs.PathJoin(dir, name)) // cut or damaged; harmless when it stays
			continue
		}
		all = append(all, found{slot{first: first, size: st.Size()}, st.ModTime()})
	}
	slices.SortFunc(all, func(a, b found) int { return a.used.Compare(b.used) })
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range all {
		d.mu.bytes += all[i].size
		d.list(&all[i].slot)
	}
	d.room(0)
	return d, nil
}

// list puts a file in front, its bytes being counted. Locked.
func (d *disk) list(s *slot) {
	e := d.mu.order.PushFront(s)
	for i := range s.chunks() {
		d.mu.chunks[s.first.plus(i)] = e
	}
}

func (d *disk) has(id chunkID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.mu.chunks[id]
	return ok
}

// get reads a chunk into a block of mem and returns it as a flight that has
// landed, which the caller releases; nil when the chunk is not there. A file that
// does not verify is removed.
func (d *disk) get(id chunkID, mem *blocks) *flight {
	d.mu.Lock()
	e, ok := d.mu.chunks[id]
	if !ok {
		d.mu.Unlock()
		return nil
	}
	s := e.Value.(*slot)
	s.pins++
	d.mu.order.MoveToFront(e)
	d.mu.Unlock()
	f, err := d.read(s, int(id.n-s.first.n), mem)
	d.mu.Lock()
	defer d.mu.Unlock()
	s.pins--
	if err != nil && d.mu.chunks[id] == e {
		d.remove(e)
	}
	return f
}

// read reads the i-th chunk of a file.
func (d *disk) read(s *slot, i int, mem *blocks) (*flight, error) {
	f, err := d.fs.Open(d.fs.PathJoin(d.dir, s.first.file()))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var buf [chunkHeader]byte
	if err := readFull(f, buf[:], 0); err != nil {
		return nil, err
	}
	h, err := parseHeader(buf[:], s.first, s.size-chunkHeader)
	if err != nil {
		return nil, err
	}
	at := int64(i) * ChunkSize
	b := mem.get(int(min(ChunkSize, h.size-at)))
	if err := readFull(f, b.buf, chunkHeader+at); err != nil {
		b.release()
		return nil, err
	}
	if got := crc32.Checksum(b.buf, castagnoli); got != h.sums[i] {
		b.release()
		return nil, errcode.New(errcode.Corrupt, "chunk file %s: chunk %d: crc32c want %08x, got %08x", s.first.file(), i, h.sums[i], got)
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

// put writes adjacent chunks, which begin with first, to a file and lists it. It
// may run for several files at once.
func (d *disk) put(first chunkID, chunks []*flight) error {
	s := &slot{first: first, size: chunkHeader}
	for _, f := range chunks {
		s.size += int64(len(f.data))
	}
	if ok, err := d.admit(s); !ok {
		return err
	}
	// Written where it stays: nobody opens a file that is not listed. Nothing is
	// synced: what a crash tears does not verify.
	path := d.fs.PathJoin(d.dir, first.file())
	err := d.write(path, s, chunks)
	if err != nil {
		_ = d.fs.Remove(path) // left behind, it is found by the next start and does not verify
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.mu.busy, first)
	if err != nil {
		d.mu.bytes -= s.size
		return errcode.Wrap(errcode.Storage, err, "write chunk file %s", path)
	}
	d.list(s)
	return nil
}

// admit says whether a file is to be written, and takes the room for it.
func (d *disk) admit(s *slot) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, busy := d.mu.busy[s.first]; busy {
		return false, nil
	}
	for i := range s.chunks() {
		if _, known := d.mu.chunks[s.first.plus(i)]; known {
			return false, nil // two files for one chunk would only waste room
		}
	}
	if !d.room(s.size) {
		return false, errcode.New(errcode.Overloaded, "the cache of %d bytes has no room for a file of %d", d.max, s.size)
	}
	d.mu.bytes += s.size
	d.mu.busy[s.first] = struct{}{}
	return true, nil
}

func (d *disk) write(path string, s *slot, chunks []*flight) error {
	f, err := d.fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	h := fileHeader{first: s.first, size: s.size - chunkHeader}
	at := int64(chunkHeader)
	for i, c := range chunks {
		if _, err = f.WriteAt(c.data, at); err != nil {
			break
		}
		// After the write, which has just brought the chunk into the processor's cache.
		h.sums[i] = crc32.Checksum(c.data, castagnoli)
		at += int64(len(c.data))
	}
	if err == nil {
		b := h.encode()
		_, err = f.WriteAt(b[:], 0)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// drop removes the file of a chunk whose content turned out to be wrong.
func (d *disk) drop(id chunkID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e, ok := d.mu.chunks[id]; ok {
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

// remove takes a file out. It goes under the lock, so that it cannot be a newer
// one of that name; to unlink is quick.
func (d *disk) remove(e *list.Element) {
	s := d.mu.order.Remove(e).(*slot)
	for i := range s.chunks() {
		if id := s.first.plus(i); d.mu.chunks[id] == e {
			delete(d.mu.chunks, id)
		}
	}
	d.mu.bytes -= s.size
	_ = d.fs.Remove(d.fs.PathJoin(d.dir, s.first.file())) // left behind, it is found by the next start
}

func (d *disk) usage() (chunks int, bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.mu.chunks), d.mu.bytes
}
