package file

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"sync"
	"syscall"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

const (
	copyBytes   = 256 << 10 // of one write; ctx is looked at between two
	nameRetries = 16        // how often a directory may vanish under a put

	// An archive may be on the disk that the log is synced to. Left to the sync at
	// the end, a large object would go there in one go, and a sync of the log
	// would wait behind all of it: so it goes there in pieces, and after each
	// one the disk is left to others for as long as that took.
	pieceBytes = 8 * copyBytes
	longestGap = 20 * time.Millisecond
)

var buffers = sync.Pool{New: func() any { return new([copyBytes]byte) }}

// Put implements objstore.Store.
func (s *Store) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, opts objstore.PutOptions) error {
	if err := s.begin(ctx, "put", key); err != nil {
		return err
	}
	if err := s.writable("put", key); err != nil {
		return err
	}
	if err := objstore.CheckBody(key, body, size); err != nil {
		return err
	}
	tmp, err := s.writeTmp(ctx, key, body, size, opts)
	if err != nil {
		return err
	}
	defer s.discard(tmp)
	return s.name(tmp, key, opts.CreateOnly)
}

// writeTmp writes the body to a temporary file and syncs it: the bytes must be
// durable before the object has a name. It leaves nothing behind on an error.
func (s *Store) writeTmp(ctx context.Context, key string, body io.Reader, size int64, opts objstore.PutOptions) (string, error) {
	f, tmp, err := s.createTmp()
	if err != nil {
		return "", err
	}
	check := objstore.NewVerifier(opts)
	if err = s.copyBody(ctx, f, body, key, size, check); err == nil {
		err = check.Check(key)
	}
	if err == nil {
		err = errcode.Wrap(errcode.Transient, f.Sync(), "put %s: sync", key)
	}
	if cerr := f.Close(); err == nil {
		err = errcode.Wrap(errcode.Transient, cerr, "put %s: close", key)
	}
	if err != nil {
		// A file whose sync failed is thrown away, never synced again: a later
		// put writes all bytes anew.
		s.discard(tmp)
		return "", err
	}
	return tmp, nil
}

func (s *Store) copyBody(ctx context.Context, f handle, body io.Reader, key string, size int64, check *objstore.Verifier) error {
	buf := buffers.Get().(*[copyBytes]byte)
	defer buffers.Put(buf)
	onDisk := int64(0)
	for left := size; left > 0; {
		if err := objstore.Ended(ctx, "put", key); err != nil {
			return err
		}
		part := buf[:min(left, copyBytes)]
		if _, err := io.ReadFull(body, part); err != nil {
			return errcode.Wrap(errcode.Internal, err, "put %s: read the body", key)
		}
		check.Add(part)
		if _, err := f.Write(part); err != nil {
			return errcode.Wrap(codeOf(err), err, "put %s: write", key)
		}
		left -= int64(len(part))
		if at := size - left; at-onDisk >= pieceBytes && left > 0 {
			if err := s.pieceToDisk(f, onDisk, at-onDisk); err != nil {
				return errcode.Wrap(codeOf(err), err, "put %s: write to the disk", key)
			}
			onDisk = at
		}
	}
	return nil
}

// pieceToDisk writes a piece of a file to the disk, and rests. All puts of the store
// take turns.
func (s *Store) pieceToDisk(f handle, off, n int64) error {
	s.disk.Lock()
	defer s.disk.Unlock()
	begun := time.Now()
	err := f.WriteBack(off, n)
	time.Sleep(min(time.Since(begun), longestGap))
	return err
}

// name gives the temporary file its key and makes that durable.
func (s *Store) name(tmp, key string, createOnly bool) error {
	for try := 0; ; try++ {
		err := s.root.MkdirAll(path.Dir(key), dirMode)
		if err == nil {
			if createOnly {
				err = s.root.Link(tmp, key)
			} else {
				err = s.root.Rename(tmp, key)
			}
		}
		switch {
		case err == nil:
			return s.settle(path.Dir(key))
		case errors.Is(err, fs.ErrNotExist) && try < nameRetries:
			// A Delete removed the directory, empty for a moment, between the
			// two calls. If the temporary file is gone it ends after the tries.
		case errors.Is(err, fs.ErrExist), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENOTDIR):
			return s.taken(key)
		default:
			return errcode.Wrap(codeOf(err), err, "put %s: name the file", key)
		}
	}
}

