package partition

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The clock of the machine was ten years ahead for a while, and one record came
// then. A partition that gets no more does not wait ten years for its segment: the
// shipped log would be kept from that record on for as long (I12). One that is a
// little ahead is an age like any other.
func TestSealOfATimeAhead(t *testing.T) {
	var now atomic.Int64
	now.Store(time.Now().UnixMilli())
	r := open(t, vfs.NewMem(), func(o *Options) {
		o.FlushBytes = 1 << 20
		o.Now = func() time.Time { return time.UnixMilli(now.Load()) }
	})
	r.create(0, 1)
	put := func(n uint32, ahead time.Duration) {
		parts := []Part{r.part(n, "a")}
		lsn, err := r.engine.Append(parts, now.Load()+ahead.Milliseconds())
		if err == nil {
			err = r.log.WaitDurable(t.Context(), lsn)
		}
		if err != nil {
			t.Fatal(err)
		}
		r.engine.Advance(parts)
	}
	put(0, 10*365*24*time.Hour)
	put(1, time.Minute)
	r.engine.SealOld()
	for n, want := range []int{1, 0} {
		if got := r.engine.Get(pid(uint32(n))).Local().Sealed; got != want {
			t.Errorf("partition %d has %d sealed segments, want %d", n, got, want)
		}
	}
	r.close()
}
