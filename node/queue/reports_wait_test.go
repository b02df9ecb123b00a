package queue

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// A record handed to a call that has left in the same moment comes back at
// once, and was not delivered: its count is 1 (B84).
func TestB84DeadPoller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		r.attach(0, upTo(0))
		// The race itself, many times: the caller leaves before, after and while
		// the record is handed to it.
		var hw int64
		for i := range 300 {
			ctx, cancel := context.WithCancel(context.Background())
			got := make(chan []Delivery, 1)
			go func() {
				ds, err := r.e.Reserve(ctx, Request{Topic: topicA, Partition: AnyPartition, Wait: 30 * time.Second})
				if err != nil && !errcode.Is(err, errcode.Canceled) {
					t.Error(err)
				}
				got <- ds
			}()
			synctest.Wait()
			hw++
			switch i % 3 {
			case 0:
				cancel()
				r.e.Advance(part(0), hw)
			case 1:
				r.e.Advance(part(0), hw)
				cancel()
			case 2:
				go cancel()
				r.e.Advance(part(0), hw)
			}
			ds := <-got
			cancel()
			if len(ds) == 0 {
				ds = r.take(1) // at once: no time has passed
			}
			if len(ds) != 1 || ds[0].Offset != hw-1 || ds[0].Attempt != 1 {
				t.Fatalf("record %d: %+v", hw-1, ds)
			}
			r.ack(ds...)
		}
		// What could not be written to a client is given back the same way.
		r.e.Advance(part(0), hw+1)
		d := r.one(hw)
		r.e.Release(d)
		r.e.Release(d) // a second time does nothing
		again := r.one(hw)
		if again.Attempt != 1 {
			t.Errorf("attempt %d", again.Attempt)
		}
		if err := r.e.ReleaseHandle(topicA, "", again.Handle); err != nil {
			t.Fatal(err)
		}
		r.one(hw)
	})
}

// A call that waits for an idle partition holds up nobody (B86).
func TestB86PinnedWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		r.attach(0, upTo(0))
		r.attach(7, upTo(0))
		got := make(chan Delivery, 2)
		wait := func(partition int) {
			ds, err := r.e.Reserve(context.Background(), Request{Topic: topicA, Partition: partition, Wait: time.Minute})
			if err != nil {
				t.Error(err)
			}
			for _, d := range ds {
				got <- d
			}
		}
		go wait(7)
		synctest.Wait()
		go wait(AnyPartition)
		synctest.Wait()
		r.e.Advance(part(0), 1)
		synctest.Wait()
		if d := <-got; d.Partition != 0 {
			t.Fatalf("%+v", d)
		}
		r.e.Advance(part(7), 1)
		if d := <-got; d.Partition != 7 {
			t.Fatalf("%+v", d)
		}
		synctest.Wait()
	})
}

// A delay outlives a restart: nothing before its end, the record right at it (B88).
func TestB88DelaySurvivesRestart(t *testing.T) {
	for _, snapshot := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, Options{})
			r.attach(0, upTo(1))
			r.nack(r.one(0), time.Minute)
			time.Sleep(5 * time.Second)
			r.restart(snapshot, upTo(1))
			time.Sleep(55*time.Second - time.Millisecond)
			synctest.Wait()
			r.nothing()
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if d := r.one(0); d.Attempt != 2 {
				t.Errorf("attempt %d", d.Attempt)
			}
		})
	}
}

// A record that hides longer than the log keeps it goes with the log: it is not
// delivered when it is due, holds nothing back and counts as nothing that waits;
// the ones behind it are served (B96).
func TestB96TrimPassesDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		r.attach(0, upTo(3))
		ds := r.take(2)
		r.nack(ds[0], 2*time.Hour)
		r.ack(ds[1])
		time.Sleep(time.Hour)
		r.e.Trim(part(0), 1)
		if d := r.describe(); d.Delayed != 0 || d.Committed != 2 || d.Lag != 1 {
			t.Errorf("%+v", d)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		r.ack(r.one(2))
		r.nothing()
	})
}

// A thousand records due in the same 10 ms all reach one slow consumer (B91),
// and so does one that nobody waited for when it was due (B93).
func TestB91ManyDueTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		r.attach(0, upTo(1000))
		for i, d := range r.take(1000) {
			r.nack(d, time.Second+time.Duration(i%10)*time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		seen := make(map[int64]bool)
		for range 1000 {
			ds, err := r.e.Reserve(context.Background(), Request{Topic: topicA, Partition: AnyPartition, Wait: time.Second})
			if err != nil || len(ds) != 1 {
				t.Fatal(ds, err)
			}
			seen[ds[0].Offset] = true
			r.ack(ds...)
			time.Sleep(time.Millisecond)
		}
		if len(seen) != 1000 {
			t.Fatalf("%d of 1000", len(seen))
		}
	})
}

