package segment

import (
	"errors"
	"io"
	iofs "io/fs"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// SyncStep is the most bytes that one fsync covers: a long one would make the
// appends to the WAL on the same disk wait.
const SyncStep = 512 << 10

// Options name a segment.
type Options struct {
	Topic     broker.TopicID
	Partition uint32
	Base      int64 // first offset; names the file
	SyncStep  int64 // most bytes that one fsync covers; 0: the constant SyncStep
}

func (o *Options) syncStep() int64 {
	if o.SyncStep > 0 {
		return o.SyncStep
	}
	return SyncStep
}

// Writer appends batches to the active segment of a partition.
//
// Append, Sync, Widen, Park, Seal and Close are for one goroutine at a time;
// ReadAt, Reader, Info and Err are safe beside them. A failed write or sync
// poisons the writer: it takes nothing more (code Poisoned) until the segment
// is closed and recovered, because what the file holds is not known any more.
// What was appended before stays readable.
type Writer struct {
	fs   vfs.FS
	dir  string
	path string // changes once, under mu, by the appending goroutine, which may read it without
	name string // of its readers in messages
	opts Options

	// Of the appending goroutine.
	sums     sums  // of everything appended
	unsynced int64 // bytes written since the last successful sync
	durable  int64 // offset; everything below is synced
	sealed   bool

	mu struct { // what readers see; never held during IO
		sync.RWMutex
		info  Info
		index []byte // only ever appended to, so a reader keeps a prefix of it
		err   error
	}
	file struct { // held for reading during IO, so that Park and Close wait for it
		sync.RWMutex
		f      vfs.File // nil while parked
		closed bool
	}
}

func newWriter(fs vfs.FS, dir string, o Options) *Writer {
	w := &Writer{fs: fs, dir: dir, path: fs.PathJoin(dir, ActiveName(o.Base)), name: o.name(), opts: o, sums: newSums(), durable: o.Base}
	w.mu.info.Base, w.mu.info.Next = o.Base, o.Base
	return w
}

// Create begins an empty active segment in dir, which exists durably (MakeDir).
// The file's name is durable when it returns. An active file of that base that
// is empty is taken over. Errors: Exists, Storage.
func Create(fs vfs.FS, dir string, o Options) (*Writer, error) {
	if o.Base < 0 {
		return nil, errcode.New(errcode.InvalidArgument, "segment base %d is not an offset", o.Base)
	}
	w := newWriter(fs, dir, o)
	for _, path := range []string{w.path, fs.PathJoin(dir, SealedName(o.Base))} {
		switch st, err := fs.Stat(path); {
		case err == nil && path == w.path && st.Size() == 0:
			// Of a Create that did not get to its end, for want of a descriptor
			// to sync the directory with, say: it holds nothing.
		case err == nil:
			return nil, errcode.New(errcode.Exists, "segment %s exists already; recover it instead", path)
		case !errors.Is(err, iofs.ErrNotExist):
			return nil, errcode.Wrap(errcode.Storage, err, "look for segment %s", path)
		}
	}
	if err := w.open(); err != nil {
		return nil, err
	}
	// Without the directory's sync a power loss would take the file, and with
	// it batches that the caller has synced and let go of in the WAL.
	if err := syncDir(fs, dir); err != nil {
		_ = w.closeFile()
		return nil, err
	}
	return w, nil
}

// open opens the file, creating it if missing. The caller is the appender.
func (w *Writer) open() error {
	w.file.Lock()
	defer w.file.Unlock()
	return w.openLocked()
}

func (w *Writer) openLocked() error {
	switch {
	case w.file.closed:
		return errcode.New(errcode.Closed, "segment %s is closed", w.path)
	case w.file.f != nil:
		return nil
	}
	f, err := w.fs.OpenReadWrite(w.path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "open segment %s", w.path)
	}
	// A file that is opened again must still hold what was appended: writing
	// into one that lost its beginning would make a hole.
	st, err := f.Stat()
	if err == nil && st.Size() < w.Size() {
		err = errcode.New(errcode.Corrupt, "it has %d bytes, %d were appended", st.Size(), w.Size())
	}
	if err != nil {
		_ = f.Close()
		return errcode.Wrap(errcode.Storage, err, "open segment %s", w.path)
	}
	w.file.f = f
	return nil
}

