package queue

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// upTo is a partition with records below hw and leases of a second.
func upTo(hw int64) PartitionConfig {
	return PartitionConfig{HighWatermark: hw, VisibilityTimeout: time.Second}
}

// The position never passes a nacked record: after a restart it alone comes back (B67).
func TestB67NackedRecordIsNotPassed(t *testing.T) {
	for _, snapshot := range []bool{true, false} {
		r := newRig(t, Options{})
		r.attach(0, upTo(10))
		ds := r.take(10)
		r.ack(ds[:4]...)
		r.ack(ds[5:]...)
		r.nack(ds[4], 0)
		r.restart(snapshot, upTo(10))
		if d := r.one(4); d.Attempt != 2 {
			t.Errorf("attempt %d, want 2", d.Attempt)
		}
		r.nothing()
	}
}

// A group that is ahead of the log is set to its end, once in the log and in
// the metrics, and new records are delivered (B69). A later replay of the old
// entries does not settle them.
func TestB69GroupAheadOfTheLog(t *testing.T) {
	var logged bytes.Buffer
	reg := prometheus.NewPedanticRegistry()
	r := newRig(t, Options{Registerer: reg, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	ahead := State{Group: "default", Committed: 14084, Ranges: [][2]int64{{14090, 14100}}, Returned: []Returned{{14084, 1, 0}}}
	r.j.entries = append(r.j.entries, journalEntry{part(0), "default", appendSettle(nil, 0, 14084)})
	r.attach(0, upTo(10), ahead)
	r.nothing()
	r.e.Advance(part(0), 11)
	r.one(10)
	if n := strings.Count(logged.String(), "ahead of the log"); n != 1 || gather(t, reg)["clamped_total"] != 1 {
		t.Errorf("%d log lines and %v counted, want 1: %s", n, gather(t, reg), logged.String())
	}
	r.restart(false, upTo(11))
	r.one(10)
}

// A seek beyond the end of the log is refused with both bounds (B71).
func TestB71SeekBeyondTheLog(t *testing.T) {
	r := newRig(t, Options{})
	r.attach(0, upTo(10))
	_, err := r.e.Seek(part(0), "", 1_700_000_000_000)
	wantCode(t, err, errcode.OutOfRange)
	r.one(0)
	if _, err := r.e.Seek(part(0), "", 10); err != nil {
		t.Fatal(err)
	}
	r.nothing()
}

// Acks of many workers, in whatever order they are staged, are all there after
// a restart: nothing is delivered again (B73).
func TestB73ConcurrentAcksSurvive(t *testing.T) {
	const records = 4000
	r := newRig(t, Options{})
	r.attach(0, PartitionConfig{HighWatermark: records})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				ds, err := r.e.Reserve(context.Background(), Request{Topic: topicA, Partition: AnyPartition, Max: 3})
				if err != nil || len(ds) == 0 {
					return
				}
				for i := range ds { // the last first
					if _, err := r.e.Ack(topicA, "", ds[len(ds)-1-i].Handle); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	r.restart(false, PartitionConfig{HighWatermark: records})
	r.nothing()
	if d := r.describe(); d.Committed != records || d.Lag != 0 {
		t.Errorf("%+v", d)
	}
}

// One record that is never acked does not bring the others back (B75), and
// fifty thousand holes neither.
func TestB75OneUnacked(t *testing.T) {
	const records = 50_000
	cfg := PartitionConfig{HighWatermark: records, MaxInFlight: records}
	r := newRig(t, Options{})
	r.attach(0, cfg)
	for n := 0; n < records; {
		ds := r.take(1000)
		handles := make([]string, 0, len(ds))
		for _, d := range ds {
			if d.Offset != 0 {
				handles = append(handles, d.Handle)
			}
		}
		errs, _ := r.e.AckMany(topicA, "", handles)
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
		n += len(ds)
	}
	r.restart(true, cfg)
	r.one(0)
	r.nothing()
}

func TestB75FiftyThousandHoles(t *testing.T) {
	const records = 100_000
	cfg := PartitionConfig{HighWatermark: records, MaxInFlight: records}
	r := newRig(t, Options{})
	r.attach(0, cfg)
	for n := 0; n < records; {
		ds := r.take(10_000)
		for _, d := range ds {
			if d.Offset%2 == 1 {
				r.ack(d)
			}
		}
		n += len(ds)
	}
	if d := r.describe(); d.Ranges != records/2 || d.Lag != records/2 {
		t.Fatalf("%+v", d)
	}
	r.restart(true, cfg)
	for want := int64(0); want < records; {
		for _, d := range r.take(10_000) {
			if d.Offset != want {
				t.Fatalf("got %d, want %d", d.Offset, want)
			}
			r.ack(d)
			want += 2
		}
	}
	r.nothing()
}

// With too many settled ranges ahead only the lowest unsettled record is handed
// out; acks of what is out already are taken, and the backlog drains (B76).
func TestB76OnlyTheHoleAtTheCap(t *testing.T) {
	r := newRig(t, Options{MaxRanges: 3})
	r.attach(0, upTo(40))
	ds := r.take(12)
	for _, d := range ds {
		if d.Offset%2 == 1 {
			r.ack(d) // six ranges: more than the cap, and all accepted
		}
	}
	if d := r.describe(); d.Ranges != 6 {
		t.Fatalf("%+v", d)
	}
	r.nothing() // the hole is leased
	for _, d := range ds {
		if d.Offset%2 == 0 {
			r.nack(d, 0)
		}
	}
	for want := int64(0); want < 8; want += 2 {
		d := r.one(want)
		if want < 6 {
			r.nothing()
		}
		r.ack(d)
	}
	r.one(8) // below the cap again
	if ds := r.take(100); len(ds) != 29 {
		t.Fatalf("the backlog gave %d records, want 29", len(ds))
	}
}

// How often a record was delivered is not kept in memory alone: the count goes on
// where it was after a restart, from the journal and from a snapshot (B78). A limit
// of deliveries does not exist here; consumers compare the count themselves.
func TestB78DeliveryCountSurvives(t *testing.T) {
	for _, snapshot := range []bool{true, false} {
		r := newRig(t, Options{})
		r.attach(0, upTo(1))
		for attempt := uint32(1); attempt <= 3; attempt++ {
			d := r.one(0)
			if d.Attempt != attempt {
				t.Fatalf("attempt %d, want %d", d.Attempt, attempt)
			}
			r.nack(d, 0)
		}
		r.restart(snapshot, upTo(1))
		if d := r.one(0); d.Attempt != 4 {
			t.Errorf("snapshot %v: attempt %d after a restart, want 4", snapshot, d.Attempt)
		}
	}
}

// A late ack is refused and does not touch who holds the record now (B80).
func TestB80LateAck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		r.attach(0, upTo(1))
		a := r.one(0)
		time.Sleep(time.Second)
		_, err := r.e.Ack(topicA, "", a.Handle)
		wantCode(t, err, errcode.Gone)
		synctest.Wait()
		b := r.one(0)
		if b.Attempt != 2 {
			t.Errorf("attempt %d", b.Attempt)
		}
		_, err = r.e.Ack(topicA, "", a.Handle)
		wantCode(t, err, errcode.Gone)
		_, err = r.e.Nack(topicA, "", a.Handle, 0)
		wantCode(t, err, errcode.Gone)
		r.ack(b)
		_, err = r.e.Ack(topicA, "", b.Handle)
		wantCode(t, err, errcode.Gone)
		r.nothing()
	})
}