// A parked call on an otherwise idle topic gets each delayed record when it is
// due, not at the next produce (B94).
func TestB94DueWhileIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		r.attach(0, upTo(3))
		start := time.Now()
		delays := []time.Duration{1000 * time.Millisecond, 1300 * time.Millisecond, 1301 * time.Millisecond}
		for i, d := range r.take(3) {
			r.nack(d, delays[i])
		}
		for i, want := range delays {
			ds, err := r.e.Reserve(context.Background(), Request{Topic: topicA, Partition: AnyPartition, Wait: 10 * time.Second})
			if err != nil || len(ds) != 1 || ds[0].Offset != int64(i) {
				t.Fatal(ds, err)
			}
			if got := time.Since(start); got < want || got > want+time.Millisecond {
				t.Errorf("record %d after %v, want %v", i, got, want)
			}
			r.ack(ds...)
		}
	})
}

// A trim of one partition leaves the other partition and the position of every
// group that is beyond it alone (B101); leases above it live on, an ack below
// it gets a clean answer (B102).
func TestB102Trim(t *testing.T) {
	r := newRig(t, Options{})
	r.attach(0, upTo(100))
	r.attach(1, upTo(100))
	ds := r.takeFrom(0, 31)
	r.ack(ds[:10]...)
	for _, d := range append(ds[10:15:15], ds[16:30]...) {
		r.nack(d, 0)
	}
	r.e.Trim(part(0), 20)
	if next := r.takeFrom(0, 1); next[0].Offset != 20 {
		t.Errorf("next is %d, want 20", next[0].Offset)
	}
	r.ack(ds[30])
	_, err := r.e.Ack(topicA, "", ds[15].Handle)
	wantCode(t, err, errcode.Gone)
	if first := r.takeFrom(1, 1); first[0].Offset != 0 {
		t.Errorf("the other partition begins at %d", first[0].Offset)
	}
	r.e.Trim(part(0), 5) // never back
	if d := r.describe(); d.Committed != 20 || d.Lag != 79 {
		t.Errorf("%+v", d)
	}
}

// A topic that was deleted and created anew under its name starts from its own
// first record, and old handles are gone (B114).
func TestB114RecreatedTopic(t *testing.T) {
	r := newRig(t, Options{})
	r.attach(0, upTo(500))
	old := r.take(500)
	r.ack(old[:499]...)
	r.e.Detach(part(0))
	anew := broker.PartitionID{Topic: topicA + 1}
	if err := r.e.Attach(anew, upTo(5), nil); err != nil {
		t.Fatal(err)
	}
	_, err := r.e.Ack(anew.Topic, "", old[499].Handle)
	wantCode(t, err, errcode.Gone)
	ds, err := r.e.Reserve(context.Background(), Request{Topic: anew.Topic, Partition: AnyPartition, Max: 10})
	if err != nil || len(ds) != 5 || ds[0].Offset != 0 {
		t.Fatal(offsets(ds), err)
	}
}

// Every event has a counter of its own (B251, B252).
func TestB252Counters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		r := newRig(t, Options{Registerer: reg})
		r.attach(0, upTo(10))
		ds := r.take(7)
		for _, d := range ds[:3] {
			r.nack(d, 0)
		}
		r.e.Release(ds[3])
		if _, err := r.e.Extend(topicA, "", ds[6].Handle, time.Hour); err != nil {
			t.Fatal(err)
		}
		r.ack(ds[6])
		_, err := r.e.Ack(topicA, "", ds[6].Handle)
		wantCode(t, err, errcode.Gone)
		time.Sleep(time.Second)
		synctest.Wait() // two expire
		if _, err := r.e.Skip(part(0), 8, 10); err != nil {
			t.Fatal(err)
		}
		r.take(2)
		got := gather(t, reg)
		for name, want := range map[string]float64{
			"acks_total": 1, "deliveries_total": 9, "redeliveries_total": 2, "expirations_total": 2, "extends_total": 1,
			"gone_total": 1, "in_flight": 2, "nacks_total": 3, "releases_total": 1, "skipped_total": 2,
		} {
			if got[name] != want {
				t.Errorf("%s: %v, want %v", name, got[name], want)
			}
		}
	})
}

// gather reads the engine's metrics by their names without the prefix.
func gather(t *testing.T, reg prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]float64)
	for _, f := range families {
		m := f.GetMetric()[0]
		out[strings.TrimPrefix(f.GetName(), "tidemark_queue_")] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	return out
}
