package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/testkit/history"
	"github.com/tidemark-mq/tidemark/internal/testkit/realnode"
)

// pauseLength is how long a stopped S3 process answers nobody. With
// TIDEMARK_OUTAGE it is longer than the 30 seconds that one attempt may take.
func pauseLength() time.Duration {
	if os.Getenv("TIDEMARK_OUTAGE") != "" {
		return 40 * time.Second
	}
	return 3 * time.Second
}

// The S3 process is killed with -9 and started again, and stopped in the middle
// of answers (SIGSTOP), again and again: during a restore, which goes on by
// itself, and then under load with readers of the archive beside it. Uploads,
// shipping and cold reads go on by themselves, a reader gets the log or an
// error and never less, and nothing is lost (I15, I16).
func TestArchiveKilled(t *testing.T) {
	t.Parallel() // it mostly waits for the archive
	s3, url, env := s3Archive(t)
	r := newRig(t, url, env, shipping)
	r.start(0)
	r.create(topic)
	l := r.startLoad()
	eventually(t, stepMax, "records are archived", func() (bool, string) { return l.archived.Load() > 10, errorsOf(l) })
	r.waitRandom(archiveLag+time.Second, archiveLag+2*time.Second)
	bound := r.history.Now() - archiveLag
	r.kill()
	l.stop()
	r.history.Cut(history.Cut{DiskLost: true, Before: bound})

	// The restore meets a server that stops answering in the middle, and one
	// that is gone for a moment.
	s3.Pause()
	if err := os.RemoveAll(r.options.DataDir); err != nil {
		t.Fatal(err)
	}
	restored, began := make(chan error, 1), time.Now()
	go func() {
		got, err := realnode.Restore(limited(t), r.options)
		if err == nil && got.Code != 0 {
			err = fmt.Errorf("exit code %d\n%s", got.Code, got.Stderr)
		}
		restored <- err
	}()
	select {
	case <-time.After(pauseLength()):
	case err := <-restored:
		t.Fatalf("a restore ended while the archive answered nobody: %v", err)
	}
	s3.Resume()
	s3.Kill()
	s3.Restart()
	if err := <-restored; err != nil {
		t.Fatalf("a restore through a pause and a kill of the archive: %v", err)
	}
	t.Logf("restored in %s", time.Since(began))
	r.start(stepMax)
	r.check("after a restore")

	// Everything that was archived is read through the cache now.
	l = r.startLoad()
	ctx, cancel := context.WithCancel(limited(t))
	replays := make(chan int, 1)
	go func() {
		whole := 0
		for p := uint32(0); ctx.Err() == nil; p = (p + 1) % partitions {
			// What a reader gets is held against the history at the end; here it
			// must be an answer or an error, in time.
			if got, err := readLog(ctx, r.node, topic, p); err == nil && len(got) > 0 {
				whole++
			}
		}
		replays <- whole
	}()
	for i := range rounds(t) + 2 {
		r.waitRandom(200*time.Millisecond, 800*time.Millisecond)
		if i%3 == 2 {
			s3.Pause()
			r.waitRandom(pauseLength(), pauseLength()+100*time.Millisecond)
			s3.Resume()
			continue
		}
		s3.Kill()
		r.waitRandom(100*time.Millisecond, 1500*time.Millisecond)
		s3.Restart()
	}
	archived := l.archived.Load()
	eventually(t, stepMax, "ack=archived goes on", func() (bool, string) { return l.archived.Load() > archived+10, errorsOf(l) })
	cancel()
	if whole := <-replays; whole == 0 {
		t.Error("no replay of the archive ended well")
	}
	eventually(t, stepMax, "nobody complains", func() (bool, string) {
		ready, err := r.node.Ready(limited(t))
		return err == nil && ready.Ready && len(ready.Degraded) == 0, errorText(err)
	})
	r.waitRandom(archiveLag+time.Second, archiveLag+2*time.Second)
	bound = r.history.Now() - archiveLag
	r.kill()
	l.stop()
	r.history.Cut(history.Cut{DiskLost: true, Before: bound})
	r.restore()
	r.start(stepMax)
	r.check("after another restore")
	r.drain()
	r.verifyBucket()
}
