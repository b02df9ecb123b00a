package file

import (
	"io"
	"io/fs"
	"os"
)

// tree is what the store asks of the file system below its root. Names are paths
// with slashes, "." is the root itself; errors are those of package os. It is
// safe for concurrent use.
type tree interface {
	Link(from, to string) error // fails with fs.ErrExist when to is taken
	Rename(from, to string) error
	Remove(name string) error // a file, or a directory that is empty
	Mkdir(name string, perm fs.FileMode) error
	MkdirAll(name string, perm fs.FileMode) error
	Stat(name string) (fs.FileInfo, error)
	Lstat(name string) (fs.FileInfo, error)
	OpenFile(name string, flag int, perm fs.FileMode) (handle, error)
	// SameFile says whether both describe one file or directory. That is certain
	// while one of the two is open: numbers of removed files are given out again.
	SameFile(a, b fs.FileInfo) bool
	Close() error
}

// handle is an open file or directory.
type handle interface {
	io.Reader
	io.ReaderAt
	io.Writer
	io.Closer
	Stat() (fs.FileInfo, error)
	Sync() error
	// WriteBack writes n bytes from off on to the disk and waits for that. It makes
	// nothing durable, a Sync does; but it may take an error from the one that
	// comes later, so the file is worth nothing after one.
	WriteBack(off, n int64) error
	ReadDir(n int) ([]fs.DirEntry, error)
}

// rooted is the operating system's tree below one directory. No link inside
// leads out.
type rooted struct{ *os.Root }

func (r rooted) OpenFile(name string, flag int, perm fs.FileMode) (handle, error) {
	f, err := r.Root.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// osFile is an open file of the operating system.
type osFile struct{ *os.File }

func (rooted) SameFile(a, b fs.FileInfo) bool { return os.SameFile(a, b) }
