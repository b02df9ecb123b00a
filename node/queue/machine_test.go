package queue

import (
	"context"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

type cursorKey struct {
	group     string
	partition uint32
}

type modelPart struct {
	start, hw int64
	gaps      [][2]int64
	snapLSN   uint64
	snap      []State
}

type issued struct {
	key cursorKey
	d   Delivery
}

type machine struct {
	t       *rapid.T
	e       *Engine
	j       *memJournal
	ranges  int
	cap     int
	parts   []*modelPart
	cursors map[cursorKey]*modelCursor
	frozen  map[cursorKey]*modelCursor // at the partition's snapshot
	handles []issued
}

var modelGroups = []string{"default", "other"}

const modelVisibility = 40 * time.Millisecond

func (m *machine) config(p *modelPart) PartitionConfig {
	return PartitionConfig{Generation: 3, Start: p.start, HighWatermark: p.hw, Gaps: p.gaps, VisibilityTimeout: modelVisibility, MaxInFlight: m.cap, Replay: true}
}

func (m *machine) now() int64 { return m.e.clock() }

func (m *machine) holes(p *modelPart, c *modelCursor) {
	c.settle(0, p.start)
	for _, g := range p.gaps {
		c.settle(g[0], g[1])
	}
}

func (m *machine) drawPart() (uint32, *modelPart) {
	n := rapid.IntRange(0, len(m.parts)-1).Draw(m.t, "partition")
	return uint32(n), m.parts[n]
}

// expected returns what the cursor must hand out next.
func (m *machine) expected(k cursorKey) (off int64, attempt uint32, ok bool) {
	c, p := m.cursors[k], m.parts[k.partition]
	if c.count(mLeased) >= m.cap {
		return 0, 0, false
	}
	for off := range p.hw {
		if s := c[off].state; s == mFresh || s == mReady {
			if len(c.ranges()) >= m.ranges && off != c.committed() {
				return 0, 0, false
			}
			return off, c[off].attempt + 1, true
		}
	}
	return 0, 0, false
}

func (m *machine) reserve() {
	group := rapid.SampledFrom(modelGroups).Draw(m.t, "group")
	req := Request{Topic: topicA, Group: group, Partition: rapid.IntRange(-1, len(m.parts)-1).Draw(m.t, "pin"), Max: rapid.IntRange(1, 5).Draw(m.t, "max")}
	ds, err := m.e.Reserve(context.Background(), req)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, d := range ds {
		k := cursorKey{group, d.Partition}
		off, attempt, ok := m.expected(k)
		if !ok || off != d.Offset || attempt != d.Attempt {
			m.t.Fatalf("%v: got %d attempt %d, want %d attempt %d (%v)", k, d.Offset, d.Attempt, off, attempt, ok)
		}
		until := m.now() + modelVisibility.Microseconds()
		if d.expiry != until || !d.Expiry.Equal(time.UnixMicro(until)) {
			m.t.Fatalf("%v: expiry %d, want %d", k, d.expiry, until)
		}
		m.cursors[k][off] = modelRec{state: mLeased, attempt: attempt, expiry: until, deadline: until}
		m.handles = append(m.handles, issued{k, d})
	}
	if len(ds) < req.Max {
		for n := range m.parts {
			k := cursorKey{group, uint32(n)}
			if off, _, ok := m.expected(k); ok && (req.Partition == AnyPartition || req.Partition == n) {
				m.t.Fatalf("%v: got %d of %d records, and %d is left", k, len(ds), req.Max, off)
			}
		}
	}
}

// valid says whether a handle settles its record now.
func (m *machine) valid(h issued) bool {
	c, now := m.cursors[h.key], m.now()
	r := c[h.d.Offset]
	switch {
	case r.state == mSettled, h.d.Offset >= m.parts[h.key.partition].hw:
		return false
	case r.state == mLeased, r.open && r.attempt == h.d.Attempt:
		return r.attempt == h.d.Attempt && r.expiry == h.d.expiry && now < r.deadline
	default:
		return r.attempt < h.d.Attempt && now < h.d.expiry
	}
}

func (m *machine) drawHandle() (issued, bool) {
	if len(m.handles) == 0 {
		m.t.Skip("no handle yet")
	}
	h := m.handles[len(m.handles)-1-rapid.IntRange(0, min(len(m.handles)-1, 30)).Draw(m.t, "handle")]
	return h, m.valid(h)
}

func (m *machine) check(h issued, ok bool, err error) {
	if ok != (err == nil) || err != nil && !errcode.Is(err, errcode.Gone) {
		m.t.Fatalf("%v offset %d attempt %d: valid %v, got %v", h.key, h.d.Offset, h.d.Attempt, ok, err)
	}
}

func (m *machine) ack() {
	h, ok := m.drawHandle()
	_, err := m.e.Ack(topicA, h.key.group, h.d.Handle)
	m.check(h, ok, err)
	if ok {
		m.cursors[h.key].settle(h.d.Offset, h.d.Offset+1)
	}
}

func (m *machine) ackMany() {
	first, _ := m.drawHandle()
	group := first.key.group
	var hs []issued
	var texts []string
	for _, h := range m.handles[max(0, len(m.handles)-12):] {
		if h.key.group == group && rapid.Bool().Draw(m.t, "in") {
			for range rapid.IntRange(1, 2).Draw(m.t, "times") {
				hs, texts = append(hs, h), append(texts, h.d.Handle)
			}
		}
	}
	errs, _ := m.e.AckMany(topicA, group, texts)
	for i, h := range hs {
		ok := m.valid(h)
		m.check(h, ok, errs[i])
		if ok {
			m.cursors[h.key].settle(h.d.Offset, h.d.Offset+1)
		}
	}
}

func (m *machine) nack() {
	h, ok := m.drawHandle()
	delay := time.Duration(rapid.IntRange(0, 60).Draw(m.t, "delay")) * time.Millisecond
	_, err := m.e.Nack(topicA, h.key.group, h.d.Handle, delay)
	m.check(h, ok, err)
	if ok {
		r := modelRec{state: mReady, attempt: h.d.Attempt}
		if delay > 0 {
			r.state, r.deadline = mDelayed, m.now()+delay.Microseconds()
		}
		m.cursors[h.key][h.d.Offset] = r
	}
}

func (m *machine) extend() {
	h, ok := m.drawHandle()
	c := m.cursors[h.key]
	d := time.Duration(rapid.IntRange(1, 100).Draw(m.t, "for")) * time.Millisecond
	_, err := m.e.Extend(topicA, h.key.group, h.d.Handle, d)
	ok = ok && (c[h.d.Offset].state == mLeased || c.count(mLeased) < m.cap)
	m.check(h, ok, err)
	if ok {
		c[h.d.Offset] = modelRec{state: mLeased, attempt: h.d.Attempt, expiry: h.d.expiry, deadline: m.now() + d.Microseconds()}
	}
}

func (m *machine) release() {
	h, _ := m.drawHandle()
	r := &m.cursors[h.key][h.d.Offset]
	m.e.Release(h.d)
	if r.state == mLeased && r.attempt == h.d.Attempt && r.expiry == h.d.expiry {
		*r = modelRec{state: mReady, attempt: r.attempt - 1}
	}
}

func (m *machine) sleep() {
	time.Sleep(time.Duration(rapid.IntRange(1, 70).Draw(m.t, "ms")) * time.Millisecond)
	synctest.Wait()
	m.expire()
}

func (m *machine) expire() {
	now := m.now()
	for _, c := range m.cursors {
		for off := range c {
			if r := &c[off]; (r.state == mLeased || r.state == mDelayed) && r.deadline <= now {
				*r = modelRec{state: mReady, attempt: r.attempt}
			}
		}
	}
}

func (m *machine) advance() {
	n, p := m.drawPart()
	hw := p.hw
	if records := rapid.Int64Range(0, 12).Draw(m.t, "records"); records > 0 {
		for _, g := range p.gaps {
			if g[0] <= hw {
				hw = max(hw, g[1]) // the log goes on behind the gap
			}
		}
		hw += records
	}
	if hw > modelLog-50 {
		m.t.Skip("log full")
	}
	p.hw = hw
	m.e.Advance(part(n), hw)
}

func (m *machine) trim() {
	n, p := m.drawPart()
	start := min(p.start+rapid.Int64Range(0, 6).Draw(m.t, "by"), p.hw)
	p.start = max(p.start, start)
	m.e.Trim(part(n), start)
	for _, g := range modelGroups {
		m.cursors[cursorKey{g, n}].settle(0, p.start)
	}
}

// gap puts a hole at the end of the log, the way a change of owner does.
func (m *machine) gap() {
	n, p := m.drawPart()
	from, to := p.hw, p.hw+rapid.Int64Range(1, 6).Draw(m.t, "length")
	if to > modelLog-60 {
		m.t.Skip("log full")
	}
	p.gaps = append(p.gaps, [2]int64{from, to})
	m.e.Gap(part(n), from, to)
	for _, g := range modelGroups {
		m.cursors[cursorKey{g, n}].settle(from, to)
	}
}

func (m *machine) skip() {
	n, p := m.drawPart()
	from := rapid.Int64Range(p.start, max(p.start, p.hw)).Draw(m.t, "from")
	to := from + rapid.Int64Range(0, 4).Draw(m.t, "length")
	if _, err := m.e.Skip(part(n), from, to); err != nil {
		m.t.Fatal(err)
	}
	for _, g := range m.e.Groups(topicA) { // later ones meet the records themselves
		m.cursors[cursorKey{g, n}].settle(from, min(to, p.hw))
	}
}

func (m *machine) seek() {
	n, p := m.drawPart()
	k := cursorKey{rapid.SampledFrom(modelGroups).Draw(m.t, "group"), n}
	to := rapid.Int64Range(0, p.hw+1).Draw(m.t, "to")
	_, err := m.e.Seek(part(n), k.group, to)
	if to > p.hw && to > p.start {
		wantCode(m.t, err, errcode.OutOfRange)
		return
	}
	if err != nil {
		m.t.Fatal(err)
	}
	old, c := *m.cursors[k], m.cursors[k]
	*c = modelCursor{}
	for off := max(to, p.start); off < modelLog; off++ {
		if r := old[off]; r.state == mLeased || r.open {
			c[off] = modelRec{state: mReady, attempt: r.attempt}
		}
	}
	c.settle(0, max(to, p.start))
	m.holes(p, c)
}

func (m *machine) remove() {
	group := rapid.SampledFrom(modelGroups).Draw(m.t, "group")
	if _, err := m.e.Delete(topicA, group); err != nil {
		if errcode.Is(err, errcode.NotFound) {
			return
		}
		m.t.Fatal(err)
	}
	for n, p := range m.parts {
		c := m.cursors[cursorKey{group, uint32(n)}]
		*c = modelCursor{}
		m.holes(p, c)
	}
}

func (m *machine) snapshot() {
	n, p := m.drawPart()
	states, lsn := m.e.Snapshot(part(n))
	b := AppendStates(nil, states)
	back, err := DecodeStates(b)
	if err != nil || !reflect.DeepEqual(back, states) {
		m.t.Fatalf("%v\n%+v\n%+v", err, states, back)
	}
	p.snap, p.snapLSN = back, lsn
	for _, g := range modelGroups {
		k := cursorKey{g, n}
		m.frozen[k] = m.cursors[k].frozen(m.now())
	}
}

// compare holds the whole engine against the model.
func (m *machine) compare() {
	for n := range m.parts {
		states, _ := m.e.Snapshot(part(uint32(n)))
		got := make(map[string]State)
		for _, s := range states {
			got[s.Group] = s
		}
		for _, g := range modelGroups {
			k := cursorKey{g, uint32(n)}
			c := m.cursors[k]
			want := c.capture(g, m.now())
			s, ok := got[g]
			if !ok { // never used, or deleted: as good as at the start
				blank := new(modelCursor)
				m.holes(m.parts[n], blank)
				s = blank.capture(g, m.now())
			}
			if !reflect.DeepEqual(s, want) {
				m.t.Fatalf("%v:\ngot  %+v\nwant %+v", k, s, want)
			}
			if ok {
				m.compareDescription(k, c)
			}
		}
	}
}

func (m *machine) compareDescription(k cursorKey, c *modelCursor) {
	ds, err := m.e.Describe(topicA, k.group)
	if err != nil {
		m.t.Fatal(err)
	}
	hw := m.parts[k.partition].hw
	want := Description{
		Partition: k.partition, Committed: c.committed(), HighWatermark: hw, InFlight: c.count(mLeased),
		Delayed: c.count(mDelayed), Returned: c.count(mReady), Ranges: len(c.ranges()), OldestUnsettled: -1,
	}
	for off := hw - 1; off >= 0; off-- {
		if c[off].state != mSettled {
			want.Lag++
			want.OldestUnsettled = off
		}
	}
	if got := ds[k.partition]; got != want {
		m.t.Fatalf("%v:\ngot  %+v\nwant %+v", k, got, want)
	}
}

// Every operation, in any order, with expiry, gaps, trims, seeks, crashes that
// lose the tail of the journal and logs that lose records, does to the engine
// what it does to a model that spells out every offset (I11, B67, B69, B73).
func TestModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Wrapped, since rapid asks for the test's deadline, which a bubble forbids.
		rapid.Check(struct{ rapid.TB }{t}, func(rt *rapid.T) {
			m := &machine{
				t: rt, j: new(memJournal),
				ranges:  rapid.SampledFrom([]int{2, 5, 1000}).Draw(rt, "max ranges"),
				cap:     rapid.SampledFrom([]int{3, 8, 1000}).Draw(rt, "max in flight"),
				cursors: make(map[cursorKey]*modelCursor), frozen: make(map[cursorKey]*modelCursor),
			}
			m.e = New(Options{Secret: []byte("model"), Journal: m.j, MaxRanges: m.ranges})
			defer func() { m.e.Close() }()
			for n := range rapid.IntRange(1, 3).Draw(rt, "partitions") {
				p := new(modelPart)
				m.parts = append(m.parts, p)
				for _, g := range modelGroups {
					m.cursors[cursorKey{g, uint32(n)}] = new(modelCursor)
					m.frozen[cursorKey{g, uint32(n)}] = new(modelCursor)
				}
				if err := m.e.Attach(part(uint32(n)), m.config(p), nil); err != nil {
					rt.Fatal(err)
				}
				if err := m.e.Serve(part(uint32(n))); err != nil {
					rt.Fatal(err)
				}
			}
			rt.Repeat(map[string]func(*rapid.T){
				"":         func(*rapid.T) { m.compare() },
				"advance":  func(rt *rapid.T) { m.t = rt; m.advance() },
				"advance2": func(rt *rapid.T) { m.t = rt; m.advance() },
				"reserve":  func(rt *rapid.T) { m.t = rt; m.reserve() },
				"reserve2": func(rt *rapid.T) { m.t = rt; m.reserve() },
				"ack":      func(rt *rapid.T) { m.t = rt; m.ack() },
				"ack2":     func(rt *rapid.T) { m.t = rt; m.ack() },
				"ack many": func(rt *rapid.T) { m.t = rt; m.ackMany() },
				"nack":     func(rt *rapid.T) { m.t = rt; m.nack() },
				"extend":   func(rt *rapid.T) { m.t = rt; m.extend() },
				"release":  func(rt *rapid.T) { m.t = rt; m.release() },
				"sleep":    func(rt *rapid.T) { m.t = rt; m.sleep() },
				"trim":     func(rt *rapid.T) { m.t = rt; m.trim() },
				"gap":      func(rt *rapid.T) { m.t = rt; m.gap() },
				"skip":     func(rt *rapid.T) { m.t = rt; m.skip() },
				"seek":     func(rt *rapid.T) { m.t = rt; m.seek() },
				"delete":   func(rt *rapid.T) { m.t = rt; m.remove() },
				"snapshot": func(rt *rapid.T) { m.t = rt; m.snapshot() },
				"restart":  func(rt *rapid.T) { m.t = rt; m.restart() },
			})
		})
	})
}
