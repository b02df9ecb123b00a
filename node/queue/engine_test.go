package queue

import (
	"context"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// What the journal refuses has not happened: the lease stands, and the same
// call succeeds once the journal takes it.
func TestJournalRefuses(t *testing.T) {
	r := newRig(t, Options{})
	r.attach(0, upTo(5))
	ds := r.take(2)
	r.j.refuse(errJournal)
	calls := map[string]func() error{
		"ack":    func() error { _, err := r.e.Ack(topicA, "", ds[0].Handle); return err },
		"nack":   func() error { _, err := r.e.Nack(topicA, "", ds[0].Handle, 0); return err },
		"extend": func() error { _, err := r.e.Extend(topicA, "", ds[0].Handle, 0); return err },
		"skip":   func() error { _, err := r.e.Skip(part(0), 0, 2); return err },
		"seek":   func() error { _, err := r.e.Seek(part(0), "", 3); return err },
		"delete": func() error { _, err := r.e.Delete(topicA, "default"); return err },
		"ack many": func() error {
			errs, _ := r.e.AckMany(topicA, "", []string{ds[0].Handle, ds[1].Handle})
			return errs[1]
		},
	}
	before := r.describe()
	for name, call := range calls {
		if err := call(); err != errJournal {
			t.Errorf("%s: %v", name, err)
		}
		if d := r.describe(); d != before {
			t.Errorf("%s changed %+v to %+v", name, before, d)
		}
	}
	r.j.refuse(nil)
	r.ack(ds...)
	r.one(2)
}

// Expiry happens also while the journal refuses: a consumer is never starved
// by a full disk.
func TestExpiryWithoutJournal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		r.attach(0, upTo(1))
		r.one(0)
		r.j.refuse(errJournal)
		time.Sleep(time.Second)
		synctest.Wait()
		if d := r.one(0); d.Attempt != 2 {
			t.Errorf("attempt %d", d.Attempt)
		}
	})
}

// Settle calls return the LSN of their own entry, one per call and partition,
// with neighbouring offsets as one range.
func TestLSNs(t *testing.T) {
	r := newRig(t, Options{})
	r.attach(0, upTo(10))
	r.attach(1, upTo(10))
	a, b := r.takeFrom(0, 10), r.takeFrom(1, 10)
	if lsn, err := r.e.Ack(topicA, "", a[0].Handle); lsn != 1 || err != nil {
		t.Fatal(lsn, err)
	}
	if lsn, err := r.e.Nack(topicA, "", a[1].Handle, 0); lsn != 2 || err != nil {
		t.Fatal(lsn, err)
	}
	errs, lsn := r.e.AckMany(topicA, "", []string{a[4].Handle, b[0].Handle, a[3].Handle, "nonsense", a[3].Handle, a[9].Handle, a[1].Handle})
	if lsn != 4 || r.j.len() != 4 {
		t.Fatalf("LSN %d of %d", lsn, r.j.len())
	}
	for i, code := range []errcode.Code{0, 0, 0, errcode.InvalidArgument, errcode.Gone, 0, errcode.Gone} {
		if (code == 0) != (errs[i] == nil) || code != 0 && !errcode.Is(errs[i], code) {
			t.Errorf("handle %d: %v, want %v", i, errs[i], code)
		}
	}
	want := appendSettle(appendSettle(nil, 3, 5), 9, 10)
	if got := r.j.entries[2]; got.p != part(0) || got.group != "default" || string(got.ops) != string(want) {
		t.Errorf("entry %+v, want %x", got, want)
	}
	if _, lsn := r.e.Snapshot(part(0)); lsn != 3 {
		t.Errorf("snapshot of partition 0 at %d, want 3", lsn)
	}
	errs, _ = r.e.AckMany(topicA, "", make([]string, MaxBatch+1))
	wantCode(t, errs[MaxBatch], errcode.TooLarge)
	if errs, lsn := r.e.AckMany(topicA, "", nil); len(errs) != 0 || lsn != 0 {
		t.Error(errs, lsn)
	}
}

