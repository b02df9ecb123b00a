package cold

import (
	"container/list"
	"errors"
	"io"
	iofs "io/fs"
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
		bytes  int64                     // of slots, strays and of what is being written
		busy   map[chunkID]struct{}      // first chunk of files that are being written
		strays map[chunkID]int64         // files that could not be removed, by first chunk: bytes
		heat   heat
	}
}

// slot is one chunk file.
type slot struct {
	first   chunkID
	size    int64 // of the file
	pins    int   // readers in the file or on their way to it
	checked bool  // the trailer was found good
}

func (s *slot) chunks() int { return chunksIn(s.size - chunkTrailer) }

// openDisk takes over what is in dir. Contents are checked when they are read.
func openDisk(fs vfs.FS, dir string, limit int64) (*disk, error) {
	d := &disk{fs: fs, dir: dir, max: limit}
	d.mu.chunks, d.mu.order, d.mu.busy = make(map[chunkID]*list.Element), list.New(), make(map[chunkID]struct{})
	d.mu.strays, d.mu.heat = make(map[chunkID]int64), newHeat(limit)
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
		if size := st.Size() - chunkTrailer; size <= 0 || size > maxGet*ChunkSize {
			// Cut or damaged. It counts until it is gone.
			if fs.Remove(fs.PathJoin(dir, name)) != nil {
				d.mu.strays[first] = st.Size()
				d.mu.bytes += st.Size()
			}
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
	_, _ = d.room(0, hottest) // nothing is to be added
	return d, nil
}

// list puts a file in front, its bytes being counted. Locked.
func (d *disk) list(s *slot) {
	e := d.mu.order.PushFront(s)
	for i := range s.chunks() {
		d.mu.chunks[s.first.plus(i)] = e
	}
}

// pin keeps the file of a chunk from being evicted until unpin; nil when the
// chunk is not there.
func (d *disk) pin(id chunkID) *slot {
	d.mu.Lock()
	defer d.mu.Unlock()
	e, ok := d.mu.chunks[id]
	if !ok {
		return nil
	}
	s := e.Value.(*slot)
	s.pins++
	return s
}

func (d *disk) unpin(s *slot) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.pins--
}

func (d *disk) has(id chunkID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.mu.chunks[id]
	return ok
}

// get reads a chunk into a block of mem and returns it as a flight that has
// landed, which the caller releases; nil when the chunk is not there. A file that
// is not what its name says is removed. The content is for the reader to verify.
func (d *disk) get(id chunkID, mem *blocks) *flight {
	d.mu.Lock()
	e, ok := d.mu.chunks[id]
	if !ok {
		d.mu.Unlock()
		return nil
	}
	s := e.Value.(*slot)
	s.pins++
	checked := s.checked
	d.mu.order.MoveToFront(e)
	d.mu.heat.touch(id)
	d.mu.Unlock()
	f, err := d.read(s, int(id.n-s.first.n), checked, mem)
	d.mu.Lock()
	defer d.mu.Unlock()
	s.pins--
	s.checked = err == nil
	if err != nil && d.mu.chunks[id] == e {
		d.remove(e)
	}
	return f
}

