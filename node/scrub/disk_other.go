//go:build !linux

package scrub

import "github.com/cockroachdb/pebble/v2/vfs"

// forgetPages does nothing where there is no way to say it.
func forgetPages(vfs.File) {}
