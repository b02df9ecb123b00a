package cold

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// The requests of cold reads: which ranges of the object, how many of them.
func TestTranscript(t *testing.T) {
	datadriven.Walk(t, "testdata/transcript", func(t *testing.T, path string) {
		fs, st := crash.NewFS(), newStore()
		var c *Cache
		var seg manifest.Segment
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "segment": // batches=N size=N
				var batches, size int
				d.ScanArgs(t, "batches", &batches)
				d.ScanArgs(t, "size", &size)
				seg, _ = archived(t, st, 0, repeat(batches, size)...)
				return fmt.Sprintf("%d bytes, index at %d\n", seg.Bytes, seg.DataLength)
			case "open": // a new process
				if c != nil {
					settle(t, c)
					if err := c.Close(); err != nil {
						t.Fatal(err)
					}
				}
				c = open(t, fs, st, nil)
				return "ok\n"
			case "read": // from=N batches=N
				var from, batches int
				d.ScanArgs(t, "from", &from)
				d.ScanArgs(t, "batches", &batches)
				return read(t, c, st, seg, int64(from), batches)
			}
			t.Fatalf("unknown command %s", d.Cmd)
			return ""
		})
	})
}

// read reads batches and returns the requests by position: those of one window
// run side by side and their order is not fixed.
func read(t *testing.T, c *Cache, st *store, seg manifest.Segment, from int64, n int) string {
	t.Helper()
	ctx := context.Background()
	before := len(st.gets())
	r, err := c.Open(ctx, seg)
	if err != nil {
		t.Fatal(err)
	}
	b := r.Batches(from)
	defer b.Close()
	got := 0
	for ; got < n; got++ {
		if _, _, err := b.Next(ctx); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	settle(t, c)
	calls := st.gets()[before:]
	slices.SortFunc(calls, func(a, b call) int { return cmp.Compare(a.off, b.off) })
	var out strings.Builder
	for _, k := range calls {
		fmt.Fprintf(&out, "GET %d+%d\n", k.off, k.size)
	}
	fmt.Fprintf(&out, "%d batches\n", got)
	return out.String()
}
