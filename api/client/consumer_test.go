package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// reports collects what a consumer reports.
type reports struct {
	mu   sync.Mutex
	errs []error
}

func (r *reports) add(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
}

func (r *reports) all() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]error(nil), r.errs...)
}

// running is a consumer that runs; stop closes it and returns what Run did.
type running struct {
	*Consumer
	reports
	t     *testing.T
	ended chan error // what Run returned
}

func run(t *testing.T, ctx context.Context, c *Client, topic string, h Handler, o ConsumerOptions) *running {
	t.Helper()
	r := &running{t: t, ended: make(chan error, 1)}
	o.OnError = r.add
	var err error
	if r.Consumer, err = c.NewConsumer(topic, h, o); err != nil {
		t.Fatal(err)
	}
	go func() { r.ended <- r.Run(ctx) }()
	return r
}

func (r *running) stop() {
	r.t.Helper()
	if err := errors.Join(r.Close(context.Background()), <-r.ended); err != nil {
		r.t.Error(err)
	}
}

// A consumer handles every record of a real node, whatever its handlers do the
// first time: fail, panic, end their goroutine. Each such time is reported with
// its record, and in the end everything is settled. Values come byte for byte.
func TestConsumerHandlesAll(t *testing.T) {
	r := through(t, Options{}, TopicSpec{})
	p := producer(t, r.c, r.topic, ProducerOptions{})
	const n = 200
	for i := range n {
		if _, err := p.Send(t.Context(), Record{Key: []byte{byte(i)}, Value: []byte(fmt.Sprintf("v%d", i))}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	seen := map[int64]int{}
	handled := map[int64]string{}
	c := run(t, t.Context(), r.c, r.topic, func(_ context.Context, m Message) error {
		mu.Lock()
		seen[m.Offset]++
		first := seen[m.Offset] == 1
		mu.Unlock()
		switch {
		case first && m.Offset%10 == 3:
			return errors.New("not yet")
		case first && m.Offset%10 == 5:
			panic("oh")
		case first && m.Offset%10 == 7:
			runtime.Goexit()
		}
		mu.Lock()
		defer mu.Unlock()
		handled[m.Offset] = string(m.Value)
		return nil
	}, ConsumerOptions{NackDelay: func(Message, error) time.Duration { return 0 }})
	soon(t, "all are handled", func() bool { mu.Lock(); defer mu.Unlock(); return len(handled) == n })
	c.stop()
	for i := range int64(n) {
		if handled[i] != fmt.Sprintf("v%d", i) {
			t.Errorf("record %d was %q", i, handled[i])
		}
	}
	var failed, panicked, exited int
	for _, err := range c.all() {
		var e *Error
		if !errors.As(err, &e) || e.Facts["offset"] == nil {
			t.Errorf("a report without its record: %v", err)
		}
		switch {
		case strings.Contains(err.Error(), "not yet"):
			failed++
		case strings.Contains(err.Error(), "panicked: oh") && strings.Contains(err.Error(), "consumer_test.go"):
			panicked++
		case strings.Contains(err.Error(), "Goexit"):
			exited++
		default:
			t.Error(err)
		}
	}
	if failed != n/10 || panicked != n/10 || exited != n/10 {
		t.Errorf("%d failures, %d panics, %d exits were reported, want %d of each", failed, panicked, exited, n/10)
	}
	if msgs, err := r.c.Consume(t.Context(), r.topic, ConsumeOptions{}); err != nil || len(msgs) > 0 {
		t.Errorf("left: %v %v", msgs, err)
	}
}

// B76: answers of acks get lost, all the time, and connections break; every record
// is handled once all the same, and none comes back.
func TestConsumerLostAcks(t *testing.T) {
	r := through(t, Options{}, TopicSpec{})
	const n = 100
	recs := make([]Record, n)
	if _, err := r.c.ProduceBatch(t.Context(), r.topic, recs, ProduceOptions{Ack: AckCommitted}); err != nil {
		t.Fatal(err)
	}
	r.on("/ack", func(n int) fault {
		switch n % 4 {
		case 1:
			return fault{loseAfter: true}
		case 2:
			return fault{loseFirst: true}
		case 3:
			return fault{status: 503}
		default:
			return fault{}
		}
	})
	var handled [n]atomic.Int32
	var count atomic.Int32
	c := run(t, t.Context(), r.c, r.topic, func(_ context.Context, m Message) error {
		handled[m.Offset].Add(1)
		count.Add(1)
		return nil
	}, ConsumerOptions{})
	soon(t, "all are handled", func() bool { return count.Load() >= n })
	c.stop()
	for i := range handled {
		if got := handled[i].Load(); got != 1 {
			t.Errorf("record %d was handled %d times", i, got)
		}
	}
	for _, err := range c.all() {
		if !Is(err, Gone) || !strings.Contains(err.Error(), "answer was lost") {
			t.Error(err)
		}
	}
	r.on("", nil)
	if msgs, err := r.c.Consume(t.Context(), r.topic, ConsumeOptions{}); err != nil || len(msgs) > 0 {
		t.Errorf("left: %v %v", msgs, err)
	}
}

// A lease is renewed after each third of the visibility timeout for as long as its
// handler runs, or waits for its turn, and not longer; then the record is acked.
func TestLeaseIsRenewedWhileTheHandlerRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newQueueNode(30*time.Second, 2)
		c := run(t, t.Context(), inside(t, node.serve, Retry{}), "t", func(ctx context.Context, m Message) error {
			time.Sleep(95 * time.Second)
			return ctx.Err()
		}, ConsumerOptions{Handlers: 1, InFlight: 2})
		time.Sleep(1000 * time.Second)
		c.stop()
		if errs := c.all(); len(errs) > 0 {
			t.Error(errs)
		}
		// The first ran until second 95, the second until second 190.
		if a, b := len(node.lines("extend 0")), len(node.lines("extend 1")); a != 9 || b != 18 && b != 19 {
			t.Errorf("%d and %d renewals", a, b)
		}
		if got := fmt.Sprint(node.lines("ack", "nack")); got != "[ack 0  204 ack 1  204]" {
			t.Error(got)
		}
	})
}

