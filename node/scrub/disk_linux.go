package scrub

import (
	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"
)

// forgetPages takes a file out of the page cache: before it is read, so that the
// disk answers and not memory, and afterwards, so that what nobody reads does not
// drive out what is read. It is advice; a file system may ignore it.
func forgetPages(f vfs.File) {
	if fd := f.Fd(); fd != vfs.InvalidFd {
		_ = unix.Fadvise(int(fd), 0, 0, unix.FADV_DONTNEED) // advice
	}
}
