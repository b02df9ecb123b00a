package ship

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/wal"
)

// sizes of objects depend on the salt of the log, which is random.
var sizes = regexp.MustCompile(`(\.zst|\.ship) \d+ `)

// The exact store calls, in order, of a first start, ships, idle checks,
// exports, state objects, restarts and failures. A change in the number or the
// order of requests shows up here.
func TestTranscript(t *testing.T) {
	datadriven.Walk(t, "testdata/transcript", func(t *testing.T, path string) {
		synctest.Test(t, func(t *testing.T) {
			b, fs := newBucket(), vfs.NewMem()
			var r *rig
			mark := uint64(0)
			begin := func() {
				r = start(t, b, fs, mark, func(o *Options) {
					o.States, o.StateInterval = states{o.Log.(*wal.Log)}, time.Minute
				})
			}
			end := func() {
				if r != nil {
					r.stop()
					mark = r.ship.Status().Shipped
				}
			}
			defer end()
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				b.count.Reset()
				answer := ""
				switch d.Cmd {
				case "start":
					begin()
				case "stop":
					end()
				case "append":
					n := 1
					d.MaybeScanArgs(t, "n", &n)
					for i := range n {
						r.append(fmt.Sprint(i))
					}
				case "export":
					r.meta.change()
				case "archived":
					if err := r.archived(r.log.Durable(), r.meta.index, time.Minute); err != nil {
						answer = "answer: " + errcode.Of(err).String() + "\n"
					} else {
						answer = "answer: archived\n"
					}
				case "fence":
					b.fence(t)
				case "fail": // put KEY: the next one loses its answer
					var op, key string
					d.ScanArgs(t, "op", &op)
					d.ScanArgs(t, "key", &key)
					b.fault.Add(fault.Rule{Ops: []string{op}, Key: key, Times: 1, Do: fault.LoseAnswer})
				case "pass":
				default:
					t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
				}
				pass := time.Duration(0)
				if d.HasArg("for") {
					var text string
					d.ScanArgs(t, "for", &text)
					var err error
					if pass, err = time.ParseDuration(text); err != nil {
						t.Fatal(err)
					}
				}
				wait(pass)
				out := exportsLast(readsInOrder(sizes.ReplaceAllString(b.count.Transcript(), "$1 "))) + answer
				if strings.TrimSpace(out) == "" {
					return "no calls\n"
				}
				return out
			})
		})
	})
}

// readsInOrder sorts reads of the shipped log that follow each other: several are
// made at once.
func readsInOrder(transcript string) string {
	lines := strings.SplitAfter(transcript, "\n")
	read := func(i int) bool {
		return i < len(lines) && strings.HasPrefix(lines[i], "get wal/") && strings.Contains(lines[i], ".ship")
	}
	for i := range lines {
		end := i
		for read(end) {
			end++
		}
		slices.Sort(lines[i:end])
	}
	return strings.Join(lines, "")
}

// exportsLast moves exports, and the reads that confirm them, behind the rest:
// a goroutine of their own makes them, so their place among the other calls is
// not determined.
func exportsLast(transcript string) string {
	var rest, exports strings.Builder
	for line := range strings.Lines(transcript) {
		if strings.HasPrefix(line, "put meta/") || strings.HasPrefix(line, "get meta/") {
			exports.WriteString(line)
		} else {
			rest.WriteString(line)
		}
	}
	return rest.String() + exports.String()
}
