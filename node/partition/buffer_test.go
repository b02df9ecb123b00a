package partition

import "testing"

// A buffer that was shrunk has given back what the archive lent, keeps small
// memory and drops large.
func TestBufferShrinks(t *testing.T) {
	for size, left := range map[int]int{99: 99, 100: 100, 101: 0} {
		given := 0
		b := Buffer{data: make([]byte, size), run: make([][]byte, 1), lent: func() { given++ }}
		b.Shrink(100)
		b.Release()
		if cap(b.data) != left || b.run != nil || given != 1 {
			t.Errorf("%d bytes: %d are left, %d batches, given back %d times", size, cap(b.data), len(b.run), given)
		}
	}
}
