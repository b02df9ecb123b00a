package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// result is how a parked call ended.
type result struct {
	n   int // which call
	ds  []Delivery
	err error
}

// park starts a call and returns when it waits.
func (r *rig) park(ctx context.Context, n int, req Request, out chan<- result) {
	req.Topic = topicA
	go func() {
		ds, err := r.e.Reserve(ctx, req)
		out <- result{n, ds, err}
	}()
	synctest.Wait()
}

// Five thousand parked calls cost nothing: an hour passes without the engine
// reading its clock once. A record wakes the first of them and no other.
func TestFiveThousandWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls = 5000
		var reads atomic.Int64
		r := newRig(t, Options{Now: func() time.Time { reads.Add(1); return time.Now() }})
		r.attach(0, upTo(0))
		out := make(chan result, calls)
		for n := range calls {
			go func() {
				ds, err := r.e.Reserve(context.Background(), Request{Topic: topicA, Partition: AnyPartition, Wait: 3 * time.Hour})
				out <- result{n, ds, err}
			}()
		}
		synctest.Wait()
		if n := r.e.parked.Load(); n != calls {
			t.Fatalf("%d wait", n)
		}
		before := reads.Load()
		time.Sleep(time.Hour)
		if n := reads.Load() - before; n != 0 {
			t.Errorf("the clock was read %d times while nothing happened", n)
		}
		for hw := range int64(100) {
			r.e.Advance(part(0), hw+1)
			synctest.Wait()
			if len(out) != 1 {
				t.Fatalf("one record ended %d calls", len(out))
			}
			if got := <-out; got.err != nil || len(got.ds) != 1 || got.ds[0].Offset != hw {
				t.Fatalf("%+v", got)
			} else {
				r.ack(got.ds...)
			}
		}
		r.e.Advance(part(0), 150) // fifty records wake fifty
		synctest.Wait()
		if len(out) != 50 {
			t.Fatalf("fifty records ended %d calls", len(out))
		}
		r.e.Close()
		synctest.Wait()
		for len(out) > 0 {
			if got := <-out; got.err != nil {
				wantCode(t, got.err, errcode.Closed)
			}
		}
		if n := r.e.parked.Load(); n != 0 {
			t.Errorf("%d wait after Close", n)
		}
	})
}

// Calls are served in the order they came, pinned and not pinned alike.
func TestWaitersInArrivalOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		r.attach(0, upTo(0))
		r.attach(1, upTo(0))
		out := make(chan result, 20)
		pins := []int{AnyPartition, 0, 1, AnyPartition, 0, 0, AnyPartition}
		for n, pin := range pins {
			r.park(context.Background(), n, Request{Partition: pin, Wait: time.Minute}, out)
		}
		for hw, want := range []int{0, 1, 3, 4, 5, 6} {
			r.e.Advance(part(0), int64(hw+1))
			if got := <-out; got.n != want || len(got.ds) != 1 {
				t.Fatalf("record %d went to call %d, want %d (%v)", hw, got.n, want, got.err)
			}
		}
		r.e.Advance(part(1), 1)
		if got := <-out; got.n != 2 {
			t.Fatalf("call %d", got.n)
		}
	})
}

// Every way a record becomes deliverable reaches a call that waits: commit,
// nack, release, expiry, a freed slot, a seek, a partition that is attached.
func TestWhatWakesAWaiter(t *testing.T) {
	for name, wake := range map[string]func(r *rig, ds []Delivery){
		"nack":    func(r *rig, ds []Delivery) { r.nack(ds[0], 0) },
		"delay":   func(r *rig, ds []Delivery) { r.nack(ds[0], time.Millisecond) },
		"release": func(r *rig, ds []Delivery) { r.e.Release(ds...) },
		"expiry":  func(*rig, []Delivery) {},
		"ack":     func(r *rig, ds []Delivery) { r.ack(ds[0]) },
		"ack many": func(r *rig, ds []Delivery) {
			if errs, _ := r.e.AckMany(topicA, "", []string{ds[0].Handle}); errs[0] != nil {
				r.Error(errs[0])
			}
		},
		"skip": func(r *rig, ds []Delivery) {
			if _, err := r.e.Skip(part(0), 0, 1); err != nil {
				r.Error(err)
			}
		},
		"trim": func(r *rig, ds []Delivery) { r.e.Trim(part(0), 1) },
		"gap":  func(r *rig, ds []Delivery) { r.e.Gap(part(0), 0, 1) },
		"seek": func(r *rig, ds []Delivery) {
			if _, err := r.e.Seek(part(0), "", 0); err != nil {
				r.Error(err)
			}
		},
		"attach": func(r *rig, ds []Delivery) { r.attach(1, upTo(1)) },
		"configure": func(r *rig, ds []Delivery) {
			if err := r.e.Configure(part(0), time.Second, 3); err != nil {
				r.Error(err)
			}
		},
		"apply": func(r *rig, ds []Delivery) {
			if err := r.e.Apply(part(0), "default", appendSettle(nil, 0, 1)); err != nil {
				r.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, Options{})
				cfg := upTo(2)
				cfg.MaxInFlight = 1
				r.attach(0, cfg)
				ds := r.take(1)
				out := make(chan result, 2)
				r.park(context.Background(), 0, Request{Partition: AnyPartition, Wait: time.Minute}, out)
				r.park(context.Background(), 1, Request{Partition: AnyPartition, Wait: time.Minute}, out)
				start := time.Now()
				wake(r, ds)
				got := <-out
				if got.n != 0 || got.err != nil || len(got.ds) != 1 || time.Since(start) > time.Second {
					t.Fatalf("%+v after %v", got, time.Since(start))
				}
			})
		})
	}
}

