package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tidemark-mq/tidemark/internal/testkit/history"
)

// B61: a broker runs out of file descriptors under load, with files that it has
// to create, rename and open all the time. Requests are answered or refused, the
// process goes on, no file is renamed or set aside; when the limit
// is raised everything works again without a restart, and every acknowledged
// record is there, also after a kill (I1, I14).
func TestOutOfDescriptors(t *testing.T) {
	r := newRig(t, fileArchive(t), nil, busyArchive)
	r.start(0)
	r.create(topic)
	l := r.startLoad()
	defer l.stop()
	eventually(t, stepMax, "the load stores records", func() (bool, string) { return l.stored.Load() > 100, errorsOf(l) })

	pid := r.node.PID()
	var was unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was); err != nil {
		t.Fatal(err)
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	// What is open stays open; whatever is opened next is refused.
	low := unix.Rlimit{Cur: uint64(len(open)) / 2, Max: was.Max}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &low, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, stepMax, "the broker feels it", func() (bool, string) {
		return strings.Contains(r.node.Stderr(), "too many open files"), errorsOf(l)
	})
	// For longer than its timers take. New connections are not accepted either,
	// so what is asked here goes over those of the load.
	felt, began := l.stored.Load(), time.Now()
	eventually(t, stepMax, "it goes on as far as it can", func() (bool, string) {
		return l.stored.Load() > felt+500 || time.Since(began) > 5*time.Second, errorsOf(l)
	})
	select {
	case <-r.node.Done():
		t.Fatal("the broker ended")
	default:
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &was, nil); err != nil {
		t.Fatal(err)
	}
	stored := l.stored.Load()
	eventually(t, stepMax, "the load goes on", func() (bool, string) { return l.stored.Load() > stored+100, errorsOf(l) })
	eventually(t, stepMax, "the node is ready, and nothing is out of service", func() (bool, string) {
		ready, err := r.node.Ready(limited(t))
		return err == nil && ready.Ready && len(ready.Degraded) == 0, fmt.Sprint(ready.Degraded, errorText(err))
	})
	r.kill()
	l.stop()
	r.history.Cut(history.Cut{})
	r.start(readyMax)
	r.check("after the limit was raised")
	r.drain()
}
