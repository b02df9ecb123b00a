package datadir

import (
	"errors"
	iofs "io/fs"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Begin marks the directory as one that has served: everything that a first
// start makes is there and durable. Until then any of it may be missing, for
// the first start may have died at any point; from then on, what is missing was
// lost, and so were records that were answered. It returns the identity as it
// is now.
func Begin(fs vfs.FS, dir string, id Identity) (Identity, error) {
	if id.Begun {
		return id, nil
	}
	begun := id
	begun.Begun = true
	if err := Write(fs, dir, begun); err != nil {
		return id, err
	}
	return begun, nil
}

// MustBeWhole refuses a directory that has served and lost one of its parts:
// the node would start with an empty one in its place, give out offsets a
// second time, and take the records that are missing for ones that never were
// (I3, I4). It looks at names alone, before anything is opened, so that nothing
// empty stands where the lost part is put back.
func MustBeWhole(fs vfs.FS, dir string, id Identity) error {
	for _, part := range []struct{ name, what, suffix string }{
		{"raft", "the metadata", ""},
		{"state", "the local state", ""},
		{"wal", "the write-ahead log", ".wal"},
	} {
		there, err := holds(fs, fs.PathJoin(dir, part.name), part.suffix)
		switch {
		case err != nil:
			return err
		case there:
		case id.Begun:
			return Lost(dir, part.what+" is missing: "+fs.PathJoin(dir, part.name)+" is gone or empty; nothing was changed")
		case part.name == "raft":
			// The first start makes the metadata before the log.
			if _, err := fs.Stat(fs.PathJoin(dir, "wal")); err == nil {
				return Lost(dir, part.what+" is missing: "+fs.PathJoin(dir, part.name)+" is gone or empty, and there is a log; nothing was changed")
			}
		}
	}
	return nil
}

// Lost is the error for a directory that has served and lost what it says.
func Lost(dir, what string) error {
	return errcode.New(errcode.Corrupt, "data directory %s has served and is not whole, %s. Put back what is missing, or restore the node from the archive into another directory (tidemark restore), or, if nothing in it is needed any more, remove the directory %s and start with an empty one", dir, what, dir)
}

// holds says whether dir has a file whose name ends in suffix. No directory
// holds none.
func holds(fs vfs.FS, dir, suffix string) (bool, error) {
	names, err := fs.List(dir)
	if errors.Is(err, iofs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, errcode.Wrap(errcode.Storage, err, "list %s", dir)
	}
	for _, name := range names {
		if strings.HasSuffix(name, suffix) {
			return true, nil
		}
	}
	return false, nil
}
