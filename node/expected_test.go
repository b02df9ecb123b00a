package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// appendAt appends one record if it would begin at offset; next is where the log
// ended when it was refused.
func appendAt(n *Node, topic string, offset int64, ack broker.Ack, value string) (next int64, err error) {
	got, err := n.Produce(context.Background(), broker.ProduceRequest{
		Topic: topic, Ack: ack, ExpectedOffset: &offset, Records: []broker.NewRecord{{Value: []byte(value)}},
	})
	var e *errcode.Error
	if errors.As(err, &e) && e.Code == errcode.PreconditionFailed {
		return e.Facts["next_offset"].(int64), err
	}
	if err != nil {
		return 0, err
	}
	if p := got.Placements[0]; p.FirstOffset != offset || p.LastOffset != offset || p.Count != 1 {
		return 0, fmt.Errorf("asked for %d, placed at %+v", offset, p)
	}
	return offset + 1, nil
}

// step is what one call saw of the log's end: it raised it from end to end+1, or
// only read end. began and ended are ticks of one clock.
type step struct {
	end          int64
	won          bool
	began, ended int64
}

// linearizable says whether the steps are those of one register that only wins
// raise: they have an order in which each sees what the one before left, and none
// comes before another that had ended when it began. The order of what they saw
// is known, so that looking at each pair of neighbours in it is enough.
func linearizable(steps []step) error {
	slices.SortFunc(steps, func(a, b step) int {
		if a.end != b.end {
			return int(a.end - b.end)
		}
		return map[bool]int{false: 0, true: 1}[a.won] - map[bool]int{false: 0, true: 1}[b.won]
	})
	at, latest := int64(0), int64(-1)
	for i := 0; i < len(steps); {
		if steps[i].end != at {
			return fmt.Errorf("somebody saw the end %d, which the wins before only raise to %d", steps[i].end, at)
		}
		reads, began := i, latest
		for ; i < len(steps) && steps[i].end == at && !steps[i].won; i++ {
			began = max(began, steps[i].began)
		}
		for _, s := range steps[reads:i] {
			if s.ended < latest {
				return fmt.Errorf("the end %d was seen by a call that had ended before %d was written", at, at-1)
			}
		}
		if i == len(steps) || steps[i].end != at {
			continue // nobody won here: nothing higher may have been seen
		}
		if steps[i].ended < began {
			return fmt.Errorf("the record at %d was answered before a call began that still saw the end %d", at, at)
		}
		latest = max(began, steps[i].began)
		at++
		if i++; i < len(steps) && steps[i].won && steps[i].end == at-1 {
			return fmt.Errorf("two calls won offset %d", at-1)
		}
	}
	return nil
}