// read reads the i-th chunk of a file.
func (d *disk) read(s *slot, i int, checked bool, mem *blocks) (*flight, error) {
	f, err := d.fs.Open(d.fs.PathJoin(d.dir, s.first.file()))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size := s.size - chunkTrailer
	if !checked {
		var buf [chunkTrailer]byte
		if err := readFull(f, buf[:], size); err != nil {
			return nil, err
		}
		if err := parseTrailer(buf[:], s.first, size); err != nil {
			return nil, err
		}
	}
	at := int64(i) * ChunkSize
	b := mem.get(int(min(ChunkSize, size-at)))
	if err := readFull(f, b.buf, at); err != nil {
		b.release()
		return nil, err
	}
	out := &flight{done: landed, data: b.buf, block: b, kept: true}
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

// errBroken says that a download ended before its file was whole, or brought what
// does not verify: nothing that the disk is to blame for.
var errBroken = errcode.New(errcode.Canceled, "the download did not become a whole file")

// put writes adjacent chunks of size bytes, which begin with first, to a file as
// they land, and lists it. It may run for several files at once.
func (d *disk) put(first chunkID, size int64, chunks []*flight) error {
	s := &slot{first: first, size: size + chunkTrailer, checked: true}
	if ok, err := d.admit(s); !ok {
		return err
	}
	// Written where it stays: nobody opens a file that is not listed. Nothing is
	// synced: what a crash tears has no trailer, or batches that do not verify.
	path := d.fs.PathJoin(d.dir, first.file())
	err := d.write(path, s, chunks)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.mu.busy, first)
	if err != nil {
		d.unlink(s)
		if errors.Is(err, errBroken) {
			return err
		}
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
	if size, stray := d.mu.strays[s.first]; stray {
		delete(d.mu.strays, s.first) // it is overwritten now
		d.mu.bytes -= size
	}
	hot := uint8(0)
	for i := range s.chunks() {
		hot = max(hot, d.mu.heat.touch(s.first.plus(i)))
	}
	ok, err := d.room(s.size, hot)
	if !ok {
		return false, err
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
	at := int64(0)
	for _, c := range chunks {
		if <-c.done; !c.fit() {
			err = errBroken
			break
		}
		if _, err = f.WriteAt(c.data, at); err != nil {
			break
		}
		at += int64(len(c.data))
	}
	// What a reader has found to be bad meanwhile; one that finds it later takes the
	// file away.
	if err == nil && slices.ContainsFunc(chunks, func(c *flight) bool { return !c.fit() }) {
		err = errBroken
	}
	if err == nil {
		t := fileTrailer{first: s.first, size: at}
		b := t.encode()
		_, err = f.WriteAt(b[:], at)
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

// room makes room for size bytes that are read as often as hot says, and says
// whether there is. No error: what is there is read more often. Files that go are
// those used longest ago among those that are not read more often. Locked.
func (d *disk) room(size int64, hot uint8) (bool, error) {
	strays := d.mu.strays
	d.mu.strays = make(map[chunkID]int64)
	for first, n := range strays {
		d.unlink(&slot{first: first, size: n})
	}
	need := d.mu.bytes + size - d.max
	var out []*list.Element
	declined := false
	for e, passed := d.mu.order.Back(), 0; e != nil && need > 0 && passed < maxPassed; e = e.Prev() {
		s := e.Value.(*slot)
		switch {
		case s.pins > 0:
		case hot < hottest && d.hotness(s) > hot:
			declined = true
			passed++
		default:
			out = append(out, e)
			need -= s.size
		}
	}
	if need > 0 && size > 0 {
		if declined && size <= d.max {
			return false, nil
		}
		return false, errcode.New(errcode.Overloaded, "the cache of %d bytes has no room for a file of %d beside those that are being read", d.max, size)
	}
	for _, e := range out {
		d.remove(e)
	}
	return d.mu.bytes+size <= d.max, nil
}

// hotness is how often the chunk of a file that is read most is read. Locked.
func (d *disk) hotness(s *slot) (hot uint8) {
	for i := range s.chunks() {
		hot = max(hot, d.mu.heat.of(s.first.plus(i)))
	}
	return hot
}

// shrink removes files, the one used longest ago first, until bytes are free, and
// returns how many are.
func (d *disk) shrink(bytes int64) (freed int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.mu.bytes // what cannot be removed stays counted
	for e := d.mu.order.Back(); e != nil && was-d.mu.bytes < bytes; {
		before := e.Prev()
		if s := e.Value.(*slot); s.pins == 0 {
			d.remove(e)
		}
		e = before
	}
	return was - d.mu.bytes
}

// remove takes a file out. It goes under the lock, so that it cannot be a newer
// one of that name; to unlink is quick. Locked.
func (d *disk) remove(e *list.Element) {
	s := d.mu.order.Remove(e).(*slot)
	for i := range s.chunks() {
		if id := s.first.plus(i); d.mu.chunks[id] == e {
			delete(d.mu.chunks, id)
		}
	}
	d.unlink(s)
}

// unlink removes a file whose bytes are counted. One that stays counts on, and is
// tried again when room is needed. Locked.
func (d *disk) unlink(s *slot) {
	err := d.fs.Remove(d.fs.PathJoin(d.dir, s.first.file()))
	if err != nil && !errors.Is(err, iofs.ErrNotExist) {
		d.mu.strays[s.first] = s.size
		return
	}
	d.mu.bytes -= s.size
}

func (d *disk) usage() (chunks int, bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.mu.chunks), d.mu.bytes
}
