package segment

import (
	"errors"
	"io"
	iofs "io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// RecoverOptions say what is known about an active segment from elsewhere.
type RecoverOptions struct {
	Options
	Flushed   int64 // the durable flushed offset: everything below it must be there
	MinAppend int64 // ms; append times of what is flushed, as persisted; 0 when none
	MaxAppend int64
}

// Recover opens the active segment <base>.log after a crash or a clean stop and
// returns a writer behind its last valid batch, and how many bytes it cut.
//
// It reads the file up to the first batch that does not verify or does not
// follow the one before. If that lies below Flushed, the segment is damaged:
// Recover changes nothing and returns Corrupt with file and position. Above it
// the rest is a torn write, or the index of a seal that did not finish, and is
// cut: its records come again from the WAL. Valid batches above Flushed are
// kept and made durable, and so is the file's name; their append times are not
// known here, see Widen.
//
// Errors: NotFound, Corrupt, Conflict (a sealed file of that base exists: Adopt
// it), Storage. A failed read is never taken for the end of the log.
func Recover(fs vfs.FS, dir string, o RecoverOptions) (*Writer, int64, error) {
	w := newWriter(fs, dir, o.Options)
	if _, err := fs.Stat(fs.PathJoin(dir, SealedName(o.Base))); err == nil {
		return nil, 0, errcode.New(errcode.Conflict, "segment %s has a sealed file beside it; adopt that one", w.path)
	}
	f, err := fs.Open(w.path, vfs.SequentialReadsOption)
	if errors.Is(err, iofs.ErrNotExist) {
		return nil, 0, errcode.New(errcode.NotFound, "segment %s is missing", w.path)
	}
	if err != nil {
		return nil, 0, errcode.Wrap(errcode.Storage, err, "open segment %s", w.path)
	}
	size, flushedTo, err := w.scan(f, o.Flushed)
	if closeErr := f.Close(); err == nil && closeErr != nil {
		err = errcode.Wrap(errcode.Storage, closeErr, "close segment %s", w.path)
	}
	if err != nil {
		return nil, 0, err
	}
	cut := size - w.mu.info.DataLength
	if err := w.settle(cut, flushedTo); err != nil {
		_ = w.closeFile()
		return nil, 0, err
	}
	w.mu.info.appended(o.MinAppend, o.MaxAppend)
	w.durable = w.mu.info.Next
	return w, cut, nil
}

// scan takes every valid batch of f into the writer's sums. It returns the
// file's size and the position where the flushed part ends.
func (w *Writer) scan(f vfs.File, flushed int64) (size, flushedTo int64, err error) {
	st, err := f.Stat()
	if err != nil {
		return 0, 0, errcode.Wrap(errcode.Storage, err, "stat segment %s", w.path)
	}
	s := NewScanner(w.path, f, 0, st.Size(), nil)
	for err == nil {
		var batch []byte
		var h BatchHeader
		if batch, h, err = s.Next(); err != nil {
			break
		}
		if err = w.follows(&h); err != nil {
			break
		}
		w.sums.add(batch)
		w.publish(&h, 0, 0)
		if h.NextOffset() <= flushed {
			flushedTo = w.mu.info.DataLength
		}
	}
	if errcode.Is(err, errcode.Storage) {
		return 0, 0, err
	}
	if in := &w.mu.info; in.Next < flushed {
		if errors.Is(err, io.EOF) {
			err = errcode.New(errcode.Corrupt, "the file ends")
		}
		return 0, 0, errcode.New(errcode.Corrupt, "segment %s is damaged at position %d: offsets up to %d are valid, but everything below %d was flushed: %w; nothing was changed, repair it from shipped WAL",
			w.path, in.DataLength, in.Next, flushed, err).With("file", w.path).With("position", in.DataLength)
	}
	return st.Size(), flushedTo, nil
}

// settle makes the valid prefix the whole file, and durable.
func (w *Writer) settle(cut, flushedTo int64) error {
	tmp := w.path + cutExt
	if cut > 0 {
		if err := w.cutTo(tmp); err != nil {
			return err
		}
		return w.open()
	}
	if err := w.fs.Remove(tmp); err != nil && !errors.Is(err, iofs.ErrNotExist) {
		return errcode.Wrap(errcode.Storage, err, "remove %s", tmp)
	}
	// The process before may have died between the creation of the file, or the
	// rename of a cut one, and the directory's sync. Without it a power loss
	// would take the file, or bring the uncut one back, and with it what is
	// appended and synced from here on.
	if err := syncDir(w.fs, w.dir); err != nil {
		return err
	}
	if err := w.open(); err != nil {
		return err
	}
	return w.rewrite(flushedTo)
}

// cutTo replaces the file by a copy of its valid prefix. Files cannot be
// truncated here, and a copy cannot be half done: the old name stands until
// the copy is synced and renamed over it.
func (w *Writer) cutTo(tmp string) error {
	n := w.mu.info.DataLength
	if err := vfs.LimitedCopy(w.fs, w.path, tmp, n); err != nil {
		return errcode.Wrap(errcode.Storage, err, "copy %d bytes of segment %s", n, w.path)
	}
	st, err := w.fs.Stat(tmp)
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "stat %s", tmp)
	}
	if st.Size() != n {
		return errcode.New(errcode.Storage, "copy of segment %s has %d bytes, want %d", w.path, st.Size(), n)
	}
	if err := w.fs.Rename(tmp, w.path); err != nil {
		return errcode.Wrap(errcode.Storage, err, "rename %s", tmp)
	}
	return syncDir(w.fs, w.dir)
}

// rewrite writes the bytes above the flushed part once more and syncs them. A
// process that died of a failed fsync may have left pages that read well but
// count as clean, so that no later sync would ever write them; written again,
// with the same bytes, they are dirty.
func (w *Writer) rewrite(from int64) error {
	end := w.mu.info.DataLength
	if from >= end {
		return nil
	}
	buf := make([]byte, min(SyncStep, end-from))
	for pos := from; pos < end; pos += int64(len(buf)) {
		buf = buf[:min(int64(len(buf)), end-pos)]
		if _, err := w.readFile(buf, pos); err != nil {
			return errcode.Wrap(errcode.Storage, err, "read segment %s at position %d", w.path, pos)
		}
		if err := w.write(buf, pos); err != nil {
			return err
		}
	}
	return w.Sync()
}