// Attach refuses what it cannot serve, and changes nothing then.
func TestAttachRefuses(t *testing.T) {
	r := newRig(t, Options{})
	for name, c := range map[string]struct {
		cfg    PartitionConfig
		states []State
	}{
		"visibility":      {PartitionConfig{VisibilityTimeout: -1}, nil},
		"long visibility": {PartitionConfig{VisibilityTimeout: MaxLease + 1}, nil},
		"in flight":       {PartitionConfig{MaxInFlight: -1}, nil},
		"start":           {PartitionConfig{Start: -1}, nil},
		"gap":             {PartitionConfig{Gaps: [][2]int64{{5, 4}}}, nil},
		"name":            {PartitionConfig{}, []State{{Group: "a b"}}},
		"twice":           {PartitionConfig{}, []State{{Group: "a"}, {Group: "a"}}},
	} {
		if err := r.e.Attach(part(0), c.cfg, c.states); !errcode.Is(err, errcode.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := r.e.Groups(topicA); len(got) != 0 {
		t.Errorf("groups %v were left", got)
	}
	wantCode(t, r.e.Attach(part(1024), PartitionConfig{}, nil), errcode.InvalidArgument)
	r.attach(0, upTo(0))
	wantCode(t, r.e.Attach(part(0), PartitionConfig{}, nil), errcode.Conflict)
	wantCode(t, r.e.Serve(part(9)), errcode.Unavailable)
	wantCode(t, r.e.Apply(part(9), "g", appendDelete(nil)), errcode.Unavailable)
	wantCode(t, r.e.Configure(part(0), -1, 0), errcode.InvalidArgument)
	_, err := r.e.Skip(part(9), 0, 1)
	wantCode(t, err, errcode.Unavailable)
	r.e.Close()
	wantCode(t, r.e.Attach(part(2), PartitionConfig{}, nil), errcode.Closed)
}

// A gap counts as settled in every group: positions jump over it, lag omits
// it, however wide it is and whenever the group is made (2^32 after an unclean
// change of owner).
func TestGap(t *testing.T) {
	r := newRig(t, Options{})
	const wide = int64(1) << 32
	r.attach(0, upTo(10))
	ds := r.take(10)
	r.e.Gap(part(0), 10, 10+wide)
	r.e.Advance(part(0), 10+wide+2)
	if d := r.describe(); d.Lag != 12 || d.Committed != 0 {
		t.Errorf("%+v", d)
	}
	r.ack(ds...)
	if d := r.describe(); d.Lag != 2 || d.Committed != 10+wide || d.OldestUnsettled != 10+wide {
		t.Errorf("%+v", d)
	}
	r.one(10 + wide)
	late, err := r.e.Reserve(context.Background(), Request{Topic: topicA, Group: "late", Max: 100})
	if err != nil || len(late) != 12 || late[10].Offset != 10+wide {
		t.Errorf("%v %v", offsets(late), err)
	}
	// Standing at the gap, before anything behind it, is not ahead of the log.
	cfg := upTo(10)
	cfg.Gaps = [][2]int64{{10, 10 + wide}}
	r.e.Detach(part(0))
	r.attach(0, cfg, State{Group: "default", Committed: 10 + wide})
	r.e.Advance(part(0), 10+wide+1)
	r.one(10 + wide)
}

// Delayed and leased records that pile up stop fresh ones at the bound, and
// returned ones go on: memory for delayed records is bounded, however many there
// are and however long they hide (I12, B98).
func TestMaxTracked(t *testing.T) {
	r := newRig(t, Options{MaxTracked: 50})
	r.attach(0, upTo(1000))
	ds := r.take(1000)
	if len(ds) != 50 {
		t.Fatalf("%d tracked", len(ds))
	}
	for _, d := range ds[:20] {
		r.nack(d, time.Hour)
	}
	r.nothing()
	r.nack(ds[30], 0)
	if d := r.one(30); d.Attempt != 2 {
		t.Errorf("%+v", d)
	}
	r.ack(ds[40])
	r.one(50)
	r.nothing()
}

// A delete ends the group everywhere and survives a restart; the name begins
// anew, and a seek of it makes it again.
func TestDeleteAndSeek(t *testing.T) {
	r := newRig(t, Options{})
	r.attach(0, upTo(10))
	r.ack(r.take(5)...)
	deleted, err := r.e.Delete(topicA, "default")
	if err != nil {
		t.Fatal(err)
	}
	// A snapshot without the group holds the deletion, and says so.
	if states, lsn := r.e.Snapshot(part(0)); len(states) != 0 || lsn != deleted {
		t.Errorf("%+v at %d, deleted at %d", states, lsn, deleted)
	}
	_, err = r.e.Delete(topicA, "default")
	wantCode(t, err, errcode.NotFound)
	_, err = r.e.Describe(topicA, "other")
	wantCode(t, err, errcode.NotFound)
	r.restart(false, upTo(10))
	if got := r.e.Groups(topicA); len(got) != 0 {
		t.Errorf("groups %v came back", got)
	}
	r.one(0)
	old := r.take(3)
	if _, err := r.e.Seek(part(0), "", 2); err != nil {
		t.Fatal(err)
	}
	_, err = r.e.Ack(topicA, "", old[2].Handle)
	wantCode(t, err, errcode.Gone) // of the pass before
	if d := r.one(2); d.Attempt != 2 {
		t.Errorf("attempt %d", d.Attempt)
	}
	r.restart(false, upTo(10))
	if ds := r.take(20); len(ds) != 8 || ds[0].Offset != 2 {
		t.Errorf("%v", offsets(ds))
	}
}

// A consume and its ack allocate the answer's slice and the handle, no more.
func TestAllocations(t *testing.T) {
	e := New(Options{})
	defer e.Close()
	if err := e.Attach(part(0), PartitionConfig{HighWatermark: 1 << 40}, nil); err != nil {
		t.Fatal(err)
	}
	got := testing.AllocsPerRun(2000, func() {
		ds, err := e.Reserve(context.Background(), Request{Topic: topicA, Partition: AnyPartition})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Ack(topicA, "", ds[0].Handle); err != nil {
			t.Fatal(err)
		}
	})
	if got > 2 {
		t.Errorf("%v allocations for a reserve and an ack, want 2", got)
	}
	var hw int64 = 1 << 40
	if got := testing.AllocsPerRun(1000, func() { hw++; e.Advance(part(0), hw) }); got != 0 {
		t.Errorf("%v allocations for a commit", got)
	}
}

// The expiry that a consumer is told is the end of its lease, to the
// microsecond.
func TestExpiryTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		r.attach(0, upTo(1))
		time.Sleep(1234567 * time.Nanosecond) // between two ticks of the wheel
		d := r.one(0)
		if want := time.Now().Add(time.Second).Truncate(time.Microsecond); !d.Expiry.Equal(want) {
			t.Errorf("expiry %v, want %v", d.Expiry, want)
		}
		time.Sleep(time.Until(d.Expiry) - time.Microsecond)
		synctest.Wait()
		r.nothing()
		if _, err := r.e.Extend(topicA, "", d.Handle, time.Second); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		_, err := r.e.Ack(topicA, "", d.Handle)
		wantCode(t, err, errcode.Gone)
		time.Sleep(time.Millisecond)
		synctest.Wait()
		r.one(0)
	})
}

