package restore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/restore"
	"github.com/tidemark-mq/tidemark/node/ship"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore/count"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
)

// tape is what was asked of the file system and of the store, in one order.
type tape struct {
	mu    sync.Mutex
	store *count.Store
	lines []string
}

// log is the file system's. The local state's files are its database's own
// business, but for the syncs, which say when it became durable; those of the
// metadata do not go through here (package raftmeta has tests of its own).
func (l *tape) log(format string, args ...any) {
	line := strings.TrimSpace(fmt.Sprintf(format, args...))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drain()
	switch op, path, _ := strings.Cut(line, " "); {
	case op == "close:", op == "stat:", op == "open-dir:": // they change nothing
	case !strings.Contains(path, "/state/"):
		l.lines = append(l.lines, line)
	case strings.HasPrefix(op, "sync"):
		if n := len(l.lines); n == 0 || l.lines[n-1] != stateSynced {
			l.lines = append(l.lines, stateSynced)
		}
	}
}

const stateSynced = "local state: synced"

// drain takes over what the store was asked before now.
func (l *tape) drain() {
	for line := range strings.Lines(l.store.Transcript()) {
		l.lines = append(l.lines, strings.TrimSpace(line))
	}
	l.store.Reset()
}

func (l *tape) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drain()
	out := l.lines
	l.lines = nil
	for from := range out { // in the order in which the disk lists them
		to := from
		for to < len(out) && strings.HasPrefix(out[to], "remove-all:") {
			to++
		}
		slices.Sort(out[from:to])
	}
	return out
}

// sizes of compressed objects depend on the log's salt and on random ids.
var sizes = regexp.MustCompile(`(\.zst|\.ship) \d+ `)

// owner is the process that is taken over: its log, its shipper, its chain.
// Nothing of it runs by itself, so that its calls have a determined order.
type owner struct {
	*writer
	ship  *ship.Shipper
	chain *manifest.Chain
	me    manifest.Owner

	resume chan struct{} // closed: the call that is held goes on
	ended  chan error    // of the ship that is held
}

// owner is incarnation firstI of the world's cluster, which has shipped and
// fenced partition 0 before.
func (w *world) owner(ctx context.Context, store *count.Store) *owner {
	w.t.Helper()
	o := &owner{writer: &writer{world: w, inc: firstI, log: w.openLog(firstI)}, resume: make(chan struct{}), ended: make(chan error, 1)}
	o.ship = ship.New(ship.Options{
		Store: store, Log: o.log, Metadata: w.meta, Node: nodeID, Incarnation: firstI,
		ClusterGeneration: 1, ClusterID: w.meta.State().Cluster().ID, FirstLSN: 1,
	})
	o.base(frame.Base{Partition: w.id(0), Generation: 1})
	if err := o.ship.Finish(ctx); err != nil {
		w.t.Fatal(err)
	}
	var err error
	if o.chain, err = manifest.Load(ctx, store, w.id(0), 0); err != nil {
		w.t.Fatal(err)
	}
	o.me = manifest.Owner{ClusterGeneration: 1, Generation: 1, Incarnation: firstI, Node: nodeID}
	if _, err := o.chain.Fence(ctx, o.me, manifest.FenceParams{}); err != nil {
		w.t.Fatal(err)
	}
	return o
}

// mark says what the owner's producers were told.
func (o *owner) mark() string {
	return fmt.Sprintf("the owner's mark: frame %d is archived\n", o.ship.Status().Shipped)
}

// holdShip begins a ship and returns when it stands before the call on key.
func (o *owner) holdShip(ctx context.Context, op, key string) {
	o.t.Helper()
	h := o.fault.Add(fault.Rule{Ops: []string{op}, Key: key, Times: 1, Wait: o.resume})
	go func() { o.ended <- o.ship.Finish(ctx) }()
	for h.Hits() == 0 {
		select {
		case err := <-o.ended:
			o.t.Fatalf("a ship made no call %s %s: %v", op, key, err)
		case <-time.After(time.Millisecond):
		}
	}
}

