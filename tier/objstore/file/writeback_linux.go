package file

import (
	"errors"

	"golang.org/x/sys/unix"
)

// WriteBack implements handle. A file system that cannot do it leaves all of it
// to Sync.
func (f osFile) WriteBack(off, n int64) error {
	const flags = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	err := unix.SyncFileRange(int(f.Fd()), off, n, flags)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}
