package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

func send(t *testing.T, p *Producer, values ...string) []Delivery {
	t.Helper()
	out := make([]Delivery, len(values))
	for i, v := range values {
		var err error
		if out[i], err = p.Send(t.Context(), Record{Value: []byte(v)}); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func producer(t *testing.T, c *Client, topic string, o ProducerOptions) *Producer {
	t.Helper()
	p, err := c.NewProducer(topic, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = p.Close(ended) // the test has closed it before, unless it failed
	})
	return p
}

// Records with and without keys, headers and bytes arrive whole, in the order of
// each key, and every delivery names the place where its record really stands.
func TestProducerPlaces(t *testing.T) {
	four := uint32(4)
	r := through(t, Options{}, TopicSpec{Partitions: &four})
	p := producer(t, r.c, r.topic, ProducerOptions{Ack: AckCommitted, BatchRecords: 7})
	var sent []Record
	var fates []Delivery
	for i := range 200 {
		rec := Record{Value: []byte(fmt.Sprintf("\"v%d\xff", i))}
		switch {
		case i%3 > 0:
			rec.Key = []byte{0, byte(i % 5)}
		case i%2 > 0:
			rec.Key = []byte{}
		}
		if i%11 == 0 {
			rec.Headers = []Header{{Name: "Trace <é>", Value: []byte{0xff, byte(i)}}, {Name: "n", Value: nil}}
		}
		d, err := p.Send(t.Context(), rec)
		if err != nil {
			t.Fatal(err)
		}
		rec.Value, rec.Key = bytes.Clone(rec.Value), bytes.Clone(rec.Key)
		sent, fates = append(sent, rec), append(fates, d)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	logs := make([][]Record, four)
	for i := range logs {
		for rec, err := range r.c.Replay(t.Context(), r.topic, uint32(i), ReplayOptions{}) {
			if err != nil {
				t.Fatal(err)
			}
			logs[i] = append(logs[i], rec)
		}
	}
	last := map[string]int64{}
	for i, d := range fates {
		got, err := d.Wait(t.Context())
		if err != nil || got.Partition < 0 || got.Offset < 0 {
			t.Fatalf("record %d: %+v %v", i, got, err)
		}
		rec := logs[got.Partition][got.Offset]
		if string(rec.Value) != string(sent[i].Value) || (rec.Key == nil) != (sent[i].Key == nil) || string(rec.Key) != string(sent[i].Key) || fmt.Sprintf("%q", rec.Headers) != fmt.Sprintf("%q", sent[i].Headers) {
			t.Errorf("record %d at %+v is %+v, sent was %+v", i, got, rec, sent[i])
		}
		key := fmt.Sprintf("%d %q", got.Partition, rec.Key)
		if before, ok := last[key]; ok && rec.Key != nil && got.Offset <= before {
			t.Errorf("record %d of key %q overtook another", i, rec.Key)
		}
		last[key] = got.Offset
	}
}

// A single partition is known at every level, an offset at committed alone, and
// where the answer does not add up nothing is claimed.
func TestPlaces(t *testing.T) {
	run := func(partition uint32, first int64, n int) Placement {
		return Placement{Partition: partition, FirstOffset: first, LastOffset: first + int64(n) - 1, Count: n}
	}
	at := func(key []byte) uint32 { return broker.PartitionForKey(key, 4) }
	a, b := []byte("a"), []byte("b")
	for at(a) == at(b) {
		b[0]++
	}
	other := uint32(0)
	for other == at(a) || other == at(b) {
		other++
	}
	for name, tc := range map[string]struct {
		keys [][]byte
		runs []Placement
		of   uint32
		want string
	}{
		"one run":             {[][]byte{a, nil, b}, []Placement{run(2, 5, 3)}, 0, "2/5 2/6 2/7"},
		"two runs":            {[][]byte{a, b, a}, []Placement{run(at(b), 9, 1), run(at(a), 3, 2)}, 4, fmt.Sprintf("%d/3 %d/9 %d/4", at(a), at(b), at(a))},
		"keyless apart":       {[][]byte{a, nil, nil}, []Placement{run(other, 9, 2), run(at(a), 3, 1)}, 4, fmt.Sprintf("%d/3 %d/9 %d/10", at(a), other, other)},
		"keyless beside":      {[][]byte{a, nil, b}, []Placement{run(at(a), 9, 2), run(at(b), 3, 1)}, 4, fmt.Sprintf("%d/9 %d/10 %d/3", at(a), at(a), at(b))},
		"partitions unknown":  {[][]byte{a, b}, []Placement{run(at(b), 9, 1), run(at(a), 3, 1)}, 0, ""},
		"another topic":       {[][]byte{a, b}, []Placement{run(other, 9, 1), run(at(a), 3, 1)}, 4, ""},
		"too few":             {[][]byte{a, b}, []Placement{run(at(a), 3, 1)}, 4, ""},
		"no run of keyless":   {[][]byte{a, nil}, []Placement{run(at(a), 3, 1), run(other, 3, 2)}, 4, ""},
		"not assigned yet":    {[][]byte{a}, []Placement{{Partition: 1, FirstOffset: -1, LastOffset: -1, Count: 1}}, 4, ""},
		"offsets with a hole": {[][]byte{a, a}, []Placement{{Partition: 1, FirstOffset: 3, LastOffset: 9, Count: 2}}, 4, ""},
	} {
		p := newPending(time.Now(), 10)
		for _, key := range tc.keys {
			p.add(&Record{Key: key}, nil)
		}
		ok := p.place(tc.runs, tc.of, false)
		var got []string
		for i := range p.placed {
			got = append(got, fmt.Sprintf("%d/%d", p.placed[i].Partition, p.placed[i].Offset))
		}
		if s := strings.Join(got, " "); s != tc.want || ok != (tc.want != "") {
			t.Errorf("%s: %q %v, want %q", name, s, ok, tc.want)
		}
	}
}

// A lost answer: without AtLeastOnce the records fail as perhaps stored, and are
// stored once; with it they are sent again and may stand twice. What was refused
// or never arrived is sent again either way, once, and keeps its order.
func TestProducerLostAnswers(t *testing.T) {
	for _, tc := range []struct {
		name  string
		again bool
		f     fault
		class RetryClass // of the first record's error; RetryNever: none
		want  string
	}{
		{"lost", false, fault{loseAfter: true}, RetryUnknown, "[a b]"},
		{"lost, again", true, fault{loseAfter: true}, RetryNever, "[a a b]"},
		{"cut before the node", false, fault{loseFirst: true}, RetryUnknown, "[b]"},
		{"cut before the node, again", true, fault{loseFirst: true}, RetryNever, "[a b]"},
		{"busy", false, fault{status: 503}, RetryNever, "[a b]"},
		{"a bound", false, fault{status: 429}, RetryNever, "[a b]"},
		{"bad gateway", false, fault{status: 502}, RetryUnknown, "[b]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := through(t, Options{}, TopicSpec{})
			p := producer(t, r.c, r.topic, ProducerOptions{Ack: AckCommitted, AtLeastOnce: tc.again, BatchRecords: 1})
			r.on("/batch", func(n int) fault {
				if n == 1 {
					return tc.f
				}
				return fault{}
			})
			fates := send(t, p, "a", "b")
			_, err := fates[0].Wait(t.Context())
			if (err == nil) != (tc.class == RetryNever) || err != nil && CodeOf(err).Retry() != tc.class {
				t.Errorf("a: %v", err)
			}
			if _, err := fates[1].Wait(t.Context()); err != nil {
				t.Errorf("b: %v", err)
			}
			if got := fmt.Sprint(r.values(0)); got != tc.want {
				t.Errorf("the log has %s, want %s", got, tc.want)
			}
			if err := p.Close(t.Context()); (err == nil) != (tc.class == RetryNever) {
				t.Errorf("close: %v", err)
			}
		})
	}
}

// B175: one bad record fails alone; its neighbours are stored, in order.
func TestProducerBadRecordFailsAlone(t *testing.T) {
	small := int64(10)
	r := through(t, Options{}, TopicSpec{MaxRecordBytes: &small})
	p := producer(t, r.c, r.topic, ProducerOptions{Ack: AckCommitted, Linger: time.Hour})
	var heard []string
	long := strings.Repeat("x", 11)
	for _, v := range []string{"a", long, "b", "c", long, "d"} {
		rec := Record{Value: []byte(v)}
		if v == "c" {
			rec.Headers = []Header{{Name: "tm-no", Value: []byte("x")}} // a name of the broker's
		}
		err := p.SendFunc(t.Context(), rec, func(d Delivered, err error) {
			heard = append(heard, fmt.Sprint(d.Offset, CodeOf(err), err == nil))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	err := p.Flush(t.Context())
	if !Is(err, TooLarge) && !Is(err, InvalidArgument) || !strings.Contains(err.Error(), "3 records") {
		t.Errorf("flush: %v", err)
	}
	if want := "[0 internal true -1 too_large false 1 internal true -1 invalid_argument false -1 too_large false 2 internal true]"; fmt.Sprint(heard) != want {
		t.Errorf("heard %v, want %s", heard, want)
	}
	if got := fmt.Sprint(r.values(0)); got != "[a b d]" {
		t.Error(got)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Errorf("the failures were reported before: %v", err)
	}
}

// batches stands in for a node and notes the values of each batch.
type batches struct {
	mu     sync.Mutex
	got    []string
	answer func(n int) (*http.Response, error) // nil: accepted
}

func (b *batches) serve(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	values := []string{}
	for len(body) > 0 {
		key, rest := frameKey(body)
		n := int(rest[3])
		values = append(values, string(key)+string(rest[4:4+n]))
		body = rest[4+n:]
	}
	b.mu.Lock()
	b.got = append(b.got, strings.Join(values, ""))
	n := len(b.got)
	b.mu.Unlock()
	if b.answer != nil {
		return b.answer(n)
	}
	return answer(202, `{"accepted":1}`)
}

func (b *batches) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.got, " ")
}

// A batch goes when it is full by records or bytes, when it has lingered, or when
// it is flushed; never more than one is under way, and what comes meanwhile goes
// together.
func TestProducerBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var node batches
		c := inside(t, node.serve, Retry{})
		p := producer(t, c, "t", ProducerOptions{Linger: 100 * time.Millisecond, BatchRecords: 3, BatchBytes: 40})
		step := func(want string, values ...string) {
			t.Helper()
			send(t, p, values...)
			synctest.Wait()
			if node.String() != want {
				t.Errorf("%q, want %q", node.String(), want)
			}
		}
		step("")
		step("", "a", "b")
		time.Sleep(99 * time.Millisecond)
		step("")
		time.Sleep(time.Millisecond)
		step("ab")
		step("ab cde", "c", "d", "e", "f")
		if err := p.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		step("ab cde f")
		long := strings.Repeat("l", 33) // with its lengths over the bound: alone
		step("ab cde f g "+long, "g", long)
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := p.Send(t.Context(), Record{}); !Is(err, Closed) {
			t.Errorf("after Close: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		node := batches{answer: func(int) (*http.Response, error) { <-free; return answer(202, `{}`) }}
		p := producer(t, inside(t, node.serve, Retry{}), "t", ProducerOptions{Linger: -1})
		send(t, p, "a")
		synctest.Wait()
		send(t, p, "b", "c")
		synctest.Wait()
		if node.String() != "a" {
			t.Errorf("two batches under way: %s", node.String())
		}
		close(free)
		if err := p.Close(t.Context()); err != nil || node.String() != "a bc" {
			t.Errorf("%s %v", node.String(), err)
		}
	})
}

// The buffer is bounded by records and by bytes: at the bound a record is taken,
// beyond it Send waits until there is room or its context ends, or fails at once,
// as was asked for. A record that can never fit is refused.
func TestProducerBufferIsBounded(t *testing.T) {
	for name, o := range map[string]ProducerOptions{
		"records": {BufferRecords: 2, BufferBytes: 1000},
		"bytes":   {BufferRecords: 1000, BufferBytes: 2*(frameCost+1) + 8},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				free := make(chan struct{})
				node := batches{answer: func(int) (*http.Response, error) { <-free; return answer(202, `{}`) }}
				c := inside(t, node.serve, Retry{})
				o.Linger = time.Hour
				p := producer(t, c, "t", o)
				send(t, p, "a", "b") // at the bound
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if _, err := p.Send(ctx, Record{Value: []byte("c")}); !Is(err, Canceled) {
					t.Errorf("beyond the bound: %v", err)
				}
				if node.String() != "ab" {
					t.Error("what fills the buffer lingers")
				}
				taken := make(chan error)
				go func() {
					_, err := p.Send(t.Context(), Record{Value: []byte("d")})
					taken <- err
				}()
				synctest.Wait()
				free <- struct{}{}
				if err := <-taken; err != nil {
					t.Error(err)
				}
				send(t, p, "e")
				go func() {
					_, err := p.Send(t.Context(), Record{Value: []byte("f")}) // waits until Close
					taken <- err
				}()
				synctest.Wait()
				closed := make(chan error)
				go func() { closed <- p.Close(t.Context()) }()
				if err := <-taken; !Is(err, Closed) {
					t.Errorf("a Send that waits while the producer is closed: %v", err)
				}
				close(free)
				if err := <-closed; err != nil {
					t.Error(err)
				}
			})
			synctest.Test(t, func(t *testing.T) {
				var node batches
				o.Linger, o.Full = time.Hour, FullFails
				p := producer(t, inside(t, node.serve, Retry{}), "t", o)
				send(t, p, "a", "b")
				if _, err := p.Send(t.Context(), Record{Value: []byte("c")}); !Is(err, TooMany) || CodeOf(err).Retry() != RetryAfter {
					t.Errorf("beyond the bound: %v", err)
				}
				if err := p.Flush(t.Context()); err != nil {
					t.Error(err)
				}
				send(t, p, "c")
				if _, err := p.Send(t.Context(), Record{Value: make([]byte, o.BufferBytes)}); !Is(err, TooLarge) {
					t.Errorf("larger than the buffer: %v", err)
				}
				if err := p.Close(t.Context()); err != nil || node.String() != "ab c" {
					t.Errorf("%s %v", node.String(), err)
				}
			})
		})
	}
}