// Replaying entries that a state holds already, and later ones that it has
// passed, changes nothing.
func TestApplyWhatIsKnown(t *testing.T) {
	r := newRig(t, Options{})
	s := State{Group: "default", Committed: 5, Ranges: [][2]int64{{7, 9}}, Returned: []Returned{{5, 2, 0}}}
	cfg := upTo(10)
	cfg.Replay = true
	r.attach(0, cfg, s)
	far := time.Now().Add(time.Hour)
	for name, ops := range map[string][]byte{
		"settled below":    appendSettle(nil, 0, 5),
		"settled ahead":    appendSettle(nil, 7, 8),
		"earlier return":   appendReturn(nil, 5, 1, far.UnixMilli()),
		"same return":      appendReturn(nil, 5, 2, 0),
		"settled return":   appendReturn(nil, 8, 9, 0),
		"earlier extend":   appendExtend(nil, 5, 1, 1, far.UnixMicro()),
		"extend, returned": appendExtend(nil, 5, 2, 1, far.UnixMicro()),
		"settled extend":   appendExtend(nil, 3, 1, 1, far.UnixMicro()),
	} {
		if err := r.e.Apply(part(0), "default", ops); err != nil {
			t.Fatal(err)
		}
		if got, _ := r.e.Snapshot(part(0)); len(got) != 1 || !reflect.DeepEqual(got[0], s) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	bad := append(appendSettle(nil, 5, 6), 99)
	wantCode(t, r.e.Apply(part(0), "default", bad), errcode.UnsupportedVersion)
	if got, _ := r.e.Snapshot(part(0)); !reflect.DeepEqual(got[0], s) {
		t.Errorf("half an entry was applied: %+v", got)
	}
}
