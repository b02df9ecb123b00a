package garbage

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node/ship"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
)

// model is what must not go, kept beside the world by whoever put it there.
type model struct {
	*world
	rng      *rand.Rand
	live     []broker.PartitionID
	serial   int
	inFlight map[string]manifest.Segment // above the chain's end, not published
	young    map[string]time.Time        // until when an object has to stay, by grace or window
	topics   map[broker.PartitionID][]string
	foreign  []string
	states   []string
	exports  []string
	next     uint64 // LSN
	replay   uint64
}

func newModel(t *testing.T, seed uint64) *model {
	t.Helper()
	m := &model{
		world: newWorld(t, nil), rng: rand.New(rand.NewPCG(seed, 9)), inFlight: map[string]manifest.Segment{},
		young: map[string]time.Time{}, topics: map[broker.PartitionID][]string{}, next: 1, replay: 1,
	}
	for _, key := range []string{"readme.txt", "wal/n1/notes.txt", "meta/notes", "t/readme", "x/notes"} {
		m.put(key, []byte("foreign"))
		m.foreign = append(m.foreign, key)
	}
	return m
}

// step does one thing that a cluster does.
func (m *model) step() {
	ctx := context.Background()
	pick := func() (broker.PartitionID, bool) {
		if len(m.live) == 0 {
			return broker.PartitionID{}, false
		}
		return m.live[m.rng.IntN(len(m.live))], true
	}
	id, ok := pick()
	switch op := m.rng.IntN(14); {
	case op == 0 || !ok:
		m.serial++
		m.live = append(m.live, m.topic(fmt.Sprintf("t%d", m.serial)))
	case op == 1 && len(m.live) > 1:
		t, _ := m.meta.TopicByID(id.Topic)
		m.topics[id] = m.keys(manifest.TopicPrefix(id.Topic))
		for key, s := range m.inFlight {
			if s.Partition == id {
				delete(m.inFlight, key) // its upload ends unheard
			}
		}
		if _, err := m.meta.DeleteTopic(ctx, t.Name); err != nil {
			m.t.Fatal(err)
		}
		for key := range m.young {
			if k, err := manifest.ParseKey(key); err == nil && k.Partition == id {
				m.young[key] = m.now.Add(testGrace)
			}
		}
		m.live = slices.DeleteFunc(m.live, func(x broker.PartitionID) bool { return x == id })
	case op <= 3:
		m.upload(id, 1+m.rng.IntN(3))
	case op == 4:
		c, _ := m.manifest(ctx, id)
		start := c.Start() + 10*int64(m.rng.IntN(3))
		if start > c.End() {
			return
		}
		gone, err := c.Trim(ctx, m.owner(id), start)
		if err != nil {
			m.t.Fatal(err)
		}
		for _, key := range keysOf(gone) {
			m.young[key] = m.now.Add(testGrace)
		}
		if m.rng.IntN(4) > 0 { // else the process forgot it, and the sweep finds it
			m.c.Discard(id, gone)
		}
	case op == 5: // an attempt that lost
		c, _ := m.manifest(ctx, id)
		if c.End() > 0 {
			s := m.segment(id, 10*m.rng.Int64N(c.End()/10), 10)
			m.put(s.Key(), []byte("lost"))
			m.young[s.Key()] = m.now.Add(testGrace)
		}
	case op == 6: // an upload whose entry comes later
		c, _ := m.manifest(ctx, id)
		s := m.segment(id, c.End(), 10)
		m.put(s.Key(), []byte("in flight"))
		m.inFlight[s.Key()] = s
	case op == 7: // it is published, if nobody was faster
		for key, s := range m.inFlight {
			c, _ := m.manifest(ctx, s.Partition)
			if err := c.Add(ctx, m.owner(s.Partition), s); err == nil || c.End() > s.Base {
				delete(m.inFlight, key)
				m.young[key] = m.now.Add(testGrace)
			}
			break
		}
	case op <= 9:
		n := 1 + m.rng.Uint64N(5)
		m.young[m.wal(m.next, m.next+n)] = m.now.Add(time.Hour)
		m.next += n
	case op == 10 && m.next > 1:
		m.replay = max(m.replay, m.next-m.rng.Uint64N(min(m.next, 20)))
		if key := manifest.StateKey(testNode, testInc, m.next-1); !slices.Contains(m.states, key) {
			m.states = append(m.states, m.state(m.next-1, m.replay))
			m.young[key] = m.now.Add(time.Hour)
		}
	case op == 11:
		m.export()
		key := manifest.MetaKey(1, m.meta.State().Index())
		if !slices.Contains(m.exports, key) {
			m.exports = append(m.exports, key)
			m.young[key] = m.now.Add(time.Hour)
		}
	default:
		m.pass(time.Duration(m.rng.IntN(50)) * time.Minute)
	}
}

// disturb lets the store misbehave in the next turn.
func (m *model) disturb() {
	ops := []string{fault.Put, fault.Get, fault.GetRange, fault.List, fault.Delete}
	r := fault.Rule{Ops: []string{ops[m.rng.IntN(len(ops))]}, Skip: m.rng.IntN(4), Times: 1 + m.rng.IntN(3)}
	switch m.rng.IntN(5) {
	case 0:
		r.Do = fault.Fail
	case 1:
		r.Do = fault.LoseAnswer
	case 2:
		r.Do = fault.Cut
	case 3:
		r.Ops, r.Do = []string{fault.Delete}, fault.Pretend
	case 4:
		r.Ops, r.Do, r.Age = []string{fault.List}, fault.Stale, 1+m.rng.IntN(20)
	}
	m.fault.Add(r)
}