// An extension after the end, of a settled record or of another's lease is
// refused, and leaves the other's deadline alone (B81).
func TestB81Extend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		r.attach(0, upTo(1))
		extend := func(d Delivery, by time.Duration) error {
			_, err := r.e.Extend(topicA, "", d.Handle, by)
			return err
		}
		a := r.one(0)
		time.Sleep(900 * time.Millisecond)
		if err := extend(a, 0); err != nil { // a full second from here
			t.Fatal(err)
		}
		time.Sleep(999 * time.Millisecond)
		synctest.Wait()
		r.nothing()
		if err := extend(a, 300*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		time.Sleep(301 * time.Millisecond) // 1 ms after the end
		synctest.Wait()
		wantCode(t, extend(a, time.Hour), errcode.Gone)
		b := r.one(0)
		wantCode(t, extend(a, time.Hour), errcode.Gone)
		time.Sleep(999 * time.Millisecond)
		synctest.Wait()
		r.nothing() // b has it still
		time.Sleep(time.Millisecond)
		synctest.Wait()
		c := r.one(0) // and lost it exactly then
		wantCode(t, extend(b, 0), errcode.Gone)
		r.ack(c)
		wantCode(t, extend(c, 0), errcode.Gone)
		_, err := r.e.Extend(topicA, "", c.Handle, -1)
		wantCode(t, err, errcode.InvalidArgument)
	})
}

