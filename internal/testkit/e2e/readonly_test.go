package e2e

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/api/client"
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/history"
	"github.com/tidemark-mq/tidemark/internal/testkit/realnode"
)

// B60: the file system of a living broker is remounted read-only. The kernel
// does that to the names: no file can be made, opened for writing, renamed or
// removed; what is open stays writable, because it refuses to remount under open
// files. The broker takes records until its log needs its next file, then
// refuses them with 503 and the reason; it is not ready and says so; replay,
// consume and an ack's answer go on; nothing of what it knows goes back to zero.
// When it is writable again everything works without a restart (I1, I14). One
// that starts on a file system that is read-only as a whole says so, names the
// path, and changes nothing (B257).
func TestReadOnlyRemount(t *testing.T) {
	if os.Geteuid() != 0 {
		asRoot(t)
		return
	}
	disk := mount(t, smallDisk)
	r := newRig(t, fileArchive(t), nil, busyArchive)
	r.options.DataDir = filepath.Join(disk, "data")
	r.start(0)
	r.create(topic)
	r.create("waiting")
	for range waiting {
		if err := put(r, "waiting"); err != nil {
			t.Fatal(err)
		}
	}
	l := r.startLoad()
	defer l.stop()
	eventually(t, stepMax, "the load stores records", func() (bool, string) { return l.stored.Load() > 100, errorsOf(l) })

	over := shadow(t, r.options.DataDir)
	over(syscall.MS_RDONLY)
	if err := os.WriteFile(filepath.Join(r.options.DataDir, "probe"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Fatalf("the remount did not make it read-only: %v", err)
	}
	big := append([]byte("big "), bytes.Repeat([]byte{'x'}, 512<<10)...)
	var refused error
	eventually(t, stepMax, "produce is refused", func() (bool, string) {
		for range 40 {
			if _, refused = r.node.Produce(limited(t), "waiting", broker.Record{Value: big}, client.ProduceOptions{}); refused != nil {
				break
			}
		}
		return errcode.Is(refused, errcode.Storage), errorText(refused)
	})
	eventually(t, stepMax, "the node is not ready and says why", func() (bool, string) {
		ready, err := r.node.Ready(limited(t))
		if err != nil {
			return false, err.Error()
		}
		why := strings.Join(ready.Degraded, "\n")
		return !ready.Ready && strings.Contains(why, "read-only file system"), why
	})
	for until := time.Now().Add(fullFor); time.Now().Before(until); {
		if err := put(r, topic); !errcode.Is(err, errcode.Storage) {
			t.Fatalf("produce on a read-only disk: %v", err)
		}
	}
	if !strings.Contains(refused.Error(), "read-only file system") {
		t.Errorf("the refusal does not say why: %v", refused)
	}
	for range waiting / 2 {
		// The lease may be lost with a refused ack, the record is not.
		if err := takeOne(r); err != nil && !errcode.Is(err, errcode.Storage) {
			t.Fatalf("consume on a read-only disk: %v", err)
		}
	}
	r.check("while it is read-only") // reads every partition
	select {
	case <-r.node.Done():
		t.Fatal("the broker ended")
	default:
	}

	over(0)
	eventually(t, stepMax, "produce works again", func() (bool, string) {
		err := put(r, topic)
		return err == nil, errorText(err)
	})
	stored := l.stored.Load()
	eventually(t, stepMax, "the load goes on", func() (bool, string) { return l.stored.Load() > stored+100, errorsOf(l) })
	eventually(t, stepMax, "the node is ready, and nothing is out of service", func() (bool, string) {
		ready, err := r.node.Ready(limited(t))
		return err == nil && ready.Ready && len(ready.Degraded) == 0, errorText(err)
	})
	r.kill()
	l.stop()
	r.history.Cut(history.Cut{})

	// Nothing is open now, so that the file system itself can be read-only.
	if err := syscall.Mount("", disk, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatalf("remount %s read-only: %v", disk, err)
	}
	p, err := realnode.Launch(r.options)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	code, err := p.Wait(limited(t))
	if said := p.Stderr(); err != nil || code == 0 || !strings.Contains(said, "read-only file system") || !strings.Contains(said, r.options.DataDir) {
		t.Errorf("a start on a read-only disk: %v, exit %d\n%s", err, code, said)
	}
	if err := syscall.Mount("", disk, "", syscall.MS_REMOUNT, ""); err != nil {
		t.Fatalf("remount %s: %v", disk, err)
	}
	// Whatever the kill interrupted: a write that became read-only before its rename
	// leaves this, which cannot be removed then. The next start does.
	if err := os.WriteFile(filepath.Join(r.options.DataDir, "scrub.json.tmp"), []byte(`{"version":1,`), 0o600); err != nil {
		t.Fatal(err)
	}
	strays(t, r.options.DataDir, 4) // at most one for each target
	r.start(readyMax)
	noStrays(t, r.options.DataDir)
	r.check("after the read-only disk")
	r.drain()
}

// shadow mounts a directory over itself and returns what remounts that with
// flags. What is opened by name from then on is subject to them.
func shadow(t *testing.T, dir string) (remount func(flags uintptr)) {
	t.Helper()
	if err := syscall.Mount(dir, dir, "", syscall.MS_BIND, ""); err != nil {
		t.Fatalf("mount %s over itself: %v; this test needs root, or a kernel that lets users make namespaces", dir, err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return func(flags uintptr) {
		t.Helper()
		if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_BIND|flags, ""); err != nil {
			t.Fatalf("remount %s: %v", dir, err)
		}
	}
}