// Append adds one batch behind the ones before it; its offsets lie above them
// and its generation is no lower. minMS and maxMS are the leader's times of the
// commits in it, 0 when not known. The batch is verified and only read.
//
// On return it is readable but durable only after Sync, except that every
// Options.SyncStep bytes Append syncs by itself. Errors: Corrupt, Conflict (order),
// TooLarge (data above MaxData), each without effect; Storage, Poisoned.
func (w *Writer) Append(batch []byte, minMS, maxMS int64) error {
	if err := w.usable(); err != nil {
		return err
	}
	h, err := VerifyBatch(batch)
	if err != nil {
		return errcode.Wrap(errcode.Corrupt, err, "append to segment %s", w.path)
	}
	if err := w.follows(&h); err != nil {
		return err
	}
	if err := w.open(); err != nil {
		return err // nothing was written: the writer is as good as before
	}
	if err := w.write(batch, w.mu.info.DataLength); err != nil {
		return err
	}
	w.sums.add(batch)
	w.publish(&h, minMS, maxMS)
	if w.unsynced == 0 {
		w.durable = h.NextOffset()
	}
	return nil
}

// follows checks the order of a batch against what is there.
func (w *Writer) follows(h *BatchHeader) error {
	in := &w.mu.info // only this goroutine writes it
	switch {
	case h.BaseOffset < in.Next:
		return errcode.New(errcode.Conflict, "segment %s: batch at offset %d, at least %d is expected", w.path, h.BaseOffset, in.Next)
	case in.DataLength > 0 && h.Generation < in.LastGeneration:
		return errcode.New(errcode.Conflict, "segment %s: batch at offset %d has generation %d behind %d", w.path, h.BaseOffset, h.Generation, in.LastGeneration)
	case in.DataLength+int64(h.Size) > MaxData:
		return errcode.New(errcode.TooLarge, "segment %s is full: %d bytes; seal it", w.path, in.DataLength)
	}
	return nil
}

// publish shows a batch to readers.
func (w *Writer) publish(h *BatchHeader, minMS, maxMS int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pos := w.mu.info.DataLength
	w.mu.info.note(h)
	w.mu.info.appended(minMS, maxMS)
	w.mu.index = appendEntry(w.mu.index, Entry{Base: h.BaseOffset, MaxTimestamp: w.mu.info.MaxTimestamp, Position: pos, Size: h.Size})
}

// write puts b at pos, with a sync after each step of unsynced bytes. WriteAt
// needs no seek and shows in a logging file system.
func (w *Writer) write(b []byte, pos int64) error {
	w.file.RLock()
	defer w.file.RUnlock()
	step := w.opts.syncStep()
	for len(b) > 0 {
		n := min(int64(len(b)), step-w.unsynced)
		if _, err := w.file.f.WriteAt(b[:n], pos); err != nil {
			return w.poison(errcode.Wrap(errcode.Storage, err, "write %d bytes to segment %s at position %d", n, w.path, pos))
		}
		w.unsynced += n
		if w.unsynced >= step {
			if err := w.syncFile(); err != nil {
				return err
			}
		}
		b, pos = b[n:], pos+n
	}
	return nil
}

// syncFile makes what was written durable. The caller holds file. The lock is
// held across the sync on purpose: only Park and Close wait for it.
func (w *Writer) syncFile() error {
	if w.unsynced == 0 {
		return nil
	}
	if err := w.file.f.SyncData(); err != nil {
		// The kernel may have dropped the pages: another sync would report
		// success about nothing.
		return w.poison(errcode.New(errcode.Poisoned, "sync segment %s: %w; it takes no writes until it is recovered", w.path, err))
	}
	w.unsynced = 0
	return nil
}

// Sync makes everything appended durable. Errors: Poisoned, Closed.
func (w *Writer) Sync() error {
	if err := w.usable(); err != nil {
		return err
	}
	w.file.RLock()
	defer w.file.RUnlock()
	if w.file.closed {
		return errcode.New(errcode.Closed, "segment %s is closed", w.path)
	}
	if err := w.syncFile(); err != nil {
		return err
	}
	w.durable = w.mu.info.Next
	return nil
}

