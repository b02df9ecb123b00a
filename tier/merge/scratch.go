package merge

import "github.com/cockroachdb/pebble/v2/vfs"

// scratch is a file system whose files are not synced. Nothing that is written
// through it is needed after a stop, and a sync would make the log on the same
// disk wait.
type scratch struct{ vfs.FS }

// OpenReadWrite implements vfs.FS.
func (s scratch) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := s.FS.OpenReadWrite(name, c, o...)
	if err != nil {
		return nil, err
	}
	return unsynced{f}, nil
}

// OpenDir implements vfs.FS.
func (s scratch) OpenDir(name string) (vfs.File, error) {
	f, err := s.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return unsynced{f}, nil
}

type unsynced struct{ vfs.File }

func (unsynced) Sync() error     { return nil }
func (unsynced) SyncData() error { return nil }
