package segment

import (
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// A scratch that was shrunk keeps small memory, drops large, and holds nothing of
// the records that it decoded.
func TestScratchShrinks(t *testing.T) {
	for size, left := range map[int]int{99: 99, 100: 100, 101: 0} {
		s := Scratch{plain: make([]byte, size), headers: make([]broker.Header, 1)}
		if s.Shrink(100); cap(s.plain) != left || s.headers != nil {
			t.Errorf("%d bytes: %d are left, headers %v", size, cap(s.plain), s.headers)
		}
	}
}
