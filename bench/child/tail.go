package child

import (
	"slices"
	"strings"
	"sync"
)

// Tail is a writer that keeps the end of what a program prints.
type Tail struct {
	mu sync.Mutex
	b  []byte
}

// Write implements io.Writer.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if len(t.b) > 2*keptBytes {
		t.b = slices.Clone(t.b[len(t.b)-keptBytes:])
	}
	return len(p), nil
}

// Last returns the last lines, 600 bytes at most.
func (t *Tail) Last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.b[max(0, len(t.b)-600):]))
}