// B80, B81: a lease that the node says is gone, or that could not be renewed in
// time, is given up: its handler's context ends and says why, that is reported, and
// the record is not acked, whatever the handler says. It is not asked for again.
func TestLostLease(t *testing.T) {
	for name, node := range map[string]*queueNode{
		"gone": {settling: func(action, _ string) (int, string) {
			if action == "extend" {
				return 410, "gone"
			}
			return 0, ""
		}},
		"unreachable": {lose: func(action string) bool { return action == "extend" }, settling: func(action, _ string) (int, string) {
			if action == "extend" {
				return 503, "unavailable"
			}
			return 0, ""
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newQueueNode(30*time.Second, 1)
				q.settling, q.lose = node.settling, node.lose
				began := time.Now()
				lost := make(chan time.Duration, 1)
				c := run(t, t.Context(), inside(t, q.serve, Retry{}), "t", func(ctx context.Context, _ Message) error {
					<-ctx.Done()
					if !Is(context.Cause(ctx), Gone) {
						t.Errorf("cause: %v", context.Cause(ctx))
					}
					lost <- time.Since(began)
					return nil
				}, ConsumerOptions{})
				after := <-lost
				if want := map[string]time.Duration{"gone": 10 * time.Second, "unreachable": 30 * time.Second}[name]; after < want || after > want+3*time.Second {
					t.Errorf("lost after %s, want %s", after, want)
				}
				time.Sleep(time.Minute)
				c.stop()
				if got := q.lines("ack", "nack"); len(got) > 0 {
					t.Errorf("settled all the same: %v", got)
				}
				if errs := c.all(); len(errs) != 1 || !Is(errs[0], Gone) {
					t.Errorf("reports: %v", errs)
				}
				if n := len(q.lines("extend")); name == "gone" && n != 1 {
					t.Errorf("%d renewals of a lease that is gone", n)
				}
			})
		})
	}
}

