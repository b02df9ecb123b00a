package wal

import (
	"io"
	"sync"
)

// tail keeps the last bytes of the current file in memory, as they were written.
// Who follows the log would otherwise read from the disk what went around the page
// cache a moment ago, on the disk that the log is synced to.
type tail struct {
	mu       sync.Mutex
	ring     []byte // the byte at offset o of the file is at o modulo its length
	file     uint64 // first LSN of the file
	from, to int64  // of the file; what the ring has
}

// lockedCopy bounds what is copied under the tail's lock: a write waits for it.
const lockedCopy = 64 << 10

// begin empties the tail for another file, which is written from an offset on.
func (t *tail) begin(file uint64, at int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.file, t.from, t.to = file, at, at
}

// add takes what was written at an offset of the file, behind what came before.
func (t *tail) add(b []byte, at int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	size := int64(len(t.ring))
	if int64(len(b)) > size {
		t.from, t.to = at+int64(len(b)), at+int64(len(b))
		return
	}
	n := copy(t.ring[at%size:], b)
	copy(t.ring, b[n:])
	t.to = at + int64(len(b))
	t.from = max(t.from, t.to-size)
}

// read copies what the tail has of a file from an offset on, up to len(p); end says
// that nothing was written behind it.
func (t *tail) read(file uint64, p []byte, off int64) (n int, end bool) {
	for n < len(p) {
		k, last := t.piece(file, p[n:min(len(p), n+lockedCopy)], off+int64(n))
		if n += k; k == 0 || last {
			return n, last
		}
	}
	return n, false
}

func (t *tail) piece(file uint64, p []byte, off int64) (n int, end bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if file != t.file || off < t.from || off >= t.to {
		return 0, file == t.file && off == t.to
	}
	p = p[:min(int64(len(p)), t.to-off)]
	n = copy(p, t.ring[off%int64(len(t.ring)):])
	n += copy(p[n:], t.ring)
	return n, off+int64(n) == t.to
}

// tailed reads a file of the log, as far as it can out of the tail.
type tailed struct {
	file  uint64
	tail  *tail
	inner io.ReaderAt
}

// ReadAt implements io.ReaderAt. A file that is being written ends where the tail
// does: what lies behind it means nothing.
func (r tailed) ReadAt(p []byte, off int64) (int, error) {
	n, end := r.tail.read(r.file, p, off)
	switch {
	case n == len(p):
		return n, nil
	case n > 0 && end:
		return n, io.EOF
	}
	k, err := r.inner.ReadAt(p[n:], off+int64(n))
	return n + k, err
}
