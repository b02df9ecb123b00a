package partition

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// newRoom is a room without an engine that holds what memory says.
func newRoom(limit, most int64) (r *room, memory *atomic.Int64) {
	memory = new(atomic.Int64)
	return &room{memory: memory, limit: limit, most: most}, memory
}

// line is a number of waits that were begun one after the other.
type line struct {
	t   *testing.T
	r   *room
	ask []context.CancelFunc
	got []chan error // each has the answer of one
}

// join begins one more wait, and returns when it waits.
func (l *line) join(size int64) {
	l.t.Helper()
	before, _ := l.r.waiting()
	ctx, cancel := context.WithCancel(l.t.Context())
	got := make(chan error, 1)
	go func() {
		_, err := l.r.wait(ctx, nil, size)
		got <- err
	}()
	l.ask, l.got = append(l.ask, cancel), append(l.got, got)
	within(l.t, "it waits", func() bool { n, _ := l.r.waiting(); return n == before+1 })
}

// Appends go on in the order in which they came, whatever their size: a large one
// is not passed by small ones that came later. Only as many are woken as there is
// room for, what they take counts at once, and one that leaves holds up nobody.
func TestRoomIsGivenInOrder(t *testing.T) {
	const limit = 100
	r, memory := newRoom(limit, 1<<30)
	memory.Store(limit + 1)
	l := &line{t: t, r: r}
	sizes := []int64{10, 500, 20, 30, 1, 1}
	for _, size := range sizes {
		l.join(size)
	}
	answered := func(want ...int) {
		t.Helper()
		for i, got := range l.got {
			if slices.Contains(want, i) {
				if err := <-got; err != nil {
					t.Errorf("the wait %d of %d bytes: %v", i, sizes[i], err)
				}
			} else if len(got) > 0 {
				t.Fatalf("%d went on with %v, only %v have room", i, <-got, want)
			}
		}
	}
	left := func(want int) {
		t.Helper()
		if n, _ := r.waiting(); n != want {
			t.Fatalf("%d wait, want %d", n, want)
		}
	}
	r.freed(1) // to the limit, below which the first two go: the second is over it
	left(5)
	answered(0)
	if got := memory.Load(); got != limit+10 {
		t.Fatalf("%d held", got)
	}
	r.freed(9)
	left(5) // one byte over it still
	r.freed(1)
	left(4)
	answered(1)
	r.freed(500 - 1)
	left(4)
	l.ask[2]()
	if err := <-l.got[2]; !errors.Is(err, context.Canceled) {
		t.Fatalf("one that left: %v", err)
	}
	r.freed(1 + 30)
	left(1) // 70 held: 30 and 1 more go, that is the limit and one above it
	answered(3, 4)
	r.freed(1)
	left(0)
	answered(5)
}

// One that waits takes its place behind the others even when there is room again,
// and nobody waits while there is some.
func TestRoomHasNoShortcut(t *testing.T) {
	r, memory := newRoom(100, 1<<30)
	if taken, err := r.wait(t.Context(), nil, 1000); taken != 0 || err != nil {
		t.Fatalf("with room: %d %v", taken, err)
	}
	memory.Store(101)
	l := &line{t: t, r: r}
	l.join(1)
	memory.Store(0) // as between the two steps of freed
	l.join(1)
	r.freed(1)
	for _, got := range l.got {
		if err := <-got; err != nil {
			t.Fatal(err)
		}
	}
}

// What waits is bounded by its bytes, and by its number: each counts for what its
// request holds. The next one is refused at once, with a time to come back.
func TestRoomIsBounded(t *testing.T) {
	const most = 4 * waiterCost
	for name, size := range map[string]int64{"many": 1, "large": 2 * waiterCost} {
		r, memory := newRoom(0, most)
		memory.Store(1)
		l := &line{t: t, r: r}
		for range most / max(size, waiterCost) {
			l.join(size)
		}
		late, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err := r.wait(late, nil, size)
		cancel()
		var e *errcode.Error
		if !errcode.Is(err, errcode.Overloaded) || !errors.As(err, &e) || e.Wait == 0 {
			t.Errorf("%s: one too many: %v", name, err)
		}
		l.ask[0]()
		if err := <-l.got[0]; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: who left: %v", name, err)
		}
		l.join(size)
		r.freed(1) // lets the first go
		within(t, "there is a place", func() bool { n, _ := r.waiting(); return n < len(l.got)-1 })
	}
	// A limit below one append lets one wait.
	r, memory := newRoom(0, 1)
	memory.Store(1)
	(&line{t: t, r: r}).join(16 << 20)
}

