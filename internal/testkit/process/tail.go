package process

import (
	"strings"
	"sync"
)

// tailBytes is how much of an output is kept.
const tailBytes = 64 << 10

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

// Write implements io.Writer; it never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	// Cut rarely: twice the bound may stand here in between.
	if over := len(t.buf) - tailBytes; over > tailBytes {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

// String returns the end, without white space around it.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.buf[max(0, len(t.buf)-tailBytes):]))
}