// taken returns why key cannot be created. The winner may not have come to its
// syncs yet; the loser does them as well, for "it exists" must hold after a
// crash too.
func (s *Store) taken(key string) error {
	st, err := s.root.Stat(key)
	if err != nil || !st.Mode().IsRegular() {
		return errcode.New(errcode.InvalidArgument, "put %s: the key or a part of it is a directory or an object already; keys must not continue each other with a slash", key)
	}
	if err := s.settle(path.Dir(key)); err != nil {
		return err
	}
	return errcode.New(errcode.Exists, "put %s: the key is taken", key)
}

// settle makes the names in dir durable, and dir's own way from the root where
// that is not known to be: somebody may have made a directory a moment ago and
// not have come to its sync.
func (s *Store) settle(dir string) error {
	d, err := s.syncDir(dir)
	if err != nil || d == nil {
		return err
	}
	info, err := d.Stat()
	if err != nil || dir == "." || s.names.durable(dir, info) {
		_ = d.Close() // it was only read
		return errcode.Wrap(codeOf(err), err, "look at directory %s in the archive %s", dir, s.dir)
	}
	if err := s.settle(path.Dir(dir)); err != nil {
		_ = d.Close()
		return err
	}
	s.names.add(dir, d, info)
	return nil
}

// syncDir makes the entries of a directory durable and returns it, open. A
// directory that is gone has no entries to lose: then there is neither handle
// nor error.
func (s *Store) syncDir(dir string) (handle, error) {
	d, err := s.root.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, errcode.Wrap(codeOf(err), err, "open directory %s in the archive %s", dir, s.dir)
	}
	if err := d.Sync(); err != nil {
		_ = d.Close()
		err := errcode.Wrap(errcode.Transient, err, "sync directory %s in the archive %s", dir, s.dir)
		s.broken.CompareAndSwap(nil, &err)
		return nil, err
	}
	return d, nil
}

// writable returns an error after a directory sync has failed.
func (s *Store) writable(op, key string) error {
	if first := s.broken.Load(); first != nil {
		return errcode.New(errcode.Internal, "%s %s: the archive takes no writes since a sync failed; check the disk and restart: %w", op, key, *first)
	}
	return nil
}

// Delete implements objstore.Store. Directories that become empty go as well.
func (s *Store) Delete(ctx context.Context, keys []string) error {
	if err := objstore.CheckKeys(keys); err != nil {
		return err
	}
	if err := s.writable("delete", "objects"); err != nil {
		return err
	}
	dirs := map[string]bool{}
	for _, key := range keys {
		if err := objstore.Ended(ctx, "delete", key); err != nil {
			return err
		}
		if err := s.remove(key); err != nil {
			return err
		}
		dirs[s.prune(path.Dir(key))] = true
	}
	// A delete that comes back after a crash is harmless for one object, but
	// whoever counts what is left would be wrong: make them durable, each
	// directory once. That holds for objects that were not there as well: who
	// removed them may not have come to the sync.
	for dir := range dirs {
		if err := s.syncLeft(dir); err != nil {
			return err
		}
	}
	return nil
}

// syncLeft makes durable that something below dir is gone: it syncs dir, or the
// lowest directory above it that is left.
func (s *Store) syncLeft(dir string) error {
	for {
		d, err := s.syncDir(dir)
		if err != nil {
			return err
		}
		if d != nil {
			return errcode.Wrap(errcode.Transient, d.Close(), "close directory %s in the archive %s", dir, s.dir)
		}
		if dir == "." {
			return nil
		}
		dir = path.Dir(dir)
	}
}

// remove deletes an object, if there is one.
func (s *Store) remove(key string) error {
	st, err := s.root.Lstat(key)
	if err == nil && !st.IsDir() {
		err = s.root.Remove(key)
	} // a directory is no object
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return errcode.Wrap(errcode.Internal, s.alive(), "delete %s", key)
	}
	return errcode.Wrap(codeOf(err), err, "delete %s", key)
}

// prune removes dir and the directories above it as long as they are empty, and
// returns the lowest one that is left.
func (s *Store) prune(dir string) string {
	for dir != "." && s.root.Remove(dir) == nil {
		s.names.drop(dir)
		dir = path.Dir(dir)
	}
	return dir
}

var _ objstore.Store = (*Store)(nil)