// Durable is the offset below which everything appended is on stable storage.
// It belongs to the appending goroutine.
func (w *Writer) Durable() int64 { return w.durable }

// Widen extends the append times of the segment, for records that Recover kept
// and whose commits come again from the WAL; 0 is not a time.
func (w *Writer) Widen(minMS, maxMS int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.info.appended(minMS, maxMS)
}

// Info describes what was appended so far, or the sealed segment.
func (w *Writer) Info() Info {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.mu.info
}

// Next is the exclusive end of the offsets appended; Base when there are none.
func (w *Writer) Next() int64 { return w.Info().Next }

// Size is the length of the data appended, in bytes.
func (w *Writer) Size() int64 { return w.Info().DataLength }

// Path is the file's name now; Seal changes it.
func (w *Writer) Path() string {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.path
}

// Err returns what poisoned the writer, or nil.
func (w *Writer) Err() error {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.mu.err
}

// IndexBytes is the size of the index so far, which a seal writes behind the data.
func (w *Writer) IndexBytes() int64 {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return int64(len(w.mu.index))
}

// Reader reads what was appended until now. It is valid until Close.
func (w *Writer) Reader() *Reader {
	w.mu.RLock()
	defer w.mu.RUnlock()
	x := Index{w.mu.index[:len(w.mu.index):len(w.mu.index)]}
	return &Reader{name: w.name, r: w, base: w.opts.Base, next: w.mu.info.Next, index: x}
}

// ReadAt reads data that was appended; the file may hold more, but that is
// never shown. It opens a parked file again.
func (w *Writer) ReadAt(p []byte, pos int64) (int, error) {
	left := w.Size() - pos
	if pos < 0 || left <= 0 {
		return 0, io.EOF
	}
	short := int64(len(p)) > left
	if short {
		p = p[:left]
	}
	n, err := w.readFile(p, pos)
	if err == nil && short {
		err = io.EOF
	}
	return n, err
}

func (w *Writer) readFile(p []byte, pos int64) (int, error) {
	w.file.RLock()
	for w.file.f == nil {
		w.file.RUnlock()
		if err := w.open(); err != nil {
			return 0, err
		}
		w.file.RLock()
	}
	defer w.file.RUnlock()
	return w.file.f.ReadAt(p, pos)
}

// Park syncs and gives the file descriptor back; the next use opens the file
// again. It bounds the open files of a node with many partitions.
func (w *Writer) Park() error {
	if err := w.Sync(); err != nil {
		return err
	}
	return w.closeFile()
}

// Close syncs what a sound writer has not synced yet and closes the file.
// Closing twice is fine.
func (w *Writer) Close() error {
	var err error
	if w.Err() == nil && w.unsynced > 0 {
		err = w.Sync()
	}
	err = errors.Join(err, w.closeFile())
	w.file.Lock()
	w.file.closed = true
	w.file.Unlock()
	return err
}

func (w *Writer) closeFile() error {
	w.file.Lock()
	defer w.file.Unlock()
	if w.file.f == nil {
		return nil
	}
	err := w.file.f.Close()
	w.file.f = nil
	return errcode.Wrap(errcode.Storage, err, "close segment %s", w.path)
}

// usable says whether the writer takes appends.
func (w *Writer) usable() error {
	if err := w.Err(); err != nil {
		return errcode.New(errcode.Poisoned, "segment %s takes no writes after a failure; recover it: %w", w.path, err)
	}
	if w.sealed {
		return errcode.New(errcode.Conflict, "segment %s is sealed", w.path)
	}
	return nil
}

// poison remembers the first failure and returns it.
func (w *Writer) poison(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.err == nil {
		w.mu.err = err
	}
	return err
}

// name is how errors call the segment, whatever its file is called now.
func (o *Options) name() string {
	return broker.PartitionID{Topic: o.Topic, Partition: o.Partition}.String() + "/" + ActiveName(o.Base)
}
