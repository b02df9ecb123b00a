package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/history"
)

// otherLeaves is what is free when the archive is gone, 60 MiB of it above the
// reserve: more than a segment of each partition, so that evictions make room
// again.
const otherLeaves = 160 << 20

// fillRate is more than a broker takes: the disk is to be full soon.
const fillRate = 100_000

// The archive is away until the disk has only its reserve left. Produce is
// refused with 503, a time to come back and the reason, acks go on, and the
// node is not ready. When the archive is back the backlog goes up, archived
// segments leave the disk, and produce works again: by itself, without a
// restart, and with every record (I6, I15, B53).
func TestOutageOnASmallDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		asRoot(t)
		return
	}
	size, long := smallDisk, outageLength(t) > outageShort
	if long {
		size = "size=2g" // all of it for the broker to fill
	}
	disk := mount(t, size)
	s3, url, env := s3Archive(t)
	r := newRig(t, url, env, append(append([]string{}, outageFlags...),
		"--segment-bytes", "4MiB", "--wal-max-bytes", "64MiB", "--disk-reserve", "100MiB"))
	r.options.DataDir = filepath.Join(disk, "data")
	r.rate, r.apart = fillRate, true
	r.start(0)
	r.create(topic)
	r.create("new")
	r.create("waiting")
	for range waiting {
		if err := put(r, "waiting"); err != nil {
			t.Fatal(err)
		}
	}
	l := r.startLoad()
	eventually(t, stepMax, "records are archived", func() (bool, string) { return l.archived.Load() > 3, errorsOf(l) })
	s3.Kill()
	began := time.Now()
	if !long {
		// Somebody else has most of the disk, so that what the broker writes while
		// the archive is away fills it soon, on a slow machine too.
		other, err := os.Create(filepath.Join(disk, "other-program"))
		if err != nil {
			t.Fatal(err)
		}
		fill(t, other, otherLeaves)
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
	}
	refusesRecords(r, max(stepMax, outageLength(t)))
	t.Logf("the disk was full %s after the archive went away, with %d records", time.Since(began).Round(time.Second), l.records.Load())
	var refusal *errcode.Error
	if err := put(r, topic); !errors.As(err, &refusal) || refusal.Wait == 0 || !strings.Contains(err.Error(), "reserve") {
		t.Errorf("a refusal without a time to come back, or a reason: %v", err)
	}
	for range waiting {
		if err := takeOne(r); err != nil {
			t.Fatalf("an ack out of the reserve: %v", err)
		}
	}

	s3.Restart()
	began = time.Now()
	eventually(t, stepMax, "produce works again", func() (bool, string) {
		err := put(r, topic)
		return err == nil, errorText(err)
	})
	t.Logf("produce works %s after the archive is back", time.Since(began).Round(time.Millisecond))
	stored := l.stored.Load()
	eventually(t, stepMax, "the load goes on", func() (bool, string) { return l.stored.Load() > stored+100, errorsOf(l) })
	r.kill()
	l.stop()
	r.history.Cut(history.Cut{})
	r.start(stepMax)
	r.check("after the full disk")
	eventually(t, stepMax, "the node is ready", func() (bool, string) {
		ready, err := r.node.Ready(limited(t))
		return err == nil && ready.Ready, strings.Join(ready.Degraded, " ")
	})
}
