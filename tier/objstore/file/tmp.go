package file

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// tmpDir holds the temporary files. '~' cannot be in a key, so no object and no
// list ever meets it; one directory for all means that cleaning up walks no tree.
const tmpDir = "~tmp"

// openTmp makes tmpDir, tries whether the file system can link, and removes what
// crashes left behind.
func (s *Store) openTmp() error {
	if err := s.root.Mkdir(tmpDir, dirMode); err == nil {
		if err := s.settle("."); err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return errcode.Wrap(codeOf(err), err, "make %s in the archive directory %s", tmpDir, s.dir)
	}
	if err := s.tryLink(); err != nil {
		return err
	}
	return s.sweep(s.opts.Now().Add(-s.opts.TmpAge))
}

// tryLink returns an error when the file system has no hard links: without them
// there is no create-only put, and without that no fencing.
func (s *Store) tryLink() error {
	f, name, err := s.createTmp()
	if err != nil {
		return err
	}
	f.Close()
	defer s.discard(name)
	linked := name + ".link"
	if err := s.root.Link(name, linked); err != nil {
		return errcode.New(errcode.InvalidArgument, "the file system of the archive directory %s refuses hard links, which create-only puts need; choose another one: %w", s.dir, err)
	}
	if err := s.root.Remove(linked); err != nil {
		return errcode.Wrap(codeOf(err), err, "remove %s in the archive directory %s", linked, s.dir)
	}
	return nil
}

// createTmp makes a new temporary file and returns it with its path.
func (s *Store) createTmp() (handle, string, error) {
	name := tmpDir + "/" + rand.Text()
	f, err := s.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return nil, "", errcode.Wrap(codeOf(err), err, "make a temporary file in %s/%s", s.dir, tmpDir)
	}
	return f, name, nil
}

// discard removes a temporary file. After a rename there is none, and one that
// cannot be removed is swept at a later Open.
func (s *Store) discard(name string) { _ = s.root.Remove(name) }

// sweep removes the temporary files last written before the given time. A put
// that is still going on writes all the time; one that rested that long and
// comes back fails when it links, and is repeated.
func (s *Store) sweep(before time.Time) error {
	d, err := s.root.OpenFile(tmpDir, os.O_RDONLY, 0)
	if err != nil {
		return errcode.Wrap(codeOf(err), err, "open %s/%s", s.dir, tmpDir)
	}
	defer d.Close()
	removed := 0
	for {
		names, err := d.ReadDir(readNames)
		for _, n := range names {
			name := tmpDir + "/" + n.Name()
			st, err := s.root.Lstat(name)
			if err != nil || !st.ModTime().Before(before) {
				continue
			}
			if s.root.Remove(name) == nil {
				removed++
			}
		}
		if err != nil || len(names) == 0 {
			break
		}
	}
	if removed > 0 {
		s.opts.Logger.Info("removed temporary files that a crash left in the archive directory", "dir", s.dir, "files", removed)
	}
	return nil
}
