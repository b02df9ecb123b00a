package wal

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// What is only written becomes durable within the interval, also when nobody
// waits; then one closing mark follows, and then nothing more happens.
func TestIntervalSyncAndClosingMark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := newFS()
		fs := &faultFS{FS: mem}
		o := testOptions(fs)
		o.AckSyncInterval = time.Second
		o.Holds = map[string]uint64{"state": 1}
		l := mustOpen(t, o)
		e := write(t, l.Log, 1, 10)
		staged := stage(t, l.Log, 1, 10)
		time.Sleep(999 * time.Millisecond)
		synctest.Wait()
		if l.Durable() >= e.lsn {
			t.Fatal("synced before the interval: this test proves nothing")
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		mark := staged.lsn + 1
		if l.Durable() != mark || l.Stats().LastMark != mark {
			t.Fatalf("durable %d, last mark %d, want %d", l.Durable(), l.Stats().LastMark, mark)
		}
		var calls atomic.Int32
		fs.set(func(op, path string) (action, error) { calls.Add(1); return pass, nil }, nil)
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := calls.Load(); n != 0 || l.NextLSN() != mark+1 {
			t.Fatalf("%d calls and LSN %d while idle", n, l.NextLSN())
		}
		again := mustOpen(t, testOptions(clone(mem, 0, 1)))
		last := again.replayed[len(again.replayed)-1]
		if m, err := ParseMark(last.body); last.kind != KindMark || err != nil || m.LowWater != 1 || m.TimeMs == 0 {
			t.Fatalf("last frame %v %+v, %v", last.kind, m, err)
		}
		mustClose(t, again)
		mustClose(t, l)
	})
}

// Under traffic there is one mark a second, and its time never goes back,
// across a clock that does and across a restart.
func TestMarksUnderTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := newFS()
		o := testOptions(mem)
		o.AckSyncInterval = time.Second
		var back atomic.Int64
		o.Now = func() time.Time { return time.Now().Add(-time.Duration(back.Load())) }
		l := mustOpen(t, o)
		for i := range 100 {
			put(t, l.Log, 1, 10)
			time.Sleep(100 * time.Millisecond)
			if i == 50 {
				back.Store(int64(time.Hour))
			}
		}
		mustClose(t, l)
		o.FS = killed(mem)
		again := mustOpen(t, o)
		marks, ms := 0, uint64(0)
		for _, e := range again.replayed {
			if e.kind != KindMark {
				continue
			}
			m, err := ParseMark(e.body)
			if err != nil || m.TimeMs < ms {
				t.Fatalf("mark %+v after %d, %v", m, ms, err)
			}
			marks, ms = marks+1, m.TimeMs
		}
		if marks < 9 || marks > 12 {
			t.Fatalf("%d marks in 10 s", marks)
		}
		if again.mu.markMs < ms || again.info.LastMarkMs != ms {
			t.Fatalf("time went back over the restart: %d, %d, %d", again.mu.markMs, again.info.LastMarkMs, ms)
		}
		mustClose(t, again)
	})
}
