//go:build !linux

package wal

import "github.com/cockroachdb/pebble/v2/vfs"

// bypassCache says that writes cannot go around the page cache here.
func bypassCache(vfs.File) bool { return false }

// dropCache does nothing here.
func dropCache(vfs.File) {}
