package node

import (
	"bytes"
	"cmp"
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
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// appendAt appends records to partition 0 if the first would begin at offset; next
// is where the log goes on then, or ended when they were refused.
func appendAt(n *Node, topic string, offset int64, ack broker.Ack, values ...string) (next int64, err error) {
	req := broker.ProduceRequest{Topic: topic, Ack: ack, ExpectedOffset: &offset}
	for _, v := range values {
		req.Records = append(req.Records, broker.NewRecord{Value: []byte(v)})
	}
	got, err := n.Produce(context.Background(), req)
	return placedAt(got, err, offset, len(values))
}

func placedAt(got broker.Produced, err error, offset int64, count int) (next int64, _ error) {
	var e *errcode.Error
	if errors.As(err, &e) && e.Code == errcode.PreconditionFailed {
		return e.Facts["next_offset"].(int64), err
	}
	if err != nil {
		return 0, err
	}
	end := offset + int64(count)
	if p := got.Placements[0]; len(got.Placements) != 1 || p.FirstOffset != offset || p.LastOffset != end-1 || p.Count != count {
		return 0, fmt.Errorf("asked for %d to %d, placed at %+v", offset, end-1, got.Placements)
	}
	return end, nil
}

// appendEncodedAt is appendAt of a batch as a Kafka client encodes it.
func appendEncodedAt(t testing.TB, n *Node, topic string, offset int64, ack broker.Ack, values []string) (next int64, err error) {
	t.Helper()
	var recs []broker.Record
	for i, v := range values {
		recs = append(recs, broker.Record{Offset: int64(i), Timestamp: time.Now().UnixMilli(), Value: []byte(v)})
	}
	got, err := n.Produce(context.Background(), broker.ProduceRequest{
		Topic: topic, Ack: ack, ExpectedOffset: &offset, Encoded: &broker.EncodedBatch{Data: kafkaBatch(t, segment.CodecGzip, recs), Bounds: kafkaBounds},
	})
	return placedAt(got, err, offset, len(values))
}

// step is what one call saw of the log's end: it raised it from end to end+won, or
// only read end. began and ended are ticks of one clock.
type step struct {
	end          int64
	won          int64
	began, ended int64
}

// linearizable says whether the steps are those of one register that only wins
// raise: they have an order in which each sees what the one before left, and none
// comes before another that had ended when it began. The order of what they saw
// is known, so that looking at each pair of neighbours in it is enough.
func linearizable(steps []step) error {
	slices.SortFunc(steps, func(a, b step) int {
		if a.end != b.end {
			return cmp.Compare(a.end, b.end)
		}
		return cmp.Compare(a.won, b.won)
	})
	at, latest := int64(0), int64(-1)
	for i := 0; i < len(steps); {
		if steps[i].end != at {
			return fmt.Errorf("somebody saw the end %d, which the wins before only raise to %d", steps[i].end, at)
		}
		reads, began := i, latest
		for ; i < len(steps) && steps[i].end == at && steps[i].won == 0; i++ {
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
			return fmt.Errorf("the records at %d were answered before a call began that still saw the end %d", at, at)
		}
		latest = max(began, steps[i].began)
		won := steps[i].won
		if i++; i < len(steps) && steps[i].end == at {
			return fmt.Errorf("two calls won offset %d", at)
		}
		at += won
	}
	return nil
}

// The checker itself: what no register does is refused.
func TestLinearizableRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		steps []step
		ok    bool
	}{
		"one after the other":   {[]step{{0, 1, 1, 2}, {1, 0, 3, 4}, {1, 1, 5, 6}}, true},
		"beside each other":     {[]step{{0, 1, 1, 9}, {1, 0, 2, 3}, {1, 1, 1, 9}}, true},
		"batches":               {[]step{{0, 3, 1, 2}, {3, 0, 3, 4}, {3, 2, 5, 6}, {5, 0, 7, 8}}, true},
		"two winners":           {[]step{{0, 1, 1, 9}, {0, 1, 1, 9}}, false},
		"two of several sizes":  {[]step{{0, 1, 1, 9}, {0, 2, 1, 9}}, false},
		"a hole":                {[]step{{0, 1, 1, 2}, {2, 1, 3, 4}}, false},
		"the middle of a batch": {[]step{{0, 3, 1, 9}, {1, 0, 1, 9}}, false},
		"won inside a batch":    {[]step{{0, 3, 1, 9}, {2, 1, 1, 9}}, false},
		"from the future":       {[]step{{0, 1, 5, 6}, {1, 0, 1, 2}}, false},
		"from the past":         {[]step{{0, 1, 1, 2}, {0, 0, 3, 4}}, false},
		"second before first":   {[]step{{0, 1, 5, 6}, {1, 1, 1, 2}}, false},
		"never written":         {[]step{{0, 1, 1, 2}, {2, 0, 3, 4}}, false},
	} {
		if err := linearizable(c.steps); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Many callers race for the end of one partition at every ack level, with single
// records, batches and batches of a Kafka client, beside others that append without
// asking: each offset is won once, losers store nothing and are told an end that was
// the end during their call.
func TestExpectedOffsetIsLinearizable(t *testing.T) {
	n := openNode(t, testOptions(t.TempDir(), mem.New("test", nil)))
	defer closeNode(t, n)
	createTopic(t, n, "t", 1)
	const racers, wins = 16, 25
	var clock atomic.Int64
	var mu sync.Mutex
	var steps []step
	values := map[int64]string{}
	note := func(s step, stored []string) {
		mu.Lock()
		defer mu.Unlock()
		steps = append(steps, s)
		for i := range s.won {
			values[s.end+i] = stored[i]
		}
	}
	several := func(name string, n int) (list []string) {
		for i := range n {
			list = append(list, fmt.Sprintf("%s/%d", name, i))
		}
		return list
	}
	total := 0
	var wg sync.WaitGroup
	for r := range racers {
		count := 1 + r%4
		total += wins * count
		wg.Go(func() {
			at := int64(0)
			for won := 0; won < wins; {
				list := several(fmt.Sprintf("%d-%d", r, won), count)
				ack := broker.AckCommitted
				switch {
				case r == 0 && won%5 == 0:
					ack = broker.AckArchived
				case r%2 == 1:
					ack = broker.AckAccepted
				}
				began := clock.Add(1)
				var next int64
				var err error
				if r%4 == 3 && won%2 == 0 {
					next, err = appendEncodedAt(t, n, "t", at, ack, list)
				} else {
					next, err = appendAt(n, "t", at, ack, list...)
				}
				ended := clock.Add(1)
				switch {
				case err == nil:
					note(step{at, int64(count), began, ended}, list)
					won++
				case errcode.Is(err, errcode.PreconditionFailed):
					if next == at {
						t.Errorf("refused at %d, where the log ended", at)
						return
					}
					note(step{next, 0, began, ended}, nil)
				default:
					t.Error(err)
					return
				}
				at = next
			}
		})
	}
	for r := range 2 {
		total += wins * (r + 1)
		wg.Go(func() {
			for i := range wins {
				list := several(fmt.Sprintf("free %d-%d", r, i), r+1)
				req := broker.ProduceRequest{Topic: "t"}
				for _, v := range list {
					req.Records = append(req.Records, broker.NewRecord{Value: []byte(v)})
				}
				began := clock.Add(1)
				got, err := n.Produce(context.Background(), req)
				if err != nil {
					t.Error(err)
					return
				}
				note(step{got.Placements[0].FirstOffset, int64(len(list)), began, clock.Add(1)}, list)
			}
		})
	}
	wg.Wait()
	if err := linearizable(steps); err != nil {
		t.Error(err)
	}
	all := readAll(t, n, "t", 0)
	if len(all) != total || len(values) != len(all) {
		t.Fatalf("%d records are stored, %d offsets were won, %d records were answered", len(all), len(values), total)
	}
	for i, line := range all {
		if line != fmt.Sprintf("%d =%s", i, values[int64(i)]) {
			t.Fatalf("offset %d is %q, won by %q", i, line, values[int64(i)])
		}
	}
}

// An expected offset is one of a single partition: records that name none, or
// several, are refused before anything is stored, the first that is wrong by its
// number. A batch that is large enough for several encoded batches is one append.
func TestExpectedOffsetOfOnePartition(t *testing.T) {
	m := newMemNode(t, nil)
	defer func() { m.close() }()
	createTopic(t, m.Node, "t", 2)
	zero := int64(0)
	at := func(partitions ...int32) error {
		req := broker.ProduceRequest{Topic: "t", Ack: broker.AckCommitted, ExpectedOffset: &zero}
		for _, p := range partitions {
			req.Records = append(req.Records, broker.NewRecord{Partition: p, Key: []byte("k"), Value: bytes.Repeat([]byte("x"), 100<<10)})
		}
		_, err := m.Produce(context.Background(), req)
		return err
	}
	for _, c := range []struct {
		partitions []int32
		says       string
	}{
		{[]int32{-1}, "message 0: it names no partition"},
		{[]int32{1, 1, -1}, "message 2: it names no partition"},
		{[]int32{1, 1, 0}, "message 2: it goes to partition 0, message 0 to partition 1"},
	} {
		if err := at(c.partitions...); !errcode.Is(err, errcode.InvalidArgument) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v", c.partitions, err)
		}
	}
	if err := at(1, 1, 1, 1, 1, 1); err != nil {
		t.Error(err)
	}
	if err := at(1, 1); !errcode.Is(err, errcode.PreconditionFailed) || !strings.Contains(err.Error(), "goes on at offset 6, not 0") {
		t.Error(err)
	}
	if a, b := len(readAll(t, m.Node, "t", 0)), len(readAll(t, m.Node, "t", 1)); a != 0 || b != 6 {
		t.Errorf("%d and %d records are stored", a, b)
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

// A produce whose wait is over before anybody has led a sync leaves its record in
// the log's buffers. It is not visible before it is durable (I2), and it becomes
// both without another produce: the log's clock syncs what was left, within about
// a second, and who waits for records gets it.
func TestLeftAloneBecomesVisible(t *testing.T) {
	m := newMemNode(t, nil)
	defer func() { m.close() }()
	createTopic(t, m.Node, "t", 1)
	p := m.topics.Load().byName["t"].partitions[0]
	over, end := context.WithCancel(context.Background())
	end()
	for offset := range int64(2) {
		var seen atomic.Int64 // what was visible when the first sync of the log began
		seen.Store(-1)
		m.fs.set(func(op, path string) error {
			if op == "sync" && inWAL(path) {
				seen.CompareAndSwap(-1, p.Stats().HighWatermark)
			}
			return nil
		}, nil)
		got, err := m.Produce(over, broker.ProduceRequest{Topic: "t", Ack: broker.AckCommitted, Records: numbered(int(offset), 1)})
		if !errcode.Is(err, errcode.NotConfirmed) || len(got.Placements) != 1 || got.Placements[0].FirstOffset != offset {
			t.Fatalf("%+v, %v", got, err)
		}
		msgs, err := m.Consume(context.Background(), broker.ConsumeRequest{Topic: "t", Group: broker.DefaultGroup, Partition: -1, Max: 1, Wait: 20 * time.Second})
		if err != nil || len(msgs) != 1 || msgs[0].Offset != offset {
			t.Fatalf("record %d did not come: %v %v", offset, msgs, err)
		}
		if high := seen.Load(); high != offset {
			t.Errorf("the log ended at %d while record %d was being synced", high, offset)
		}
	}
	m.fs.set(nil, nil)
}
