package queue

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const topicA = broker.TopicID(0xa)

func part(n uint32) broker.PartitionID { return broker.PartitionID{Topic: topicA, Partition: n} }

// memJournal keeps what was staged; LSN n is entries[n-1].
type memJournal struct {
	mu      sync.Mutex
	entries []journalEntry
	fail    error
}

type journalEntry struct {
	p     broker.PartitionID
	group string
	ops   []byte
}

func (j *memJournal) Stage(p broker.PartitionID, _ uint32, group string, ops []byte) (uint64, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.fail != nil {
		return 0, j.fail
	}
	j.entries = append(j.entries, journalEntry{p, group, append([]byte(nil), ops...)})
	return uint64(len(j.entries)), nil
}

// refuse makes every further Stage fail with err, until it is nil again.
func (j *memJournal) refuse(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.fail = err
}

func (j *memJournal) len() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.entries)
}

var errJournal = errors.New("disk on fire")

// rig is an engine with its journal, and the shorthand of the tests.
type rig struct {
	testing.TB
	e *Engine
	j *memJournal
}

func newRig(t testing.TB, opt Options) *rig {
	t.Helper()
	r := &rig{TB: t, j: new(memJournal)}
	opt.Secret, opt.Journal = []byte("test secret"), r.j
	r.e = New(opt)
	t.Cleanup(func() { r.e.Close() })
	return r
}

func (r *rig) attach(n uint32, cfg PartitionConfig, states ...State) {
	r.Helper()
	if err := r.e.Attach(part(n), cfg, states); err != nil {
		r.Fatal(err)
	}
}

// restart replaces the engine by one restored from the partitions' snapshots,
// or with their journal alone, as after a crash.
func (r *rig) restart(snapshot bool, cfgs ...PartitionConfig) {
	r.Helper()
	states := make([][]State, len(cfgs))
	from := make([]uint64, len(cfgs))
	for n := range cfgs {
		if snapshot {
			states[n], from[n] = r.e.Snapshot(part(uint32(n)))
			b := AppendStates(nil, states[n])
			var err error
			if states[n], err = DecodeStates(b); err != nil {
				r.Fatal(err)
			}
		}
	}
	opt := r.e.opt
	r.e.Close()
	r.e = New(opt)
	for n, cfg := range cfgs {
		cfg.Replay = true
		r.attach(uint32(n), cfg, states[n]...)
		for i, en := range r.j.entries {
			if en.p == part(uint32(n)) && uint64(i+1) > from[n] {
				if err := r.e.Apply(en.p, en.group, en.ops); err != nil {
					r.Fatal(err)
				}
			}
		}
		if err := r.e.Serve(part(uint32(n))); err != nil {
			r.Fatal(err)
		}
	}
}

// take reserves up to max records without waiting.
func (r *rig) take(max int) []Delivery { r.Helper(); return r.takeFrom(AnyPartition, max) }

func (r *rig) takeFrom(partition, max int) []Delivery {
	r.Helper()
	ds, err := r.e.Reserve(context.Background(), Request{Topic: topicA, Partition: partition, Max: max})
	if err != nil {
		r.Fatal(err)
	}
	return ds
}

// one reserves exactly the record at off.
func (r *rig) one(off int64) Delivery {
	r.Helper()
	ds := r.take(1)
	if len(ds) != 1 || ds[0].Offset != off {
		r.Fatalf("got %v, want offset %d", offsets(ds), off)
	}
	return ds[0]
}

func (r *rig) nothing() {
	r.Helper()
	if ds := r.take(1); len(ds) != 0 {
		r.Fatalf("got offset %d attempt %d, want nothing", ds[0].Offset, ds[0].Attempt)
	}
}

func (r *rig) ack(ds ...Delivery) {
	r.Helper()
	for _, d := range ds {
		if _, err := r.e.Ack(topicA, "", d.Handle); err != nil {
			r.Fatalf("ack of %d: %v", d.Offset, err)
		}
	}
}

func (r *rig) nack(d Delivery, delay time.Duration) {
	r.Helper()
	if _, err := r.e.Nack(topicA, "", d.Handle, delay); err != nil {
		r.Fatalf("nack of %d: %v", d.Offset, err)
	}
}

func (r *rig) describe() Description {
	r.Helper()
	ds, err := r.e.Describe(topicA, "")
	if err != nil || len(ds) == 0 {
		r.Fatal(ds, err)
	}
	return ds[0]
}

func wantCode(t interface {
	Helper()
	Fatalf(string, ...any)
}, err error, c errcode.Code) {
	t.Helper()
	if !errcode.Is(err, c) {
		t.Fatalf("got %v, want %v", err, c)
	}
}

func offsets(ds []Delivery) []int64 {
	var out []int64
	for _, d := range ds {
		out = append(out, d.Offset)
	}
	return out
}
