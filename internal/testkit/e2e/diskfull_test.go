package e2e

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/api/client"
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/history"
)

const (
	smallDisk = "size=640m" // the log keeps spare files of 64 MiB
	fullFor   = 2 * time.Second
	waiting   = 10 // records that wait for acks

	// The reserve has room for what the broker itself still takes when produce
	// stops, a spare file of the log above all, and what is left of it stays
	// above the quarter below which nothing is flushed.
	reserve     = "200MiB"
	reserveLeft = 180 << 20
)

// B53: another program fills the disk under load. Produce answers 503 to an old
// topic and to a new one, and goes on doing so; the node is not ready and says
// why; consume and ack go on. When there is space again produce works without a
// restart, and every acknowledged record is there, also after a kill (I1, I5,
// I15).
func TestDiskFull(t *testing.T) {
	if os.Geteuid() != 0 {
		asRoot(t)
		return
	}
	disk := mount(t, smallDisk)
	r := newRig(t, fileArchive(t), nil, append(append([]string{}, busyArchive...), "--disk-reserve", reserve))
	r.options.DataDir = filepath.Join(disk, "data")
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
	eventually(t, stepMax, "the load stores records", func() (bool, string) { return l.stored.Load() > 100, errorsOf(l) })

	// First the other program leaves less than the reserve, which is for acks.
	other := filepath.Join(disk, "other-program")
	f, err := os.Create(other)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, f, reserveLeft)
	refusesRecords(r, stepMax)
	for range waiting / 2 {
		if err := takeOne(r); err != nil {
			t.Fatalf("an ack out of the reserve: %v", err)
		}
	}
	// Then nothing. Acks may fail now, but not without saying so.
	fill(t, f, 0)
	refusesRecords(r, stepMax)
	for range waiting / 2 {
		if err := takeOne(r); err != nil && !errcode.Is(err, errcode.Storage) {
			t.Fatalf("an ack on a full disk: %v", err)
		}
	}

	if err := errors.Join(f.Close(), os.Remove(other)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{topic, "new"} {
		eventually(t, stepMax, "produce to "+name+" works again", func() (bool, string) {
			err := put(r, name)
			return err == nil, errorText(err)
		})
	}
	stored := l.stored.Load()
	eventually(t, stepMax, "the load goes on", func() (bool, string) { return l.stored.Load() > stored+100, errorsOf(l) })
	eventually(t, stepMax, "the node is ready", func() (bool, string) {
		ready, err := r.node.Ready(limited(t))
		return err == nil && ready.Ready, errorText(err)
	})
	r.kill()
	l.stop()
	r.history.Cut(history.Cut{})
	strays(t, r.options.DataDir, 4) // at most one for each target
	r.start(readyMax)
	noStrays(t, r.options.DataDir)
	r.check("after the full disk")
	r.drain()
}

// noStrays fails when unfinished files stay in the directory of a broker that
// serves. One that it is writing at the moment has its name soon.
func noStrays(t *testing.T, dir string) {
	t.Helper()
	eventually(t, stepMax, "no unfinished file stays", func() (bool, string) {
		found := strays(t, dir, 4)
		return len(found) == 0, strings.Join(found, " ")
	})
}

// strays lists the unfinished files in dir, and fails when they are more than
// most (B66).
func strays(t *testing.T, dir string, most int) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if name := filepath.Base(path); err == nil && (strings.HasSuffix(name, ".tmp") || strings.HasSuffix(name, ".cut")) {
			found = append(found, path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the broker works meanwhile
		}
		return err
	})
	if err != nil || len(found) > most {
		t.Errorf("%d unfinished files, %d may be there: %q %v", len(found), most, found, err)
	}
	return found
}

func errorsOf(l *load) string {
	if err := l.lastError.Load(); err != nil {
		return (*err).Error()
	}
	return "no error"
}

// put produces one record that the history knows.
func put(r *rig, name string) error {
	r.epoch++
	rec := broker.Record{Value: []byte("put-" + time.Now().Format("150405.000000000") + " ")}
	sent := r.history.Now()
	got, err := r.node.Produce(limited(r.t), name, rec, client.ProduceOptions{Ack: broker.AckCommitted})
	if name != topic {
		return err
	}
	p := history.Produce{
		Record: identity(nil, rec.Value), Sent: sent, Answered: history.Never,
		Place: history.Place{Partition: history.AnyPartition, Offset: history.Nowhere},
	}
	if err == nil {
		p.Level, p.Answered, p.Place = history.Stored, r.history.Now(), history.Place{Partition: int32(got.Partition), Offset: got.Offset}
	}
	r.history.Produced(p)
	return err
}

// refusesRecords waits until records are refused and holds that for a while,
// for topics with and without records.
func refusesRecords(r *rig, within time.Duration) {
	r.t.Helper()
	eventually(r.t, within, "produce is refused", func() (bool, string) {
		err := put(r, topic)
		return errcode.Is(err, errcode.Storage), errorText(err)
	})
	eventually(r.t, stepMax, "the node is not ready", func() (bool, string) {
		ready, err := r.node.Ready(limited(r.t))
		return err == nil && !ready.Ready && !ready.Data && len(ready.Degraded) > 0, errorText(err)
	})
	for until := time.Now().Add(fullFor); time.Now().Before(until); {
		for _, name := range []string{topic, "new"} {
			if err := put(r, name); !errcode.Is(err, errcode.Storage) {
				r.t.Fatalf("produce to %s on a full disk: %v", name, err)
			}
		}
		if ready, err := r.node.Ready(limited(r.t)); err != nil || ready.Ready {
			r.t.Fatalf("ready on a full disk: %+v %v", ready, err)
		}
	}
}

// takeOne consumes a record of the topic that nobody else reads, and acks it.
func takeOne(r *rig) error {
	got, err := r.node.Consume(limited(r.t), "waiting", client.ConsumeOptions{Wait: 5 * time.Second})
	if err != nil {
		return err
	}
	if len(got) != 1 {
		return errcode.New(errcode.NotFound, "%d records came", len(got))
	}
	return r.node.Ack(limited(r.t), "waiting", got[0].Handle)
}

// fill writes until the disk has at most left bytes.
func fill(t *testing.T, f *os.File, left uint64) {
	t.Helper()
	block := make([]byte, 64<<10)
	for {
		var disk syscall.Statfs_t
		if err := syscall.Fstatfs(int(f.Fd()), &disk); err != nil {
			t.Fatal(err)
		}
		if disk.Bavail*uint64(disk.Bsize) <= left {
			return
		}
		// The broker writes too: the last block may not fit.
		if _, err := f.Write(block); err != nil && !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
}

// asRoot runs the test in a namespace in which this user is root and may mount.
func asRoot(t *testing.T) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(limited(t), exe, "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("as root of a namespace: %v\n%s", err, out)
	}
}

// mount makes a small disk in memory.
func mount(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tidemark-e2e", dir, "tmpfs", 0, size); err != nil {
		t.Fatalf("mount a small disk: %v; this test needs root, or a kernel that lets users make namespaces", err)
	}
	// The broker's own cleanup runs before this one.
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}