// Waits that end by their contexts while others are let go give back exactly what
// they were promised.
func TestRoomLosesNothing(t *testing.T) {
	const limit, waits = 1000, 1000
	r, memory := newRoom(limit, 1<<30)
	memory.Store(limit + 1)
	var all sync.WaitGroup
	var went, left atomic.Int64
	leave := make([]context.CancelFunc, waits)
	for i := range waits {
		ctx, cancel := context.WithCancel(t.Context())
		leave[i] = cancel
		all.Go(func() {
			size := int64(i%200 + 1)
			taken, err := r.wait(ctx, nil, size)
			if err != nil {
				left.Add(1)
				return
			}
			went.Add(1)
			memory.Add(size) // the append
			runtime.Gosched()
			r.freed(taken)
			r.freed(size) // its flush
		})
	}
	within(t, "all wait", func() bool { n, _ := r.waiting(); return n == waits })
	all.Go(func() {
		for _, i := range rand.Perm(waits) {
			leave[i]()
		}
	})
	r.freed(limit + 1)
	all.Wait()
	if got := memory.Load(); got != 0 {
		t.Errorf("%d bytes are held when all are gone", got)
	}
	if n, bytes := r.waiting(); n != 0 || bytes != 0 {
		t.Errorf("%d appends wait with %d bytes", n, bytes)
	}
	if went.Load() == 0 || went.Load()+left.Load() != waits {
		t.Errorf("%d went on and %d left, of %d", went.Load(), left.Load(), waits)
	}
}

// flushGate holds the flusher while it is shut.
type flushGate struct {
	mu   sync.Mutex
	shut chan struct{} // closed when the gate opens; nil: it is open
}

func (g *flushGate) hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = make(chan struct{})
}

func (g *flushGate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		close(g.shut)
		g.shut = nil
	}
}

// pass is Options.Compress, which the flusher asks for each batch.
func (g *flushGate) pass(broker.TopicID) bool {
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut != nil {
		<-shut
	}
	return false
}

// crowdedRig is an engine whose tails are full while its flusher is held.
type crowdedRig struct {
	*rig
	t     *testing.T
	gate  flushGate
	disk  atomic.Pointer[errcode.Error] // why nothing may be flushed
	value string
	full  int // records that fit
}

const crowdedBudget = 48 << 10

// crowdedWith produces to the partitions in turns until they are full.
func crowdedWith(t *testing.T, fs vfs.FS, partitions ...uint32) *crowdedRig {
	t.Helper()
	c := &crowdedRig{t: t, value: strings.Repeat("x", 1000)}
	c.openWith(fs, rigConfig{change: func(o *Options) {
		o.DiskOK = func() error {
			if err := c.disk.Load(); err != nil {
				return err
			}
			return nil
		}
	}}, partitions...)
	return c
}

func (c *crowdedRig) openWith(fs vfs.FS, conf rigConfig, partitions ...uint32) {
	change := conf.change
	conf.change = func(o *Options) {
		o.FlushBytes, o.MemoryBudget, o.CheckpointInterval = 4<<10, crowdedBudget, 20*time.Millisecond
		o.SegmentBytes = 1 << 20 // a seal would free memory, too
		o.Compress = c.gate.pass
		change(o)
	}
	c.rig = openWith(c.t, fs, conf)
	c.t.Cleanup(c.gate.open)
	c.create(0, 1)
	c.engine.room.most = 64 << 20 // many wait, and the budget is small
	c.gate.hold()
	for ; !c.engine.room.full(); c.full++ {
		if _, err := c.produce(partitions[c.full%len(partitions)], c.value); err != nil {
			c.t.Fatal(err)
		}
	}
}

// wait begins an append of a record that has to wait, and returns its answer's channel
// when it does.
func (c *crowdedRig) wait(ctx context.Context, n uint32) chan error {
	c.t.Helper()
	before, _ := c.engine.room.waiting()
	parts := []Part{c.part(n, c.value)}
	got := make(chan error, 1)
	go func() {
		free, err := c.engine.Admit(ctx, parts)
		if err == nil {
			_, err = c.engine.Append(parts, 1)
			c.engine.Late(parts)
			free()
		}
		got <- err
	}()
	within(c.t, "the append waits", func() bool { k, _ := c.engine.room.waiting(); return k == before+1 })
	return got
}

// refused says whether err is a refusal that tells when to come back.
func refused(err error) bool {
	var e *errcode.Error
	return errcode.Is(err, errcode.Overloaded) && errors.As(err, &e) && e.Wait > 0
}

