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

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/segment"
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
// durability rests on. And of an eviction and a trim: the local state before the
// descriptor, and that before the file (B103).
func TestTranscript(t *testing.T) {
	for _, file := range []string{"transcript.txt", "trim.txt"} {
		t.Run(file, func(t *testing.T) { runTranscript(t, file) })
	}
}

func runTranscript(t *testing.T, file string) {
	t.Helper()
	var l transcript
	archive := newMemArchive()
	fs := vfs.WithLogging(vfs.NewMem(), l.log)
	quiet := rigConfig{
		change: func(o *Options) {
			o.FlushBytes, o.SegmentBytes, o.Compress, o.Archive = 1<<20, 64<<10, noCompression, archive
			o.OnTrimmed = func(_ broker.PartitionID, start int64) { l.log("readers and groups: begin at %d", start) }
		},
		// Spares, marks and recycling come when they come.
		wal: func(o *wal.Options) { o.PoolFiles, o.AckSyncInterval, o.Holds["transcript"] = -1, time.Hour, 1 },
	}
	r := openWith(t, fs, quiet)
	ctx := context.Background()
	datadriven.RunTest(t, "testdata/"+file, func(t *testing.T, d *datadriven.TestData) string {
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
		case "archive": // every sealed segment is confirmed
			r.archiveAll(archive, 0)
			l.take()
		case "read": // one batch from an offset
			var from int64
			d.ScanArgs(t, "from", &from)
			p.evict(1 << 30)
			var run [][]byte
			if run, err = p.Read(ctx, from, 1, nil); len(run) == 1 {
				h, _ := segment.ParseHeader(run[0])
				note = fmt.Sprintf("read: offset %d\n", h.BaseOffset)
			}
		case "evict":
			var below int64
			d.ScanArgs(t, "below", &below)
			var freed Freed
			freed, err = r.engine.Evict(p, below)
			note = fmt.Sprintf("answered: %+v\n", freed)
		case "trim":
			var before int64
			d.ScanArgs(t, "before", &before)
			var freed Freed
			freed, err = r.engine.Trim(p, before)
			note = fmt.Sprintf("answered: %+v\n", freed)
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