// An ack is tried until the lease ends and not longer; one that is answered 410 is
// reported and not tried again; one after a lost answer says that it may have
// arrived. The consumer goes on in each case.
func TestAckIsRetriedUntilTheLeaseEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		settling func(action, handle string) (int, string)
		lose     bool
		busy     bool // the whole call is refused, for longer than the lease
		least    int
		most     int
		says     string
	}{
		"refused": {func(string, string) (int, string) { return 503, "storage" }, false, false, 5, 200, "before its lease ended"},
		"gone":    {func(string, string) (int, string) { return 410, "gone" }, false, false, 1, 1, "x"},
		"lost":    {nil, true, false, 2, 2, "whose answer was lost"},
		"busy":    {nil, false, true, 5, 12, "before its lease ended"},
		"no more": {func(string, string) (int, string) { return 403, "denied" }, false, false, 1, 1, "x"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node := newQueueNode(30*time.Second, 2)
				node.settling = func(action, h string) (int, string) {
					if h == "0" && tc.settling != nil {
						return tc.settling(action, h)
					}
					return 0, ""
				}
				node.lose = func(string) bool {
					once := tc.lose
					tc.lose = false
					return once
				}
				if tc.busy {
					node.refusing = func() (*http.Response, error) { return answer(503, "", "Retry-After", "60") }
				}
				c := run(t, t.Context(), inside(t, node.serve, Retry{}), "t", func(context.Context, Message) error { return nil }, ConsumerOptions{Handlers: 1, InFlight: 1})
				time.Sleep(time.Minute)
				node.mu.Lock()
				node.refusing = nil
				node.mu.Unlock()
				time.Sleep(2 * time.Minute)
				c.stop()
				if n := len(node.lines("ack 0")); n < tc.least || n > tc.most {
					t.Errorf("%d acks of the first record", n)
				}
				if got := node.lines("ack 1"); len(got) < 1 || len(got) > 1 && !tc.busy {
					t.Errorf("the second record: %v", got)
				}
				errs := c.all()
				if len(errs) < 1 || len(errs) > 1 && !tc.busy || !strings.Contains(errs[0].Error(), tc.says) {
					t.Errorf("reports: %v", errs)
				}
			})
		})
	}
}

// Handlers and InFlight are bounds, and both are used to the full.
func TestConsumerIsBounded(t *testing.T) {
	for _, o := range []ConsumerOptions{{Handlers: 1, InFlight: 1}, {Handlers: 3, InFlight: 3}, {Handlers: 4, InFlight: 11}} {
		synctest.Test(t, func(t *testing.T) {
			node := newQueueNode(30*time.Second, 60)
			var now, most atomic.Int32
			c := run(t, t.Context(), inside(t, node.serve, Retry{}), "t", func(context.Context, Message) error {
				if n := now.Add(1); n > most.Load() {
					most.Store(n)
				}
				time.Sleep(time.Second)
				now.Add(-1)
				return nil
			}, o)
			time.Sleep(70 * time.Second)
			c.stop()
			if n := len(node.lines("ack")); n != 60 || int(most.Load()) != o.Handlers || node.most != o.InFlight {
				t.Errorf("%+v: %d acks, %d handlers at a time, %d leases", o, n, most.Load(), node.most)
			}
		})
	}
}

// With one handler the records come in their order.
func TestConsumerKeepsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []int64
		c := run(t, t.Context(), inside(t, newQueueNode(time.Minute, 50).serve, Retry{}), "t", func(_ context.Context, m Message) error {
			got = append(got, m.Offset)
			return nil
		}, ConsumerOptions{Handlers: 1, InFlight: 20})
		time.Sleep(time.Second)
		c.stop()
		for i, o := range got {
			if o != int64(i) || len(got) != 50 {
				t.Fatal(got)
			}
		}
	})
}