// Every call on the store and on the file system, in order, of an owner that is
// taken over and of the restore that does it.
//
// Of the old owner (I8): whatever it begins before the FENCE is answered only
// if no FENCE stood behind its put, what it begins later is answered with
// fenced, and its entry in the chain finds the number taken. Of the restore: it
// claims, then fences, then lists, so that a list holds all that was ever
// answered (I16); it reads all that it will need before it claims, writes the
// files of the tail and syncs them, and writes them again only if the list behind
// the fences shows more; they are synced before the local state that names them,
// that before the directory gets its name, and the name is synced before the
// restore says that it is done (B224).
func TestTranscript(t *testing.T) {
	datadriven.Walk(t, "testdata/transcript", func(t *testing.T, path string) {
		w := newWorld(t, 1)
		l := &tape{store: count.New(w.fault)}
		var old *owner
		var away *fault.Handle
		next := int64(0)
		dir := filepath.Join(t.TempDir(), "data")
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			l.take()
			var err error
			note := ""
			switch d.Cmd {
			case "owner":
				old = w.owner(ctx, l.store)
				l.take() // package ship has its transcript
			case "produce": // n records, durable in the owner's log
				var n int
				d.ScanArgs(t, "n", &n)
				old.records(w.id(0), 1, next, n)
				next += int64(n)
			case "ack": // the first n records
				var n int
				d.ScanArgs(t, "n", &n)
				old.ack(w.id(0), 1, 0, n)
			case "ship": // all that is durable; with hold, only up to that call
				if d.HasArg("hold") {
					var key string
					d.ScanArgs(t, "hold", &key)
					old.holdShip(t.Context(), fault.Get, key)
					break
				}
				err = old.ship.Finish(ctx)
				note = old.mark()
			case "resume": // the ship that was held
				close(old.resume)
				err = <-old.ended
				note = old.mark()
			case "publish": // a segment of the records in [base, next)
				var base, end int64
				d.ScanArgs(t, "base", &base)
				d.ScanArgs(t, "next", &end)
				if err = old.chain.Add(ctx, old.me, w.segment(0, base, end)); err == nil {
					note = fmt.Sprintf("answered: published to offset %d\n", old.chain.End())
				}
			case "restore":
				o := w.options()
				o.Store, o.FS, o.Dir = l.store, vfs.WithLogging(vfs.Default, l.log), dir
				o.Rand = rand.NewChaCha8([32]byte{1})
				var report *restore.Report
				report, err = restore.Run(ctx, o)
				if away != nil {
					away.Remove()
				}
				if err == nil {
					note = fmt.Sprintf("answered: generation %d, %d segments, %d records of the tail\n", report.NewGeneration, report.Segments, report.TailRecords)
				}
			case "fail": // calls of op on key are not made until the next restore has ended
				var op, key string
				d.ScanArgs(t, "op", &op)
				d.ScanArgs(t, "key", &key)
				away = w.fault.Add(fault.Rule{Ops: []string{op}, Key: key, Do: fault.Fail})
			case "records": // what a node serves from the directory, from an offset on
				var from int64
				d.ScanArgs(t, "from", &from)
				note = fmt.Sprintf("%q\n", w.records(dir, 0, from))
			default:
				t.Fatalf("unknown command %s", d.Cmd)
			}
			out := strings.Join(append(readsInOrder(l.take()), ""), "\n")
			out = sizes.ReplaceAllString(out, "$1 ")
			out = strings.NewReplacer(dir, "data", filepath.Dir(dir), ".", w.topic.ID.String(), "TOPIC").Replace(out)
			if err != nil {
				note += fmt.Sprintf("error: %s\n", errcode.Of(err))
			}
			if out+note == "" {
				return "no calls\n"
			}
			return out + note
		})
	})
}

// readsInOrder sorts neighbouring reads of shipped WAL: several are under way at
// a time.
func readsInOrder(calls []string) []string {
	read := func(c string) bool { return strings.HasPrefix(c, "get wal/") && strings.Contains(c, ".ship") }
	for from := 0; from < len(calls); from++ {
		to := from
		for to < len(calls) && read(calls[to]) {
			to++
		}
		slices.Sort(calls[from:to])
		from = max(from, to-1)
	}
	return calls
}
