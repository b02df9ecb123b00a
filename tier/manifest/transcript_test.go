package manifest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// The exact store calls, in order, of load, fence, add, trim and their
// collisions. A change in the number of requests shows up here.
func TestTranscript(t *testing.T) {
	datadriven.Walk(t, "testdata/transcript", func(t *testing.T, path string) {
		f := newFaulty()
		chains := map[string]*Chain{}
		nonce := uint64(0)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return command(t, f, chains, &nonce, d)
		})
	})
}

// command runs one line: the first argument names the process that runs it.
func command(t *testing.T, f *faulty, chains map[string]*Chain, nonce *uint64, d *datadriven.TestData) string {
	t.Helper()
	ctx := context.Background()
	name := "a"
	d.MaybeScanArgs(t, "by", &name)
	var gen, base, next, hint, n int
	d.MaybeScanArgs(t, "gen", &gen)
	d.MaybeScanArgs(t, "base", &base)
	d.MaybeScanArgs(t, "next", &next)
	d.MaybeScanArgs(t, "hint", &hint)
	d.MaybeScanArgs(t, "n", &n)
	var faults string
	d.MaybeScanArgs(t, "faults", &faults)
	plan := strings.Split(faults, "/")
	f.decide = func(string, string) outcome {
		if len(plan) == 0 {
			return good
		}
		o := map[string]outcome{"failed": failed, "lost": lost, "late": late, "conflict": conflict, "stale": stale}[plan[0]]
		plan = plan[1:]
		return o
	}
	c := chains[name]
	var err error
	switch d.Cmd {
	case "load":
		c, err = Load(ctx, f, testPID, uint64(hint), WithRetry(3, 0), WithParallelReads(1), WithPageSegments(4), WithNonces(func() uint64 { *nonce++; return *nonce }))
		if err == nil {
			chains[name] = c
		}
	case "fence":
		p := FenceParams{PreviousEndAtLeast: int64(base)}
		if d.HasArg("unclean") {
			p.Start = Unclean
		}
		_, err = c.Fence(ctx, testOwner(uint32(gen)), p)
	case "add":
		for i := range max(1, n) {
			size := next - base
			err = c.Add(ctx, testOwner(uint32(gen)), testSegment(int64(base+i*size), int64(next+i*size), uint32(gen), uint32(base+i*size)))
		}
	case "trim":
		_, err = c.Trim(ctx, testOwner(uint32(gen)), int64(base))
	case "find":
		var l Location
		if l, err = c.Find(ctx, int64(base)); err == nil {
			return calls(f) + fmt.Sprintf("%s next=%d\n", l.Kind, l.Next)
		}
	case "deliver":
		f.deliver()
		return "ok\n"
	default:
		t.Fatalf("unknown command %s", d.Cmd)
	}
	out := calls(f)
	if err != nil {
		out += "error: " + errcode.Of(err).String() + "\n"
	}
	if c != nil {
		out += fmt.Sprintf("seq=%d start=%d end=%d segments=%d pages=%d generation=%d\n", c.Seq(), c.Start(), c.End(), c.Len(), len(c.Pages()), c.Generation())
	}
	return out
}

func calls(f *faulty) string {
	var b strings.Builder
	prefix := PartitionPrefix(testPID)
	for _, call := range f.take() {
		b.WriteString(strings.Replace(call, prefix, "", 1) + "\n")
	}
	return b.String()
}