// The checker itself: what no register does is refused.
func TestLinearizableRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		steps []step
		ok    bool
	}{
		"one after the other": {[]step{{0, true, 1, 2}, {1, false, 3, 4}, {1, true, 5, 6}}, true},
		"beside each other":   {[]step{{0, true, 1, 9}, {1, false, 2, 3}, {1, true, 1, 9}}, true},
		"two winners":         {[]step{{0, true, 1, 9}, {0, true, 1, 9}}, false},
		"a hole":              {[]step{{0, true, 1, 2}, {2, true, 3, 4}}, false},
		"from the future":     {[]step{{0, true, 5, 6}, {1, false, 1, 2}}, false},
		"from the past":       {[]step{{0, true, 1, 2}, {0, false, 3, 4}}, false},
		"second before first": {[]step{{0, true, 5, 6}, {1, true, 1, 2}}, false},
		"never written":       {[]step{{0, true, 1, 2}, {2, false, 3, 4}}, false},
	} {
		if err := linearizable(c.steps); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Many callers race for the end of one partition at every ack level, beside others
// that append without asking: each offset is won once, losers store nothing and are
// told an end that was the end during their call.
func TestExpectedOffsetIsLinearizable(t *testing.T) {
	n := openNode(t, testOptions(t.TempDir(), mem.New("test", nil)))
	defer closeNode(t, n)
	createTopic(t, n, "t", 1)
	const racers, wins = 16, 25
	var clock atomic.Int64
	var mu sync.Mutex
	var steps []step
	values := map[int64]string{}
	note := func(s step, value string) {
		mu.Lock()
		defer mu.Unlock()
		steps = append(steps, s)
		if s.won {
			values[s.end] = value
		}
	}
	var wg sync.WaitGroup
	for r := range racers {
		wg.Go(func() {
			at := int64(0)
			for won := 0; won < wins; {
				value := fmt.Sprintf("%d-%d", r, won)
				ack := broker.AckCommitted
				switch {
				case r == 0 && won%5 == 0:
					ack = broker.AckArchived
				case r%2 == 1:
					ack = broker.AckAccepted
				}
				began := clock.Add(1)
				next, err := appendAt(n, "t", at, ack, value)
				ended := clock.Add(1)
				switch {
				case err == nil:
					note(step{at, true, began, ended}, value)
					won++
				case errcode.Is(err, errcode.PreconditionFailed):
					if next == at {
						t.Errorf("refused at %d, where the log ended", at)
						return
					}
					note(step{next, false, began, ended}, "")
				default:
					t.Error(err)
					return
				}
				at = next
			}
		})
	}
	for r := range 2 {
		wg.Go(func() {
			for i := range wins {
				value := fmt.Sprintf("free %d-%d", r, i)
				began := clock.Add(1)
				got, err := n.Produce(context.Background(), broker.ProduceRequest{Topic: "t", Records: []broker.NewRecord{{Value: []byte(value)}}})
				if err != nil {
					t.Error(err)
					return
				}
				note(step{got.Placements[0].FirstOffset, true, began, clock.Add(1)}, value)
			}
		})
	}
	wg.Wait()
	if err := linearizable(steps); err != nil {
		t.Error(err)
	}
	all := readAll(t, n, "t", 0)
	if len(all) != (racers+2)*wins || len(values) != len(all) {
		t.Fatalf("%d records are stored, %d offsets were won, %d produces were answered", len(all), len(values), (racers+2)*wins)
	}
	for i, line := range all {
		if line != fmt.Sprintf("%d =%s", i, values[int64(i)]) {
			t.Fatalf("offset %d is %q, won by %q", i, line, values[int64(i)])
		}
	}
}

// A refusal rests on what is durable: while the record that took the offset is not
// synced yet nobody is told that the offset is taken, and after a crash that loses
// it the offset is free.
func TestRefusalIsDurable(t *testing.T) {
	m := newMemNode(t, nil)
	createTopic(t, m.Node, "t", 1)
	p := m.topics.Load().byName["t"].partitions[0]
	hold, held := make(chan struct{}), make(chan struct{}, 100)
	m.fs.set(func(op, path string) error {
		if op == "sync" && inWAL(path) {
			held <- struct{}{}
			<-hold
		}
		return nil
	}, nil)
	first := make(chan error, 1)
	go func() { _, err := appendAt(m.Node, "t", 0, broker.AckCommitted, "first"); first <- err }()
	<-held // it has its offset, and its sync has begun
	if st := p.Stats(); st.Next != 1 || st.HighWatermark != 0 {
		t.Fatalf("next %d, high watermark %d", st.Next, st.HighWatermark)
	}
	zero := int64(0)
	_, err := m.Produce(context.Background(), broker.ProduceRequest{Topic: "t", Ack: broker.AckCommitted, ExpectedOffset: &zero, Wait: 20 * time.Millisecond, Records: numbered(7, 1)})
	if !errcode.Is(err, errcode.Unavailable) || !strings.Contains(err.Error(), "nothing was stored") {
		t.Errorf("while the first is not durable: %v", err)
	}
	second := make(chan error, 1)
	go func() { _, err := appendAt(m.Node, "t", 0, broker.AckCommitted, "second"); second <- err }()
	lost := m.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0, RNG: rand.New(rand.NewPCG(1, 2))})
	m.fs.set(nil, nil)
	close(hold)
	if err := <-first; err != nil {
		t.Error(err)
	}
	if err := <-second; !errcode.Is(err, errcode.PreconditionFailed) {
		t.Errorf("the second: %v", err)
	}
	if all := readAll(t, m.Node, "t", 0); fmt.Sprint(all) != "[0 =first]" {
		t.Errorf("stored: %v", all)
	}
	m.kill(lost) // as if the power had gone before the sync ended
	if next, err := appendAt(m.Node, "t", 0, broker.AckCommitted, "after"); err != nil {
		t.Errorf("after the loss the log ends at %d: %v", next, err)
	}
	m.close()
}

// wait bounds committed: the answer comes when it is over, with the place. It does
// not bound accepted, which is answered when the record is synced.
func TestWaitBoundsCommittedAlone(t *testing.T) {
	m := newMemNode(t, nil)
	defer func() { m.close() }()
	createTopic(t, m.Node, "t", 1)
	hold, held := make(chan struct{}), make(chan struct{}, 100)
	m.fs.set(func(op, path string) error {
		if op == "sync" && inWAL(path) {
			held <- struct{}{}
			<-hold
		}
		return nil
	}, nil)
	send := func(ack broker.Ack) (broker.Produced, error) {
		return m.Produce(context.Background(), broker.ProduceRequest{Topic: "t", Ack: ack, Wait: time.Millisecond, Records: numbered(1, 1)})
	}
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { _, err := send(broker.AckAccepted); first <- err }()
	<-held // the first leads the sync, so that the others wait for it
	go func() { _, err := send(broker.AckAccepted); second <- err }()
	got, err := send(broker.AckCommitted)
	if !errcode.Is(err, errcode.NotConfirmed) || len(got.Placements) != 1 || got.Placements[0].FirstOffset < 0 {
		t.Errorf("committed: %+v %v", got, err)
	}
	m.fs.set(nil, nil)
	close(hold)
	for _, answer := range []chan error{first, second} {
		if err := <-answer; err != nil {
			t.Errorf("accepted: %v", err)
		}
	}
}