// A node that refuses is tried for as long as Patience says and no longer; what
// waits behind fails with it. A Close that may not wait fails what is left and
// returns, and says what was never sent.
func TestProducerGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := batches{answer: func(int) (*http.Response, error) { return answer(503, "", "Retry-After", "20") }}
		p := producer(t, inside(t, node.serve, Retry{}), "t", ProducerOptions{Patience: time.Minute, BatchRecords: 1})
		began := time.Now()
		fates := send(t, p, "a", "b")
		if _, err := fates[0].Wait(t.Context()); !Is(err, Unavailable) || time.Since(began) < 40*time.Second || time.Since(began) > time.Minute {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		if _, err := fates[1].Wait(t.Context()); CodeOf(err).Retry() != RetryAfter || time.Since(began) > time.Minute {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		last := send(t, p, "c", "d")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.Close(ctx); err == nil || time.Since(began) > 62*time.Second {
			t.Errorf("close after %s: %v", time.Since(began), err)
		}
		if _, err := last[1].Wait(t.Context()); !Is(err, Closed) {
			t.Errorf("never sent: %v", err)
		}
		if _, err := (Delivery{}).Wait(t.Context()); !Is(err, InvalidArgument) {
			t.Error(err)
		}
	})
}

// Options out of bounds are refused, each below and above.
func TestProducerOptions(t *testing.T) {
	c := inside(t, nil, Retry{})
	for _, o := range []ProducerOptions{
		{BatchRecords: -1}, {BatchRecords: 1001}, {BatchBytes: -1}, {BatchBytes: 8<<20 + 1}, {BufferRecords: -1}, {BufferBytes: -1}, {Patience: -1}, {AckWait: -1}, {Full: 2},
	} {
		if _, err := c.NewProducer("t", o); !Is(err, InvalidArgument) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	p := producer(t, c, "t", ProducerOptions{BatchRecords: 1000, BatchBytes: 8 << 20})
	if _, err := p.Send(t.Context(), Record{Headers: []Header{{Name: "\xff"}}}); !Is(err, InvalidArgument) {
		t.Error(err)
	}
	if err := errors.Join(p.Close(t.Context()), p.Close(t.Context())); err != nil {
		t.Error(err)
	}
}

// Many goroutines share a producer: every record arrives once, and those of one
// goroutine in its order.
func TestProducerIsShared(t *testing.T) {
	r := through(t, Options{}, TopicSpec{})
	p := producer(t, r.c, r.topic, ProducerOptions{BufferRecords: 50, BatchRecords: 20, Linger: -1})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 50 {
				if _, err := p.Send(t.Context(), Record{Key: []byte{byte(g)}, Value: []byte{byte(i)}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
	next := map[byte]byte{}
	for rec, err := range r.c.Replay(t.Context(), r.topic, 0, ReplayOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if g := rec.Key[0]; rec.Value[0] != next[g] {
			t.Fatalf("goroutine %d: %d came, %d was due", g, rec.Value[0], next[g])
		}
		next[rec.Key[0]]++
	}
	if len(next) != 8 {
		t.Errorf("%v", next)
	}
}
