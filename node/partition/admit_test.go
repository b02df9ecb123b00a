package partition

import (
	"context"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sync/semaphore"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/wal"
)

// Large appends have their turn up to what the log's buffers hold, less two for
// the small ones, which never wait; one too many waits until a turn is given
// back, and is refused when its time is over before that.
func TestAdmit(t *testing.T) {
	e := &Engine{large: semaphore.NewWeighted(largeTurns), metrics: newMetrics(nil)}
	of := func(size int) []Part { return []Part{{Batches: []Batch{{Data: make([]byte, size)}}}} }
	ctx := context.Background()
	var frees []func()
	for range largeTurns / wal.GroupBytes {
		free, err := e.Admit(ctx, of(1<<20))
		if err != nil {
			t.Fatal(err)
		}
		frees = append(frees, free)
	}
	late, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	if _, err := e.Admit(late, of(largeFrom)); !errcode.Is(err, errcode.Overloaded) {
		t.Errorf("one more than there are turns: %v", err)
	}
	gone, leave := context.WithCancel(ctx)
	leave()
	if _, err := e.Admit(gone, of(largeFrom)); !errcode.Is(err, errcode.Canceled) {
		t.Errorf("one that left: %v", err)
	}
	free, err := e.Admit(late, of(largeFrom-1))
	if err != nil {
		t.Errorf("a small one waited: %v", err)
	}
	free()
	admitted := make(chan error, 1)
	go func() {
		free, err := e.Admit(ctx, of(1<<20))
		if err == nil {
			free()
		}
		admitted <- err
	}()
	frees[0]()
	if err := <-admitted; err != nil {
		t.Error(err)
	}
	for _, free := range frees[1:] {
		free()
	}
	if !e.large.TryAcquire(largeTurns) {
		t.Error("a turn was not given back")
	}
}

// What an append takes of the turns is at least its size, and what it occupies
// of the log's buffers: none has more than there are.
func TestTurns(t *testing.T) {
	for size, want := range map[int]int64{
		largeFrom: largeFrom, wal.GroupBytes / 2: wal.GroupBytes / 2, wal.GroupBytes/2 + 1: wal.GroupBytes,
		1 << 20: wal.GroupBytes, 16 << 20: largeTurns / 2,
	} {
		if got := turnOf(size); got != want || got > largeTurns {
			t.Errorf("%d bytes take %d, want %d", size, got, want)
		}
	}
}

// A flush of a partition that takes records all the time ends with what was
// there when it began, so that others have their turn and checkpoints get
// between.
func TestFlushOfABusyPartitionEnds(t *testing.T) {
	var r *rig
	steps := 0
	busy := func() error {
		if r == nil {
			return nil
		}
		if steps++; steps > 50 {
			return errcode.New(errcode.Storage, "the flush goes on and on")
		}
		if _, err := r.produce(0, "one more"); err != nil {
			t.Error(err)
		}
		return nil
	}
	made := openWith(t, vfs.NewMem(), rigConfig{change: func(o *Options) { o.DiskOK = busy }, idle: true})
	made.create(0)
	if _, err := made.produce(0, "first"); err != nil {
		t.Fatal(err)
	}
	r = made
	r.flush(0)
	if steps == 0 || steps > 2 {
		t.Errorf("the flush took %d steps for one batch", steps)
	}
	r = nil
	made.flush(0)
	made.close()
}
