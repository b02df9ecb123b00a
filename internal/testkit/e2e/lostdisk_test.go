package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/testkit/history"
	"github.com/tidemark-mq/tidemark/internal/testkit/process"
	"github.com/tidemark-mq/tidemark/internal/testkit/realnode"
)

// archiveLag is how much a lost disk may take: what was accepted less than this
// before the end. The log is shipped every second.
const archiveLag = 2 * time.Second

// shipping is busyArchive with the log shipped as it is by default.
var shipping = append(append([]string{}, busyArchive...), "--wal-interval", "1s")

// A broker is killed under load, its data directory is deleted, and it is
// restored from the archive alone, again and again, with a directory and with
// an S3 server as the archive. What was accepted more than two seconds before
// the kill is there, and everything that was answered as archived; no offset is
// ever seen with two contents; positions never pass the records: everything that
// is not settled is delivered, and so is what is produced afterwards (I3, I11,
// I16). Every other restore is killed itself, at a random moment behind its
// claim, and run again (B224).
func TestKillLostDisk(t *testing.T) {
	n := rounds(t)
	t.Run("file", func(t *testing.T) {
		url := fileArchive(t)
		loseDisks(t, newRig(t, url, nil, shipping), strings.TrimPrefix(url, "file://"), (n+1)/2)
	})
	t.Run("s3", func(t *testing.T) {
		s3, url, env := s3Archive(t)
		loseDisks(t, newRig(t, url, env, shipping), filepath.Join(s3.Dir, s3.Bucket, "prod"), max(1, n/2))
	})
}

// loseDisks does the rounds; objects is the directory of the archive's objects.
func loseDisks(t *testing.T, r *rig, objects string, rounds int) {
	t.Helper()
	r.start(0)
	r.create(topic)
	for round := range rounds {
		l := r.startLoad()
		r.waitRandom(archiveLag+500*time.Millisecond, archiveLag+2500*time.Millisecond)
		// Before the kill: what is answered from here on is younger anyway.
		bound := r.history.Now() - archiveLag
		r.kill()
		l.stop()
		r.history.Cut(history.Cut{DiskLost: true, Before: bound})
		r.fail("clients", r.history.Findings())
		if round%2 == 0 {
			r.killRestore(objects)
		}
		took := r.restore()
		r.start(readyMax)
		r.check("after a restore")
		c := r.history.Counts()
		t.Logf("round %d: %d requests stored, %d of them archived; restored in %s; so far %+v",
			round, l.stored.Load(), l.archived.Load(), took.Round(time.Millisecond), c)
		if l.archived.Load() == 0 || l.acked.Load() == 0 {
			t.Errorf("round %d: the load did too little: %v", round, l.lastError.Load())
		}
		if round%2 == 1 || round == rounds-1 {
			r.drain()
		}
	}
	r.restartClean()
	r.verifyBucket()
}

// killRestore begins a restore and kills it once it has claimed the cluster.
func (r *rig) killRestore(objects string) {
	r.t.Helper()
	claims := func() int {
		list, err := os.ReadDir(filepath.Join(objects, "cluster"))
		if err != nil {
			r.t.Fatal(err)
		}
		return len(list)
	}
	if err := os.RemoveAll(r.options.DataDir); err != nil {
		r.t.Fatal(err)
	}
	before := claims()
	p, err := process.Start(process.Options{
		Path: r.options.Binary, Env: r.options.Env,
		Args: []string{"restore", "--archive", r.options.Archive, "--data-dir", r.options.DataDir, "--take-over"},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	defer p.Kill()
	eventually(r.t, stepMax, "a restore claims the cluster", func() (bool, string) { return claims() > before, p.Stderr() })
	select {
	case <-time.After(time.Duration(r.rng.Int64N(int64(200 * time.Millisecond)))):
	case <-p.Done():
	}
	p.Kill()
	r.t.Logf("killed a restore (exit code %d); the data directory is there: %t", p.ExitCode(), exists(r.options.DataDir))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// restore deletes the data directory and restores it from the archive.
func (r *rig) restore(flags ...string) time.Duration {
	r.t.Helper()
	if err := os.RemoveAll(r.options.DataDir); err != nil {
		r.t.Fatal(err)
	}
	began := time.Now()
	got, err := realnode.Restore(limited(r.t), r.options, flags...)
	if err != nil || got.Code != 0 {
		r.t.Fatalf("restore: %v, exit code %d\n%s\n%s", err, got.Code, got.Stdout, got.Stderr)
	}
	return time.Since(began)
}
