package upload

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// whole fails unless the bucket has every byte of the sealed file under an entry
// of its chain: what a local copy may go for (I6).
func whole(t *testing.T, s objstore.Store, fs vfs.FS, p broker.PartitionID, sealed Sealed) {
	t.Helper()
	c, err := manifest.Load(t.Context(), s, p, 0)
	if err != nil {
		t.Fatalf("%s is reported as archived: %v", sealed.Path, err)
	}
	loc, err := c.Find(t.Context(), sealed.Info.Base)
	if err != nil || loc.Kind != manifest.InSegment {
		t.Fatalf("%s is reported as archived and no entry names it: %+v %v", sealed.Path, loc, err)
	}
	data, _, err := objstore.ReadAll(t.Context(), s, loc.Segment.Key(), 1<<20)
	if err != nil || string(data) != readFile(t, fs, sealed.Path) {
		t.Fatalf("%s is reported as archived, its object has %d bytes: %v", sealed.Path, len(data), err)
	}
}

// A store that says it took an object or an entry, and has nothing, or half of
// it, is not believed: no local copy is ever reported as archived before bucket
// and chain hold it, everything goes up in the end without a restart, and no
// object that stands is changed (I6, I7, B191, B192).
func TestLiesAreNotBelieved(t *testing.T) {
	for _, c := range []struct {
		part string
		do   fault.Action
		op   string
	}{
		{"s", fault.Pretend, fault.Put},
		{"m", fault.Pretend, fault.Put},
		{"s", fault.Tear, fault.Put},
		{"s", fault.LoseAnswer, fault.Put},
		{"m", fault.LoseAnswer, fault.Put},
		{"s", fault.Fail, fault.GetRange},
		{"s", fault.Tear, fault.GetRange},
		{"s", fault.Flip, fault.GetRange},
		{"s", fault.Pretend, fault.GetRange},
		{"m", fault.Fail, fault.Get},
		{"m", fault.Flip, fault.Get},
		{"m", fault.Pretend, fault.Get},
	} {
		for _, times := range []int{1, 2, 7} {
			t.Run(fmt.Sprintf("%s %s %d x%d", c.op, c.part, c.do, times), func(t *testing.T) {
				if c.part == "m" && c.do == fault.Flip && times > 1 {
					times = 1 // read twice, then an entry counts as damaged: an operator's matter
				}
				fs, below := vfs.NewMem(), mem.New("test", nil)
				lying := fault.New(below, fault.Options{Seed: 1})
				n := newNode(&store{Store: lying})
				if _, err := n.Chain(t.Context(), pid); err != nil { // fenced before it begins
					t.Fatal(err)
				}
				rule := lying.Add(fault.Rule{Ops: []string{c.op}, Key: "*/" + c.part + "/*", Times: times, Do: c.do})
				var segs []Sealed
				for i := range int64(6) {
					segs = append(segs, seal(t, fs, pid, 10*i, 10, 900))
				}
				u := start(t, fs, n, func(cfg *Config) {
					archived := cfg.Hooks.Archived
					cfg.Hooks.Archived = func(p broker.PartitionID, s Sealed, x manifest.Segment, seq uint64) {
						whole(t, below, fs, p, s)
						archived(p, s, x, seq)
					}
				})
				enqueue(t, u, pid, segs...)
				n.wait(t, len(segs))
				if rule.Hits() == 0 {
					t.Fatalf("%d faults", rule.Hits())
				}
				if err := u.Trouble(); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// warm makes the codecs that all chains share, whose channels must not belong to
// one test's bubble.
func warm(t *testing.T) {
	t.Helper()
	s := newStore()
	for range 2 { // the second one reads what the first one wrote
		if _, err := newNode(s).Chain(t.Context(), pid); err != nil {
			t.Fatal(err)
		}
	}
}

// The store is away for ten minutes of the clock, for 3,000 partitions: what it
// is asked stays bounded by time, not by partitions; when it is back everything
// goes up at once, by itself (B184, I12). Every spelling of "not now" counts.
func TestOutageOfManyPartitions(t *testing.T) {
	warm(t)
	for _, code := range []errcode.Code{errcode.Transient, errcode.Throttled, errcode.Denied} {
		t.Run(code.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const partitions, minutes = 3000, 10
				fs, s := vfs.NewMem(), newStore()
				n := newNode(s)
				one := seal(t, fs, pid, 0, 1, 10)
				s.setHook(func(op, key string) (bool, error) { return false, errcode.New(code, "away") })
				u := start(t, fs, n, func(c *Config) { c.Backoff, c.MaxBackoff = 200*time.Millisecond, 30*time.Second })
				for i := range uint32(partitions) {
					enqueue(t, u, broker.PartitionID{Topic: pid.Topic, Partition: i}, one)
				}
				time.Sleep(time.Minute)
				asked := func() int { return s.count("PUT", "") + s.count("GET", "") }
				early := asked()
				time.Sleep((minutes - 1) * time.Minute)
				late := asked() - early
				t.Logf("%d requests in the first minute, %d in the other %d", early, late, minutes-1)
				if early == 0 || late == 0 || early > 200 || late > (minutes-1)*20 {
					t.Errorf("%d requests in the first minute of the outage, %d in the other %d", early, late, minutes-1)
				}
				if err := u.Trouble(); !errcode.Is(err, code) {
					t.Errorf("trouble: %v", err)
				}
				s.setHook(nil)
				time.Sleep(31 * time.Second)
				synctest.Wait()
				if err := u.Trouble(); err != nil || len(u.Statuses()) > 0 {
					t.Errorf("%d partitions left half a minute after the outage: %v", len(u.Statuses()), err)
				}
				if err := u.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// One partition that fails for ever does not slow the others.
func TestOneBadPartitionHoldsBackNobody(t *testing.T) {
	warm(t)
	synctest.Test(t, func(t *testing.T) {
		fs, s := vfs.NewMem(), newStore()
		n := newNode(s)
		bad := broker.PartitionID{Topic: pid.Topic, Partition: 0}
		s.setHook(func(op, key string) (bool, error) {
			if strings.HasPrefix(key, manifest.PartitionPrefix(bad)) {
				return false, errcode.New(errcode.Transient, "this one never works")
			}
			return true, nil
		})
		u := start(t, fs, n, func(c *Config) { c.Backoff, c.MaxBackoff = 200*time.Millisecond, 30*time.Second })
		enqueue(t, u, bad, seal(t, fs, bad, 0, 1, 10))
		for i := range uint32(50) {
			id := broker.PartitionID{Topic: pid.Topic, Partition: i + 1}
			time.Sleep(10 * time.Second)
			enqueue(t, u, id, seal(t, fs, id, 0, 1, 10))
			time.Sleep(31 * time.Second)
			if _, waits := u.Status(id); waits {
				t.Fatalf("partition %d waits behind a bad one", i+1)
			}
		}
	})
}
