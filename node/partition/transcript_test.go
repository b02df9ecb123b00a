package partition

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/wal"
)

// transcript collects file operations. Those of the local state's database are
// its own business, but for the syncs, which say where it became durable.
type transcript struct {
	mu  sync.Mutex
	out strings.Builder
}

func (l *transcript) log(format string, args ...any) {
	line := strings.TrimSpace(fmt.Sprintf(format, args...))
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !strings.Contains(line, "data/state"):
		fmt.Fprintln(&l.out, line)
	case strings.HasPrefix(line, "sync") && strings.HasSuffix(line, ".log"):
		fmt.Fprintln(&l.out, "local state: synced")
	}
}

func (l *transcript) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.out.Reset()
	return l.out.String()
}

// The exact file operations from append to answer, of a flush, a checkpoint, a
// seal and a restart, in order: which sync comes before which mark is what
// durability rests on.
func TestTranscript(t *testing.T) {
	var l transcript
	fs := vfs.WithLogging(vfs.NewMem(), l.log)
	quiet := rigConfig{
		change: func(o *Options) { o.FlushBytes, o.SegmentBytes, o.Compress = 1<<20, 64<<10, noCompression },
		// Spares, marks and recycling come when they come.
		wal: func(o *wal.Options) { o.PoolFiles, o.AckSyncInterval, o.Holds["transcript"] = -1, time.Hour, 1 },
	}
	r := openWith(t, fs, quiet)
	ctx := context.Background()
	datadriven.RunTest(t, "testdata/transcript.txt", func(t *testing.T, d *datadriven.TestData) string {
		l.take()
		var err error
		note := ""
		p := r.engine.Get(pid(0))
		switch d.Cmd {
		case "create":
			r.create(0)
		case "append": // one record with a value of so many bytes, answered when durable
			var size int
			d.ScanArgs(t, "bytes", &size)
			var base int64
			base, err = r.produce(0, strings.Repeat("x", size))
			note = fmt.Sprintf("answered: offset %d, visible to %d\n", base, p.HighWatermark())
		case "flush":
			err = r.engine.flushAll(p)
		case "seal":
			err = r.engine.Seal(p)
		case "checkpoint":
			err = r.engine.Checkpoint(ctx)
			note = fmt.Sprintf("the log is needed from %d on\n", r.needed())
		case "drop":
			err = r.engine.Drop(p.ID.Topic)
		case "close":
			r.close()
		case "open":
			r = openWith(t, fs, quiet)
			note = fmt.Sprintf("visible to %d\n", r.engine.Get(pid(0)).HighWatermark())
		default:
			t.Fatalf("unknown command %s", d.Cmd)
		}
		if err != nil {
			note += fmt.Sprintf("error: %v\n", err)
		}
		out := l.take()
		if d.Cmd == "open" { // how the log recovers is package wal's transcript
			lines := strings.SplitAfter(out, "\n")
			out = strings.Join(slices.DeleteFunc(lines, func(s string) bool { return !strings.Contains(s, "data/topics") }), "")
		}
		return out + note
	})
	r.close()
}
