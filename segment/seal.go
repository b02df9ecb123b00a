package segment

import (
	"errors"
	"hash/crc32"
	"io"
	iofs "io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Seal writes index and footer, makes the file durable and renames it to
// <base>.seg, durably too. The writer takes no more appends, and stays readable
// until Close. A crash at any point leaves either a .log, which Recover cuts
// back to its batches, or a complete .seg, which Adopt takes over.
//
// Errors: Conflict (no batches, or sealed already), without effect; Storage,
// Poisoned.
func (w *Writer) Seal() (Info, error) {
	if err := w.usable(); err != nil {
		return Info{}, err
	}
	in := w.Info()
	if in.DataLength == 0 {
		return Info{}, errcode.New(errcode.Conflict, "segment %s holds no records, there is nothing to seal", w.path)
	}
	if err := w.open(); err != nil {
		return Info{}, err
	}
	in.DataSHA256 = w.sums.sha()
	in.IndexLength = int64(len(w.mu.index))
	in.FooterPosition, in.FooterLength = in.DataLength+in.IndexLength, FooterSize
	in.Bytes = in.FooterPosition + in.FooterLength
	f := in.footer(&w.opts, crc32.Checksum(w.mu.index, castagnoli))
	footer := appendFooter(nil, &f)
	if err := w.write(w.mu.index, in.DataLength); err != nil {
		return Info{}, err
	}
	if err := w.write(footer, in.FooterPosition); err != nil {
		return Info{}, err
	}
	w.sums.add(w.mu.index)
	w.sums.add(footer)
	in.FileSHA256, in.FileCRC32C = w.sums.sha(), w.sums.crc
	if err := w.rename(); err != nil {
		return Info{}, w.poison(err)
	}
	w.sealed, w.durable = true, in.Next
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.info = in
	return in, nil
}

// rename gives the complete file its sealed name. The file is synced first: a
// name that ends in .seg promises that the content is there.
func (w *Writer) rename() error {
	w.file.Lock()
	defer w.file.Unlock()
	if err := w.file.f.Sync(); err != nil {
		return errcode.New(errcode.Poisoned, "sync segment %s: %w; it takes no writes until it is recovered", w.path, err)
	}
	w.unsynced = 0
	sealed := w.fs.PathJoin(w.dir, SealedName(w.opts.Base))
	if err := w.fs.Rename(w.path, sealed); err != nil {
		return errcode.Wrap(errcode.Storage, err, "rename segment %s", w.path)
	}
	w.mu.Lock()
	w.path = sealed
	w.mu.Unlock()
	return syncDir(w.fs, w.dir)
}

// Adopt takes over a sealed segment that nothing else describes: a crash came
// between the rename of Seal and the moment its Info was recorded. It reads the
// whole file, checks it against its footer, and makes name and content durable.
// An active file of the same base, which a crash may bring back, is removed.
// Errors: NotFound, Corrupt, UnsupportedVersion, Storage, Poisoned; nothing is
// changed then.
func Adopt(fs vfs.FS, dir string, o Options) (Info, error) {
	path := fs.PathJoin(dir, SealedName(o.Base))
	f, err := fs.Open(path, vfs.SequentialReadsOption)
	if errors.Is(err, iofs.ErrNotExist) {
		return Info{}, errcode.New(errcode.NotFound, "segment %s is missing", path)
	}
	if err != nil {
		return Info{}, errcode.Wrap(errcode.Storage, err, "open segment %s", path)
	}
	in, err := adopt(path, f, &o)
	if closeErr := f.Close(); err == nil && closeErr != nil {
		err = errcode.Wrap(errcode.Storage, closeErr, "close segment %s", path)
	}
	if err != nil {
		return Info{}, err
	}
	for _, name := range []string{ActiveName(o.Base), ActiveName(o.Base) + cutExt} {
		if err := fs.Remove(fs.PathJoin(dir, name)); err != nil && !errors.Is(err, iofs.ErrNotExist) {
			return Info{}, errcode.Wrap(errcode.Storage, err, "remove %s", name)
		}
	}
	return in, syncDir(fs, dir)
}

func adopt(path string, f vfs.File, o *Options) (Info, error) {
	st, err := f.Stat()
	if err != nil {
		return Info{}, errcode.Wrap(errcode.Storage, err, "stat segment %s", path)
	}
	footer, _, err := readTail(path, f, st.Size())
	if err != nil {
		return Info{}, err
	}
	if footer.Topic != o.Topic || footer.Partition != o.Partition || footer.Base != o.Base {
		return Info{}, errcode.New(errcode.Corrupt, "segment %s: its footer says topic %s, partition %d, first offset %d", path, footer.Topic, footer.Partition, footer.Base)
	}
	in := infoOf(&footer)
	if err := sum(path, f, &in); err != nil {
		return Info{}, err
	}
	if in.DataSHA256 != footer.DataSHA256 {
		return Info{}, errcode.New(errcode.Corrupt, "segment %s: data sha256 want %x, got %x", path, footer.DataSHA256, in.DataSHA256)
	}
	if err := f.Sync(); err != nil {
		return Info{}, errcode.New(errcode.Poisoned, "sync segment %s: %w; its partition takes no writes until a restart", path, err)
	}
	return in, nil
}

// sum reads the whole file and sets the three checksums in in, whose lengths
// are known.
func sum(name string, r io.ReaderAt, in *Info) error {
	s := newSums()
	buf := make([]byte, min(scanBuffer, in.Bytes))
	for _, end := range []int64{in.DataLength, in.Bytes} {
		for s.n < end {
			b := buf[:min(int64(len(buf)), end-s.n)]
			if err := readFull(name, r, b, s.n); err != nil {
				return err
			}
			s.add(b)
		}
		if end == in.DataLength {
			in.DataSHA256 = s.sha()
		}
	}
	in.FileSHA256, in.FileCRC32C = s.sha(), s.crc
	return nil
}