// At twice the budget an append waits for the flush instead of being refused (I12,
// I15): it holds no lock meanwhile, so that records are read, and goes on as soon as
// there is room.
func TestAppendWaitsForTheFlush(t *testing.T) {
	c := crowdedWith(t, vfs.NewMem(), 0)
	const waiting = 100
	var got []chan error
	for range waiting {
		got = append(got, c.wait(t.Context(), 0))
	}
	p := c.engine.Get(pid(0))
	if !p.mu.TryLock() {
		t.Fatal("an append waits with its partition's lock")
	}
	p.mu.Unlock()
	if n := len(c.all(0)); n != c.full {
		t.Fatalf("%d records of %d are read beside those that wait", n, c.full)
	}
	if held := c.engine.memory.Load(); held > 2*crowdedBudget+32<<10 {
		t.Fatalf("%d bytes held, the bound is %d and a chunk", held, 2*crowdedBudget)
	}
	c.gate.open()
	for _, got := range got {
		if err := <-got; err != nil {
			t.Error(err)
		}
	}
	within(t, "what waited is visible", func() bool { return p.HighWatermark() == int64(c.full+waiting) })
	if n := len(c.all(0)); n != c.full+waiting {
		t.Errorf("%d records of %d", n, c.full+waiting)
	}
	if n, bytes := c.engine.room.waiting(); n != 0 || bytes != 0 {
		t.Errorf("%d wait with %d bytes", n, bytes)
	}
	c.close()
}

// A wait for the flush ends with its deadline, as a refusal that says when to come
// back, and with its context; nothing was appended then, and nothing is left behind.
func TestWaitForTheFlushEnds(t *testing.T) {
	c := crowdedWith(t, vfs.NewMem(), 0)
	late, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.engine.Admit(late, []Part{c.part(0, c.value)}); !refused(err) || !strings.Contains(err.Error(), "nothing was stored") {
		t.Errorf("after its deadline: %v", err)
	}
	gone, leave := context.WithCancel(t.Context())
	got := c.wait(gone, 0)
	leave()
	if err := <-got; !errcode.Is(err, errcode.Canceled) {
		t.Errorf("one that left: %v", err)
	}
	if n, bytes := c.engine.room.waiting(); n != 0 || bytes != 0 {
		t.Errorf("%d wait with %d bytes", n, bytes)
	}
	c.gate.open()
	if base, err := c.produce(0, c.value); err != nil || base != int64(c.full) {
		t.Errorf("the next one: %d %v", base, err)
	}
	c.close()
}

// A flush that cannot happen is not waited for. While nothing can be written, or may
// be, the answer comes at once, also to those who wait already; when the disk is back,
// they wait and go on as before.
func TestNobodyWaitsForAFullDisk(t *testing.T) {
	fs := &faultFS{FS: vfs.NewMem()}
	c := crowdedWith(t, fs, 0)
	atOnce := func(why string) {
		t.Helper()
		for range 3 {
			began := time.Now()
			if _, err := c.produce(0, c.value); !refused(err) || !strings.Contains(err.Error(), why) || time.Since(began) > 5*time.Second {
				t.Fatalf("after %v: %v", time.Since(began), err)
			}
		}
	}
	got := c.wait(t.Context(), 1)
	c.disk.Store(errcode.New(errcode.Storage, "the disk is at its reserve"))
	atOnce("the disk is at its reserve")
	c.disk.Store(nil)
	fs.set(func(op, _ string) (verdict, error) { return refuse, errFull })
	c.gate.open() // the first write of the flush meets the disk
	if err := <-got; !refused(err) || !strings.Contains(err.Error(), errFull.Error()) {
		t.Fatalf("one that waited: %v", err)
	}
	atOnce(errFull.Error())
	fs.set(nil)
	within(t, "the disk is back, and the next tick finds it", func() bool {
		_, err := c.produce(0, c.value)
		if err != nil && !refused(err) {
			t.Fatal(err)
		}
		return err == nil
	})
	c.close()
}

// A log whose sync failed makes nothing durable any more, so nothing can be
// flushed: those who wait hear it at once.
func TestNobodyWaitsForAPoisonedLog(t *testing.T) {
	broken := errcode.New(errcode.Poisoned, "the log is poisoned")
	log := new(brokenLog)
	c := &crowdedRig{t: t, value: strings.Repeat("x", 1000)}
	c.openWith(vfs.NewMem(), rigConfig{change: func(*Options) {}, log: func(l Log) Log { log.Log = l; return log }}, 0)
	got := c.wait(t.Context(), 0)
	log.err.Store(broken)
	c.gate.open()
	if err := <-got; !refused(err) || !strings.Contains(err.Error(), "poisoned") {
		t.Errorf("one that waited: %v", err)
	}
	log.err.Store(nil)
	c.close()
}

// brokenLog fails to make anything durable while err is set.
type brokenLog struct {
	Log
	err atomic.Pointer[errcode.Error]
}

func (l *brokenLog) WaitDurable(ctx context.Context, lsn uint64) error {
	if err := l.err.Load(); err != nil {
		return err
	}
	return l.Log.WaitDurable(ctx, lsn)
}

