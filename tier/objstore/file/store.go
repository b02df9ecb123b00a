package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

const (
	dirMode  = 0o750
	fileMode = 0o640
)

// Options of Open. The zero value is good.
type Options struct {
	Logger *slog.Logger     // nil: silent
	Now    func() time.Time // nil: the system's clock
	TmpAge time.Duration    // how long a temporary file rests before Open removes it; 0 = 1 h
}

// Store keeps objects as files under one directory.
type Store struct {
	dir    string
	root   tree
	opts   Options
	names  names
	broken atomic.Pointer[error] // the directory sync that failed
	disk   sync.Mutex            // held while a piece goes to the disk
}

// Open opens the archive in dir, which is made, durably, if it does not exist.
func Open(dir string, opts Options) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, errcode.Wrap(errcode.InvalidArgument, err, "open archive directory %s", dir)
	}
	if err := makeRoot(dir); err != nil {
		return nil, errcode.Wrap(codeOf(err), err, "make archive directory %s", dir)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, errcode.Wrap(codeOf(err), err, "open archive directory %s", dir)
	}
	return openTree(rooted{root}, dir, opts)
}

// openTree opens the archive in a tree, which is closed with it. dir is for
// messages.
func openTree(root tree, dir string, opts Options) (*Store, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.TmpAge == 0 {
		opts.TmpAge = time.Hour
	}
	s := &Store{dir: dir, root: root, opts: opts, names: names{same: root.SameFile, most: maxNames}}
	if err := s.openTmp(); err != nil {
		_ = root.Close() // why it does not open is told
		return nil, err
	}
	return s, nil
}

// makeRoot makes dir and what is missing above it, and syncs each directory
// that got a new entry: an archive whose root vanishes with the power keeps
// nothing, however well its files were synced.
func makeRoot(dir string) error {
	var missing []string
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(d); err == nil || !errors.Is(err, fs.ErrNotExist) || d == filepath.Dir(d) {
			break
		}
		missing = append(missing, d)
	}
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return err
	}
	for _, d := range missing {
		f, err := os.Open(filepath.Dir(d))
		if err != nil {
			return err
		}
		err = f.Sync()
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := s.begin(ctx, "head", key); err != nil {
		return objstore.Info{}, err
	}
	st, err := s.root.Stat(key)
	if err != nil || !st.Mode().IsRegular() {
		return objstore.Info{}, s.readError("head", key, err)
	}
	return info(key, st), nil
}

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, key string) (io.ReadCloser, objstore.Info, error) {
	f, st, err := s.open(ctx, "get", key)
	if err != nil {
		return nil, objstore.Info{}, err
	}
	return objstore.ExactBody(ctx, f, key, st.Size()), info(key, st), nil
}

// GetRange implements objstore.Store.
func (s *Store) GetRange(ctx context.Context, key string, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errcode.New(errcode.InvalidArgument, "get range of %s: offset %d is negative", key, off)
	}
	f, st, err := s.open(ctx, "get range of", key)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	want := min(int64(len(p)), st.Size()-off)
	if want <= 0 {
		return 0, nil
	}
	n, err := f.ReadAt(p[:want], off)
	if err != nil {
		return n, errcode.Wrap(errcode.Transient, err, "get range of %s: bytes %d to %d of %d", key, off, off+want, st.Size())
	}
	return n, nil
}

// Capabilities implements objstore.Store.
func (s *Store) Capabilities() objstore.Capabilities {
	u := url.URL{Scheme: "file", Path: s.dir}
	return objstore.Capabilities{Kind: "file", URL: u.String(), CreateOnly: true}
}

// Close implements objstore.Store.
func (s *Store) Close() error {
	s.names.close()
	return s.root.Close()
}

// begin checks what every call on a key checks.
func (s *Store) begin(ctx context.Context, op, key string) error {
	if err := objstore.CheckKey(key); err != nil {
		return err
	}
	return objstore.Ended(ctx, op, key)
}

// open opens the object's file for reading. A directory is no object.
func (s *Store) open(ctx context.Context, op, key string) (handle, os.FileInfo, error) {
	if err := s.begin(ctx, op, key); err != nil {
		return nil, nil, err
	}
	// Without O_NONBLOCK a named pipe that somebody put here would hang the open.
	f, err := s.root.OpenFile(key, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, s.readError(op, key, err)
	}
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, nil, s.readError(op, key, err)
	}
	return f, st, nil
}

// readError gives the error of looking for an object its code. No error means
// that something other than a regular file is there, which is no object.
func (s *Store) readError(op, key string, err error) error {
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		return errcode.Wrap(codeOf(err), err, "%s %s", op, key)
	}
	if alive := s.alive(); alive != nil {
		return errcode.Wrap(errcode.Internal, alive, "%s %s", op, key)
	}
	return errcode.New(errcode.NotFound, "%s %s: no such object", op, key)
}

// alive returns an error when the directory is no archive any more, and so
// cannot say that an object is missing.
func (s *Store) alive() error {
	if _, err := s.root.Stat(tmpDir); err != nil {
		return fmt.Errorf("the archive directory %s has lost its %s: was it removed or unmounted? Put it back and restart: %w", s.dir, tmpDir, err)
	}
	return nil
}

func info(key string, st os.FileInfo) objstore.Info {
	return objstore.Info{Key: key, Size: st.Size(), Modified: st.ModTime()}
}

// codeOf returns the code of an error of the file system.
func codeOf(err error) errcode.Code {
	var coded *errcode.Error
	switch {
	case errors.As(err, &coded):
		return coded.Code
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return errcode.Denied
	case errors.Is(err, syscall.ENAMETOOLONG):
		return errcode.InvalidArgument
	default: // EIO, ENOSPC, EDQUOT, EMFILE, ESTALE: it may pass
		return errcode.Transient
	}
}
