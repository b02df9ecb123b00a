package cold

import (
	"slices"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
)

// A disk that runs short takes room from the cache: at least what was asked for
// while there is any, and what was removed is a miss like any other.
func TestShrink(t *testing.T) {
	fs, st := crash.NewFS(), newStore()
	seg, _ := archived(t, st, 0, repeat(240, 100_000)...)
	c := open(t, fs, st, nil)
	if _, err := scan(t, c, seg, 0); err != nil {
		t.Fatal(err)
	}
	settle(t, c)
	chunks, before := c.Usage()
	if freed := c.Shrink(1); freed < 1 || freed > before/2 {
		t.Errorf("1 byte was asked for, %d of %d were freed", freed, before)
	}
	n, after := c.Usage()
	if after >= before || n >= chunks {
		t.Errorf("%d bytes in %d chunks, before %d in %d", after, n, before, chunks)
	}
	if freed := c.Shrink(1 << 40); freed != after {
		t.Errorf("%d bytes were freed of %d", freed, after)
	}
	if n, left := c.Usage(); n != 0 || left != 0 {
		t.Errorf("%d chunks with %d bytes are left", n, left)
	}
	if names, err := fs.List("cache"); err != nil || slices.ContainsFunc(names, func(name string) bool { _, ok := parseFile(name); return ok }) {
		t.Errorf("files are left: %v %v", names, err)
	}
	if got, err := scan(t, c, seg, 0); err != nil || len(got) != 240 {
		t.Errorf("%d batches: %v", len(got), err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}
