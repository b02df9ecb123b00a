package ship

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/wal"
)

// What an hour costs: at most 90,000 puts and as many gets a day under steady
// load, far less when idle, and never a LIST or HEAD after the start.
func TestRequestsOfAnHour(t *testing.T) {
	for _, c := range []struct {
		name       string
		every      time.Duration // between two appends; 0: idle
		puts, gets int           // most
	}{
		{"idle", 0, 1, 2 * 360},
		{"one record a minute", time.Minute, 4 * 60, 4*60 + 2*360},
		{"steady", 100 * time.Millisecond, 90_000 / 24, 90_000 / 24},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBucket()
				r := start(t, b, vfs.NewMem(), 0, func(o *Options) { o.States = states{o.Log.(*wal.Log)} })
				defer r.stop()
				wait(5 * time.Second)
				b.count.Reset()
				if c.every == 0 {
					wait(time.Hour)
				}
				for begin := time.Now(); c.every > 0 && time.Since(begin) < time.Hour; {
					r.append("x")
					time.Sleep(c.every)
				}
				puts, gets := b.count.Count("put"), b.count.Count("get")
				if puts > c.puts || gets > c.gets || b.count.Count("list")+b.count.Count("head")+b.count.Count("delete") > 0 {
					t.Fatalf("%d puts, %d gets, %d lists, %d heads", puts, gets, b.count.Count("list"), b.count.Count("head"))
				}
				t.Logf("%d puts, %d gets", puts, gets)
			})
		})
	}
}

// Many who wait for ack=archived share their ships: at most one object per
// coalescing time.
func TestWaitersShareShips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		r := start(t, b, vfs.NewMem(), 0, nil)
		defer r.stop()
		wait(5 * time.Second)
		b.count.Reset()
		const writers, seconds = 50, 10
		errs := make(chan error, writers)
		begin := time.Now()
		answered := 0
		count := make(chan struct{}, 10000)
		for w := range writers {
			go func() {
				for time.Since(begin) < seconds*time.Second {
					lsn := r.append(fmt.Sprint(w))
					if err := r.archived(lsn, 1, 10*time.Second); err != nil {
						errs <- err
						return
					}
					count <- struct{}{}
				}
				errs <- nil
			}()
		}
		for range writers {
			if err := <-errs; err != nil {
				t.Fatal(err)
			}
		}
		answered = len(count)
		puts := strings.Count(b.count.Transcript(), "\nput wal/")
		if puts > 10*seconds+5 || answered < writers*seconds {
			t.Fatalf("%d objects and %d answers in %d s", puts, answered, seconds)
		}
		t.Logf("%d objects, %d answers", puts, answered)
	})
}