// A handle stays valid across a restart until its expiry, or the extended one,
// as long as nobody leased the record anew; never longer.
func TestHandleAfterRestart(t *testing.T) {
	for _, snapshot := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, Options{})
			r.attach(0, upTo(6))
			ds := r.take(6)
			if _, err := r.e.Extend(topicA, "", ds[3].Handle, time.Minute); err != nil {
				t.Fatal(err)
			}
			r.nack(ds[5], 0)
			time.Sleep(time.Millisecond) // a restart takes longer
			r.restart(snapshot, upTo(6))
			_, err := r.e.Ack(topicA, "", ds[5].Handle)
			wantCode(t, err, errcode.Gone) // given back before
			r.ack(ds[1])
			if b := r.one(0); snapshot && b.Attempt != 2 {
				t.Errorf("attempt %d, want 2", b.Attempt)
			}
			_, err = r.e.Ack(topicA, "", ds[0].Handle)
			wantCode(t, err, errcode.Gone) // leased anew
			if _, err := r.e.Extend(topicA, "", ds[2].Handle, 0); err != nil {
				t.Fatal(err) // taken up again, so that nobody else gets it
			}
			for _, d := range r.take(10) {
				if d.Offset <= 2 {
					t.Errorf("offset %d is delivered beside its lease", d.Offset)
				}
			}
			r.restart(snapshot, upTo(6))
			time.Sleep(2 * time.Second)
			synctest.Wait()
			_, err = r.e.Ack(topicA, "", ds[4].Handle)
			wantCode(t, err, errcode.Gone) // expired
			if !snapshot {
				r.ack(ds[3]) // extended, not leased anew as far as the journal knows
			}
		})
	}
}

// Records that wait for their delay hold no slot (B82).
func TestB82DelayedHoldNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		cfg := upTo(5)
		cfg.MaxInFlight = 2
		r.attach(0, cfg)
		ds := r.take(2)
		r.nothing()
		r.nack(ds[0], time.Minute)
		r.nack(ds[1], time.Minute)
		r.ack(r.one(2))
		if d := r.describe(); d.Delayed != 2 || d.InFlight != 0 || d.OldestUnsettled != 0 || d.Lag != 4 {
			t.Errorf("%+v", d)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		r.one(0)
	})
}

// Expiry frees the slots of a consumer that is gone, with a restart in between
// or without (B83).
func TestB83ExpiryFreesTheCap(t *testing.T) {
	for _, restart := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, Options{})
			cfg := upTo(9)
			cfg.MaxInFlight = 3
			r.attach(0, cfg)
			if n := len(r.take(10)); n != 3 {
				t.Fatalf("%d leased at a cap of 3", n)
			}
			r.nothing()
			if restart {
				r.restart(true, cfg)
			} else {
				time.Sleep(time.Second)
				synctest.Wait()
			}
			ds := r.take(10)
			if got := offsets(ds); len(got) != 3 || got[0] != 0 || got[2] != 2 || ds[0].Attempt != 2 {
				t.Fatalf("redelivered %v attempt %d", got, ds[0].Attempt)
			}
			r.ack(ds[1]) // one slot is free again
			r.one(3)
		})
	}
}