// check fails when something is gone that a chain, a restore, an upload, a
// grace or the window needs.
func (m *model) check(what string) {
	m.t.Helper()
	ctx := context.Background()
	m.kept(what+": foreign", m.foreign...)
	for key, s := range m.inFlight {
		m.kept(what+": in flight", key)
		if c, err := manifest.Load(ctx, m.mem, s.Partition, 0); err != nil {
			m.t.Fatalf("%s: %v", what, err)
		} else if c.End() > s.Base {
			// Another attempt won: it is an orphan from here on.
			delete(m.inFlight, key)
			m.young[key] = m.now.Add(testGrace)
		}
	}
	for key, until := range m.young {
		if m.now.Before(until) {
			m.kept(what+": its grace or the window lasts", key)
		} else {
			delete(m.young, key)
		}
	}
	for _, id := range m.live {
		chain, err := manifest.Load(ctx, m.mem, id, 0)
		if err != nil {
			m.t.Fatalf("%s: %v", what, err)
		}
		segs, err := chain.Segments(ctx, 0, chain.End())
		if err != nil {
			m.t.Fatalf("%s: %v", what, err)
		}
		m.kept(what+": named", keysOf(segs)...)
	}
	for id, keys := range m.topics {
		d, _ := m.meta.State().Deleted(id.Topic)
		for _, key := range keys {
			if !m.has(key) && (!m.has(manifest.TombstoneKey(id.Topic)) || m.fence.Confirmed() < d.ChangedIndex) {
				m.t.Fatalf("%s: %s went before the deletion of its topic was settled", what, key)
			}
		}
	}
	for _, l := range [][]string{m.states, m.exports} {
		m.kept(what+": one of the newest two", l[max(0, len(l)-2):]...)
	}
	m.checkLog(what)
}

// checkLog replays by name what a restore from each of the newest two states
// would read: no frame may be missing.
func (m *model) checkLog(what string) {
	m.t.Helper()
	var objects []manifest.Key
	for _, key := range m.keys(manifest.WALPrefix(testNode, testInc)) {
		if k, err := manifest.ParseKey(key); err == nil && k.Kind == manifest.KindWAL {
			objects = append(objects, k)
		}
	}
	from := []uint64{}
	for _, key := range m.states[max(0, len(m.states)-2):] {
		k, _ := manifest.ParseKey(key)
		st, err := ship.ReadState(context.Background(), m.mem, k)
		if err != nil {
			m.t.Fatalf("%s: %v", what, err)
		}
		from = append(from, st.ReplayFrom)
	}
	if len(from) == 0 {
		from = append(from, 1)
	}
	for _, next := range from {
		for _, k := range objects {
			if k.First <= next {
				next = max(next, k.End)
			}
		}
		if next != m.next {
			m.t.Fatalf("%s: a restore finds the log up to frame %d, it was shipped up to %d", what, next-1, m.next-1)
		}
	}
}

// Random histories of a cluster, with a store that fails, loses answers, deletes
// half a batch, pretends, and lists what was; with a collector that ends between
// any two calls and begins anew knowing nothing. Nothing that a chain names, a
// restore from either of the newest two states reads, an upload in flight needs,
// or a grace or window covers is ever gone (I7, I10, T5 to T7, T26). When the
// store is well again, everything that is garbage goes.
func TestModel(t *testing.T) {
	seeds := 40
	if testing.Short() {
		seeds = 4
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := newModel(t, uint64(seed))
			for i := range 250 {
				m.step()
				if m.rng.IntN(3) == 0 {
					if m.rng.IntN(2) == 0 {
						m.disturb()
					}
					_, _ = m.c.Turn(t.Context()) // whatever it says
					m.fault.Clear()
				}
				if m.rng.IntN(15) == 0 {
					m.start() // a crash
				}
				m.check(fmt.Sprintf("step %d", i))
			}
			m.finish()
		})
	}
}

// finish lets a well store collect everything, and looks what is left.
func (m *model) finish() {
	m.start()
	m.inFlight = map[string]manifest.Segment{}
	for m.next < 3 || len(m.states) < 2 {
		m.wal(m.next, m.next+1)
		m.next++
		m.states = append(m.states, m.state(m.next-1, m.next))
	}
	for range 80 {
		m.turn()
		m.export()
		m.pass(40 * time.Minute)
	}
	for id := range m.topics {
		if left := m.keys(manifest.TopicPrefix(id.Topic)); len(left) > 0 {
			// A stale list may have shown the prefix empty too early: what is left
			// costs storage, and its topic is settled.
			if d, _ := m.meta.State().Deleted(id.Topic); !d.Purged {
				m.t.Fatalf("left of a deleted topic: %v", left)
			}
		}
	}
	for _, id := range m.live {
		chain, err := m.manifest(context.Background(), id)
		if err != nil {
			m.t.Fatal(err)
		}
		named, err := chain.Segments(context.Background(), 0, chain.End())
		if err != nil {
			m.t.Fatal(err)
		}
		for _, key := range m.keys(manifest.PartitionPrefix(id) + "s/") {
			k, _ := manifest.ParseKey(key)
			if k.Next <= chain.End() && !slices.Contains(keysOf(named), key) {
				m.t.Fatalf("an orphan is left: %s", key)
			}
		}
	}
	if left := len(m.keys(manifest.StatePrefix(testNode, testInc))); left > 3 {
		m.t.Fatalf("%d state objects are left", left)
	}
}