// A call ends with what it deserves: nothing after its wait, Canceled when its
// caller leaves, and why when the engine sends it away.
func TestHowWaitersEnd(t *testing.T) {
	for name, c := range map[string]struct {
		pin  int
		end  func(r *rig, cancel func())
		code errcode.Code // 0: no error
	}{
		"wait over":          {AnyPartition, func(*rig, func()) {}, 0},
		"canceled":           {AnyPartition, func(_ *rig, cancel func()) { cancel() }, errcode.Canceled},
		"closed":             {AnyPartition, func(r *rig, _ func()) { r.e.Close() }, errcode.Closed},
		"closed, pinned":     {1, func(r *rig, _ func()) { r.e.Close() }, errcode.Closed},
		"detached, pinned":   {1, func(r *rig, _ func()) { r.e.Detach(part(1)) }, errcode.Unavailable},
		"one of two is left": {AnyPartition, func(r *rig, _ func()) { r.e.Detach(part(1)) }, 0},
		"none is left":       {AnyPartition, func(r *rig, _ func()) { r.e.Detach(part(1)); r.e.Detach(part(0)) }, errcode.Unavailable},
		"group deleted": {AnyPartition, func(r *rig, _ func()) {
			if _, err := r.e.Delete(topicA, "default"); err != nil {
				r.Error(err)
			}
		}, errcode.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, Options{})
				r.attach(0, upTo(0))
				r.attach(1, upTo(0))
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				out := make(chan result, 1)
				start := time.Now()
				r.park(ctx, 0, Request{Partition: c.pin, Wait: time.Minute}, out)
				c.end(r, cancel)
				got := <-out
				switch took := time.Since(start); {
				case len(got.ds) != 0:
					t.Fatalf("%+v", got)
				case c.code == 0 && (got.err != nil || took != time.Minute):
					t.Fatalf("%v after %v", got.err, took)
				case c.code != 0 && (!errcode.Is(got.err, c.code) || took != 0):
					t.Fatalf("%v after %v, want %v", got.err, took, c.code)
				}
				if n := r.e.parked.Load(); n != 0 {
					t.Errorf("%d wait", n)
				}
			})
		})
	}
}

// Above the bound a call is told to come back, and a place is free again when
// one leaves (I12).
func TestMaxWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{MaxWaiters: 2})
		r.attach(0, upTo(0))
		out := make(chan result, 3)
		req := Request{Partition: AnyPartition, Wait: time.Minute}
		r.park(context.Background(), 0, req, out)
		ctx, cancel := context.WithCancel(context.Background())
		r.park(ctx, 1, req, out)
		r.park(context.Background(), 2, req, out)
		got := <-out
		wantCode(t, got.err, errcode.Overloaded)
		if got.n != 2 {
			t.Fatalf("call %d", got.n)
		}
		cancel()
		<-out
		r.park(context.Background(), 3, req, out)
		r.e.Advance(part(0), 2)
		if a, b := <-out, <-out; a.err != nil || b.err != nil {
			t.Fatal(a.err, b.err)
		}
	})
}

// A call for many takes what there is, from several partitions, and does not
// wait for the rest; partitions take turns.
func TestReserveMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		for n := range uint32(3) {
			r.attach(n, upTo(4))
		}
		if n := len(r.take(100)); n != 12 {
			t.Fatalf("%d of 12", n)
		}
		out := make(chan result, 1)
		r.park(context.Background(), 0, Request{Partition: AnyPartition, Max: 100, Wait: time.Minute}, out)
		r.e.Advance(part(1), 9)
		if got := <-out; len(got.ds) != 5 || got.ds[0].Partition != 1 {
			t.Fatalf("%+v", got)
		}
		for n := range uint32(3) {
			r.e.Advance(part(n), 20)
		}
		turns := make(map[uint32]int)
		for range 6 {
			turns[r.take(1)[0].Partition]++
		}
		if turns[0] != 2 || turns[1] != 2 || turns[2] != 2 {
			t.Errorf("turns %v", turns)
		}
	})
}

