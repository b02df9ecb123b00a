//go:build !linux

package file

// WriteBack implements handle: it leaves all of it to Sync.
func (osFile) WriteBack(int64, int64) error { return nil }