// Close lets what runs end and acks it, and gives back at once what waits for a
// handler. When its context ends the handlers are told; what they return then goes
// back too. So it is when the context of Run ends.
func TestConsumerStops(t *testing.T) {
	handler := func(ctx context.Context, m Message) error {
		select {
		case <-time.After(10 * time.Second):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for name, tc := range map[string]struct {
		stop func(t *testing.T, c *running, cancel func())
		took time.Duration
		want string
	}{
		"drained": {func(t *testing.T, c *running, _ func()) {
			if err := c.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}, 8 * time.Second, "[nack 1  204 ack 0  204]"},
		"in a hurry": {func(t *testing.T, c *running, _ func()) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := c.Close(ctx); !Is(err, Canceled) {
				t.Error(err)
			}
		}, time.Second, "[nack 1  204 nack 0  204]"},
		"by Run's context": {func(_ *testing.T, _ *running, cancel func()) { cancel() }, 0, "[nack 0  204 nack 1  204]"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node := newQueueNode(30*time.Second, 2)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				c := run(t, ctx, inside(t, node.serve, Retry{}), "t", handler, ConsumerOptions{Handlers: 1, InFlight: 2})
				time.Sleep(2 * time.Second)
				began := time.Now()
				tc.stop(t, c, cancel)
				if err := <-c.ended; err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took != tc.took {
					t.Errorf("it took %s, want %s", took, tc.took)
				}
				got := node.lines("ack", "nack")
				if name == "by Run's context" {
					slices.Sort(got) // both at once
				}
				if tc.want != fmt.Sprint(got) {
					t.Errorf("%v, want %s", got, tc.want)
				}
				if errs := c.all(); len(errs) > 0 {
					t.Error(errs)
				}
			})
		})
	}
}

// A consumer goes on while its node refuses, is gone or stops, does not ask it all
// the time meanwhile, and reports each time. What can never be ends Run.
func TestConsumerOutlivesItsNode(t *testing.T) {
	for name, polling := range map[string]func() (*http.Response, error){
		"refused":  func() (*http.Response, error) { return answer(503, "", "Retry-After", "2") },
		"gone":     func() (*http.Response, error) { return nil, errCut },
		"empty":    func() (*http.Response, error) { return answer(204, "") },
		"a proxy":  func() (*http.Response, error) { return answer(502, "<html>") },
		"nonsense": func() (*http.Response, error) { return answer(200, "{", "Content-Type", "application/json") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node := newQueueNode(30*time.Second, 1)
				var polls atomic.Int32
				node.polling = func() (*http.Response, error) { polls.Add(1); return polling() }
				var handled atomic.Int32
				c := run(t, t.Context(), inside(t, node.serve, Retry{}), "t", func(context.Context, Message) error { handled.Add(1); return nil }, ConsumerOptions{})
				time.Sleep(time.Minute)
				node.mu.Lock()
				node.polling = nil
				n := int(polls.Load())
				node.mu.Unlock()
				if n < 5 || n > 100 {
					t.Errorf("%d polls in a minute", n)
				}
				if reported := len(c.all()); name == "empty" && reported > 0 || name != "empty" && reported < n-1 {
					t.Errorf("%d polls, %d reports", n, reported)
				}
				time.Sleep(30 * time.Second)
				c.stop()
				if handled.Load() != 1 {
					t.Error("not handled after all")
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		node := newQueueNode(30*time.Second, 1)
		node.polling = func() (*http.Response, error) { return answer(404, `{"error":"no topic","code":"not_found"}`) }
		c := run(t, t.Context(), inside(t, node.serve, Retry{}), "t", func(context.Context, Message) error { return nil }, ConsumerOptions{})
		if err := <-c.ended; !Is(err, NotFound) {
			t.Error(err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := c.Run(t.Context()); !Is(err, InvalidArgument) {
			t.Errorf("run twice: %v", err)
		}
	})
}

// Options out of bounds are refused; a consumer that never ran can be closed.
func TestConsumerOptions(t *testing.T) {
	c := inside(t, nil, Retry{})
	h := func(context.Context, Message) error { return nil }
	for _, o := range []ConsumerOptions{{Handlers: -1}, {Handlers: 4097}, {Handlers: 4, InFlight: 3}, {InFlight: 4097}, {Wait: -1}} {
		if _, err := c.NewConsumer("t", h, o); !Is(err, InvalidArgument) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := c.NewConsumer("t", nil, ConsumerOptions{}); !Is(err, InvalidArgument) {
		t.Error(err)
	}
	q, err := c.NewConsumer("t", h, ConsumerOptions{Handlers: 4096})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(q.Close(t.Context()), q.Close(t.Context())); err != nil {
		t.Error(err)
	}
	if err := q.Run(t.Context()); !Is(err, InvalidArgument) {
		t.Error(err)
	}
}