// Arguments that cannot be meant are refused before anything is leased.
func TestReserveArguments(t *testing.T) {
	r := newRig(t, Options{})
	ctx := context.Background()
	_, err := r.e.Reserve(ctx, Request{Topic: topicA, Partition: AnyPartition})
	wantCode(t, err, errcode.Unavailable)
	r.attach(0, upTo(1))
	for name, c := range map[string]struct {
		req  Request
		code errcode.Code
	}{
		"max":                {Request{Topic: topicA, Max: MaxReserve + 1}, errcode.InvalidArgument},
		"negative max":       {Request{Topic: topicA, Max: -1}, errcode.InvalidArgument},
		"partition":          {Request{Topic: topicA, Partition: -2}, errcode.InvalidArgument},
		"partition too high": {Request{Topic: topicA, Partition: 1024}, errcode.InvalidArgument},
		"other partition":    {Request{Topic: topicA, Partition: 1}, errcode.Unavailable},
		"other topic":        {Request{Topic: topicA + 1}, errcode.Unavailable},
		"group name":         {Request{Topic: topicA, Group: "a/b"}, errcode.InvalidArgument},
	} {
		if ds, err := r.e.Reserve(ctx, c.req); !errcode.Is(err, c.code) || len(ds) > 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	_, err = r.e.Reserve(gone, Request{Topic: topicA})
	wantCode(t, err, errcode.Canceled)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the cause is lost: %v", err)
	}
	for n := range MaxGroups - 1 { // the default group is there already
		name := fmt.Sprintf("g%d", n)
		_, err = r.e.Reserve(ctx, Request{Topic: topicA, Group: name})
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.e.Reserve(ctx, Request{Topic: topicA, Group: "one-more"})
	wantCode(t, err, errcode.TooMany)
	r.e.Close()
	_, err = r.e.Reserve(ctx, Request{Topic: topicA})
	wantCode(t, err, errcode.Closed)
	r.e.Close()
}

// Consumers that ack, nack, let expire, leave while they wait and release, all
// at once on two groups, while records are committed: every record is acked
// exactly once per group, and a second ack of none succeeds.
func TestStress(t *testing.T) {
	const partitions, records, workers = 3, 400, 8
	r := newRig(t, Options{})
	for n := range uint32(partitions) {
		r.attach(n, PartitionConfig{VisibilityTimeout: 20 * time.Millisecond, MaxInFlight: 16})
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	var producers, consumers sync.WaitGroup
	for n := range uint32(partitions) {
		producers.Go(func() {
			for hw := range int64(records) {
				r.e.Advance(part(n), hw+1)
			}
		})
	}
	type key struct {
		group     string
		partition uint32
		offset    int64
	}
	var mu sync.Mutex
	acked := make(map[key]int)
	var left atomic.Int64
	left.Store(2 * partitions * records)
	for w := range 2 * workers {
		group := modelGroups[w%2]
		consumers.Go(func() {
			for i := 0; left.Load() > 0 && ctx.Err() == nil; i++ {
				pin := AnyPartition
				if (w+i)%5 == 0 {
					pin = i % partitions
				}
				call, stop := context.WithTimeout(ctx, time.Duration(1+i%3)*time.Millisecond)
				ds, err := r.e.Reserve(call, Request{Topic: topicA, Group: group, Partition: pin, Max: 1 + i%4, Wait: 2 * time.Millisecond})
				stop()
				if err != nil && !errcode.Is(err, errcode.Canceled) {
					t.Error(err)
					return
				}
				for k, d := range ds {
					switch (w + i + k) % 7 {
					case 0:
						r.e.Release(d)
					case 1:
						if _, err := r.e.Nack(topicA, group, d.Handle, time.Duration(k)*time.Millisecond); err != nil && !errcode.Is(err, errcode.Gone) {
							t.Error(err)
						}
					case 2:
						if i%3 == 0 {
							continue // let it expire
						}
						if _, err := r.e.Extend(topicA, group, d.Handle, 5*time.Millisecond); err != nil && !errcode.Is(err, errcode.Gone) {
							t.Error(err)
						}
						fallthrough
					default:
						_, err := r.e.Ack(topicA, group, d.Handle)
						if _, again := r.e.Ack(topicA, group, d.Handle); !errcode.Is(again, errcode.Gone) {
							t.Errorf("second ack: %v", again)
						}
						if err == nil {
							mu.Lock()
							acked[key{group, d.Partition, d.Offset}]++
							mu.Unlock()
							left.Add(-1)
						} else if !errcode.Is(err, errcode.Gone) {
							t.Error(err)
						}
					}
				}
			}
		})
	}
	producers.Wait()
	consumers.Wait()
	if len(acked) != 2*partitions*records {
		t.Errorf("%d of %d records acked", len(acked), 2*partitions*records)
	}
	for k, n := range acked {
		if n != 1 {
			t.Errorf("%v acked %d times", k, n)
		}
	}
	for _, group := range modelGroups {
		ds, err := r.e.Describe(topicA, group)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range ds {
			if d.Committed != records || d.Lag != 0 || d.InFlight != 0 || d.Delayed != 0 || d.Returned != 0 || d.Ranges != 0 {
				t.Errorf("%s: %+v", group, d)
			}
		}
	}
}