// A partition whose file takes no writes does not end the waits for the others,
// whose flush makes room.
func TestOnePartitionThatCannotBeFlushed(t *testing.T) {
	fs := &faultFS{FS: vfs.NewMem()}
	full := func(_, path string) (verdict, error) {
		if strings.Contains(path, "/1/") {
			return refuse, errFull
		}
		return pass, nil
	}
	fs.set(full)
	c := crowdedWith(t, fs, 0, 1)
	stuck := c.wait(t.Context(), 1)
	other := c.wait(t.Context(), 0)
	c.gate.open()
	for _, got := range []chan error{stuck, other} {
		if err := <-got; err != nil {
			t.Error(err)
		}
	}
	fs.set(nil)
	c.close()
}

// The wait ends when the topic is deleted, when a partition goes out of service, and
// when the node serves no more; who comes later hears it at once.
func TestWaitForTheFlushEndsWithItsReason(t *testing.T) {
	c := crowdedWith(t, vfs.NewMem(), 0)
	damaged := errcode.New(errcode.Corrupt, "damaged")
	got, other := c.wait(t.Context(), 1), c.wait(t.Context(), 0)
	c.engine.Get(pid(1)).refuse(damaged)
	if err := <-got; !errors.Is(err, damaged) {
		t.Errorf("the partition went out of service: %v", err)
	}
	if _, err := c.produce(1, c.value); !errors.Is(err, damaged) {
		t.Errorf("one that comes later: %v", err)
	}
	stopped := errcode.New(errcode.Fenced, "taken over")
	c.engine.Refuse(stopped)
	if err := <-other; !errors.Is(err, stopped) {
		t.Errorf("the node serves no more: %v", err)
	}
	if _, err := c.produce(0, c.value); !errors.Is(err, stopped) {
		t.Errorf("one that comes later: %v", err)
	}
	c.gate.open()
	c.close()

	c = crowdedWith(t, vfs.NewMem(), 0)
	got = c.wait(t.Context(), 0)
	dropped := make(chan error, 1)
	go func() { dropped <- c.engine.Drop(broker.TopicID(0xabc)) }()
	if err := <-got; !errcode.Is(err, errcode.NotFound) { // before the flush that the deletion waits for
		t.Errorf("the topic was deleted: %v", err)
	}
	c.gate.open()
	if err := <-dropped; err != nil {
		t.Error(err)
	}
	c.close()

	c = crowdedWith(t, vfs.NewMem(), 0)
	got = c.wait(t.Context(), 0)
	closed := make(chan error, 1)
	go func() { closed <- c.engine.Close() }()
	if err := <-got; !errcode.Is(err, errcode.Closed) {
		t.Errorf("the engine was closed: %v", err)
	}
	c.gate.open()
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// Many producers of large and small records against a slow flusher and a small
// budget: none is refused, memory stays within its bound, all records are there.
func TestSlowFlusherRefusesNobody(t *testing.T) {
	const producers, each = 24, 40
	c := &crowdedRig{t: t}
	c.rig = open(t, vfs.NewMem(), func(o *Options) {
		o.FlushBytes, o.MemoryBudget, o.SegmentBytes, o.CheckpointInterval = 16<<10, 4<<20, 16<<20, 50*time.Millisecond
		o.Compress = func(broker.TopicID) bool { time.Sleep(100 * time.Microsecond); return false }
	})
	c.create(0, 1, 2)
	var all sync.WaitGroup
	var top atomic.Int64
	for k := range producers {
		all.Go(func() {
			value := strings.Repeat("v", 100)
			if k%3 == 0 {
				value = strings.Repeat("V", 100<<10)
			}
			for i := range each {
				if _, err := c.produce(uint32(k%3), fmt.Sprint(k, "-", i, value)); err != nil {
					t.Errorf("producer %d: %v", k, err)
					return
				}
				if held := c.engine.memory.Load(); held > top.Load() {
					top.Store(held)
				}
			}
		})
	}
	all.Wait()
	n := 0
	for p := range uint32(3) {
		n += len(c.all(p))
	}
	if n != producers*each {
		t.Errorf("%d records, %d were produced", n, producers*each)
	}
	// Beyond the bound only what was admitted below it at the same moment.
	if bound := int64(8<<20 + producers*(100<<10)); top.Load() > bound {
		t.Errorf("%d bytes were held, at most %d", top.Load(), bound)
	}
	c.close()
}

// Below the budget a small append pays nothing for the wait of others.
func TestAdmitAllocatesNothing(t *testing.T) {
	r := open(t, vfs.NewMem(), nil)
	r.create(0)
	parts := []Part{r.part(0, "v")}
	atMost(t, "admission of a small append", 0, func() {
		free, err := r.engine.Admit(t.Context(), parts)
		if err != nil {
			t.Error(err)
		}
		free()
	})
	r.close()
}
