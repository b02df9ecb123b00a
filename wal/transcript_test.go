package wal

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/datadriven"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// The exact file system calls of an append, a sync, a rotation, a recycling
// and a restart, in order: what must be synced before what can be read off.
func TestTranscript(t *testing.T) {
	datadriven.Walk(t, "testdata/transcript", func(t *testing.T, path string) {
		synctest.Test(t, func(t *testing.T) { transcript(t, path) })
	})
}

func transcript(t *testing.T, path string) {
	t.Helper()
	var mu sync.Mutex
	var calls []string
	mem := newFS()
	fs := &faultFS{FS: vfs.WithLogging(mem, func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, strings.TrimSpace(fmt.Sprintf(format, args...)))
	})}
	// The janitor's prewriting would mingle with what the command does: it
	// waits until the command has ended.
	hold := func() (release func()) {
		gate := make(chan struct{})
		fs.set(func(op, path string) (action, error) {
			if op == "create" {
				<-gate
			}
			return pass, nil
		}, nil)
		return func() { fs.set(nil, nil); close(gate) }
	}
	var l *opened
	datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
		var n, count int
		d.MaybeScanArgs(t, "bytes", &n)
		if !d.MaybeScanArgs(t, "count", &count) {
			count = 1
		}
		switch d.Cmd {
		case "open":
			o := testOptions(fs)
			o.FileSize, o.MaxGroup, o.PoolFiles, o.MaxBytes = 64<<10, 32<<10, 2, 1<<20
			l = mustOpen(t, o)
		case "put":
			release := hold()
			for range count {
				put(t, l.Log, 1, n)
			}
			release()
		case "write":
			release := hold()
			for range count {
				write(t, l.Log, 1, n)
			}
			release()
		case "stage":
			for range count {
				stage(t, l.Log, 1, n)
			}
		case "tick":
			l.tick()
		case "hold":
			l.Hold("state", uint64(n))
		case "read":
			if _, err := l.ReadGroups(uint64(n), 1<<20); err != nil {
				return err.Error()
			}
		case "close":
			mustClose(t, l)
		default:
			t.Fatalf("unknown command %s", d.Cmd)
		}
		synctest.Wait() // the janitor has come to rest
		mu.Lock()
		defer mu.Unlock()
		out := strings.Join(calls, "\n")
		calls = nil
		state := ""
		if d.Cmd != "close" {
			s := l.Stats()
			state = fmt.Sprintf("-- written %d durable %d files %d oldest %d spares %d", s.Written, s.Durable, s.Files, s.Oldest, s.Spares)
		}
		if out != "" && state != "" {
			out += "\n"
		}
		return optionNoise.ReplaceAllString(out, "") + state
	})
}

// optionNoise is the part of an open's log line that names Go types.
var optionNoise = regexp.MustCompile(` \(options:[^)]*\)`)
