package reflog

import (
	"fmt"
	"os"
)

// zeroPiece is how much Prepare writes at once.
const zeroPiece = 1 << 20

// Prepare opens path for writing and makes its first size bytes written and
// synced, so that later syncs inside them write data only: no block
// allocation, no file size, no journal entry. A file that is already long
// enough is used as it is; its content does not matter.
func Prepare(path string, size int64) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open reference log: %w", err)
	}
	if err := fill(f, size); err != nil {
		_ = f.Close() // the write error is the one to report
		return nil, fmt.Errorf("prepare reference log %s of %d bytes: %w", path, size, err)
	}
	return f, nil
}

// fill writes zeros from the file's end up to size and syncs the file.
func fill(f *os.File, size int64) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	zeros := make([]byte, zeroPiece)
	for at := st.Size(); at < size; {
		n := min(int64(len(zeros)), size-at)
		if _, err := f.WriteAt(zeros[:n], at); err != nil {
			return err
		}
		at += n
	}
	return f.Sync()
}
