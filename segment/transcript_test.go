package segment

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// The exact file operations of a segment's life, in order: which sync comes
// before which rename is the durability of the format.
func TestTranscript(t *testing.T) {
	var log strings.Builder
	mem := newFS(t)
	fs := vfs.WithLogging(mem, func(format string, args ...any) {
		fmt.Fprintf(&log, strings.TrimSuffix(format, "\n")+"\n", args...)
	})
	var w *Writer
	rng, offset := newRand(99), int64(100)
	datadriven.RunTest(t, "testdata/transcript.txt", func(t *testing.T, d *datadriven.TestData) string {
		log.Reset()
		var err error
		switch d.Cmd {
		case "create":
			w, err = Create(fs, dir, testOptions)
		case "append": // one batch with a value of so many incompressible bytes
			var size int
			d.ScanArgs(t, "bytes", &size)
			rec := someRecords(rng, offset, 1)
			rec[0].Key, rec[0].Headers, rec[0].Value = nil, nil, make([]byte, size)
			offset++
			err = w.Append(mustBatch(t, rec, BatchOptions{}), 1, 1)
		case "sync":
			err = w.Sync()
		case "park":
			err = w.Park()
		case "tear": // bytes that a crash left behind the last batch
			b := append(readFile(t, mem, logPath()), "torn"...)
			writeFile(t, mem, logPath(), b)
		case "recover":
			var flushed int64
			d.ScanArgs(t, "flushed", &flushed)
			var cut int64
			w, cut, err = Recover(fs, dir, recoverOptions(flushed))
			fmt.Fprintf(&log, "cut %d\n", cut)
		case "seal":
			_, err = w.Seal()
		case "close":
			err = w.Close()
		case "adopt":
			_, err = Adopt(fs, dir, testOptions)
		default:
			t.Fatalf("unknown command %s", d.Cmd)
		}
		if err != nil {
			fmt.Fprintf(&log, "error: %v\n", err)
		}
		return log.String()
	})
}
