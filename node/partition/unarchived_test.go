package partition

import (
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The oldest record that the archive does not hold is named at every moment,
// also while a flush moves it from the tail into a file: a state object that
// misses it would let the collector delete the shipped log that holds the only
// other copy (I1, I10).
func TestUnarchivedWhileFlushing(t *testing.T) {
	const rounds = 300
	r := open(t, vfs.NewMem(), nil)
	defer r.close()
	for n := range uint32(rounds) {
		r.create(n)
		if _, err := r.produce(n, "v"); err != nil {
			t.Fatal(err)
		}
		p := r.engine.Get(pid(n))
		want, ok := p.UnarchivedFrom()
		if !ok {
			t.Fatal("a record that was just produced counts as archived")
		}
		var flushing sync.WaitGroup
		done := make(chan struct{})
		flushing.Go(func() {
			defer close(done)
			r.flush(n)
		})
		for running := true; running; {
			select {
			case <-done:
				running = false
			default:
			}
			if got, ok := p.UnarchivedFrom(); !ok || got != want {
				t.Errorf("round %d: unarchived from %d, %v, want %d", n, got, ok, want)
				break
			}
		}
		flushing.Wait()
		if t.Failed() {
			return
		}
	}
}
