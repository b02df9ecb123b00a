package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// memNode is a node whose files, but for the metadata, are in memory, so that
// it can crash. Its file system can be told to fail.
type memNode struct {
	t   *testing.T
	dir string
	mem *vfs.MemFS
	fs  *nodeFS
	o   Options
	// free bytes of the disk from the start on; nil = there are plenty
	free func() (uint64, bool)
	*Node
}

// nodeFS is a file system that fails on demand.
type nodeFS struct {
	vfs.FS
	mu   sync.Mutex
	fail func(op, path string) error // nil = nothing fails
	free func() (uint64, bool)       // free bytes of the disk; ok = false: as the file system says
}

func (f *nodeFS) set(fail func(op, path string) error, free func() (uint64, bool)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail, f.free = fail, free
}

func (f *nodeFS) ask(op, path string) error {
	f.mu.Lock()
	fail := f.fail
	f.mu.Unlock()
	if fail == nil {
		return nil
	}
	return fail(op, path)
}

func (f *nodeFS) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.free != nil {
		if n, ok := f.free(); ok {
			return vfs.DiskUsage{AvailBytes: n, TotalBytes: 1 << 40}, nil
		}
	}
	return vfs.DiskUsage{AvailBytes: 1 << 40, TotalBytes: 1 << 40}, nil
}

// List shows the metadata's folder, which is on disk.
func (f *nodeFS) List(dir string) ([]string, error) {
	if filepath.Base(dir) == "raft" {
		return vfs.Default.List(dir)
	}
	return f.FS.List(dir)
}

func (f *nodeFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.open("create", name, func() (vfs.File, error) { return f.FS.Create(name, c) })
}

func (f *nodeFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	return f.open("create", name, func() (vfs.File, error) { return f.FS.OpenReadWrite(name, c, o...) })
}

func (f *nodeFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.open("create", to, func() (vfs.File, error) { return f.FS.ReuseForWrite(from, to, c) })
}

func (f *nodeFS) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	return f.open("open", name, func() (vfs.File, error) { return f.FS.Open(name, o...) })
}

func (f *nodeFS) OpenDir(name string) (vfs.File, error) {
	return f.open("opendir", name, func() (vfs.File, error) { return f.FS.OpenDir(name) })
}

func (f *nodeFS) open(op, name string, open func() (vfs.File, error)) (vfs.File, error) {
	if err := f.ask(op, name); err != nil {
		return nil, err
	}
	file, err := open()
	return f.wrap(file, err, name)
}

func (f *nodeFS) Link(from, to string) error {
	return f.change("link", to, func() error { return f.FS.Link(from, to) })
}

func (f *nodeFS) Rename(from, to string) error {
	return f.change("rename", from, func() error { return f.FS.Rename(from, to) })
}

func (f *nodeFS) Remove(name string) error {
	return f.change("remove", name, func() error { return f.FS.Remove(name) })
}

func (f *nodeFS) RemoveAll(name string) error {
	return f.change("remove", name, func() error { return f.FS.RemoveAll(name) })
}

func (f *nodeFS) MkdirAll(name string, perm os.FileMode) error {
	return f.change("mkdir", name, func() error { return f.FS.MkdirAll(name, perm) })
}

func (f *nodeFS) change(op, name string, change func() error) error {
	if err := f.ask(op, name); err != nil {
		return err
	}
	return change()
}

func (f *nodeFS) wrap(file vfs.File, err error, name string) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &nodeFile{file, f, name}, nil
}

type nodeFile struct {
	vfs.File
	fs   *nodeFS
	path string
}

// errHalf is what a write is told that leaves half of its bytes on a disk that
// is just full.
var errHalf = fmt.Errorf("half of it: %w", syscall.ENOSPC)

func (f *nodeFile) WriteAt(b []byte, off int64) (int, error) {
	if err := f.fs.ask("write", f.path); err != nil {
		n := 0
		if errors.Is(err, errHalf) {
			n, _ = f.File.WriteAt(b[:len(b)/2], off)
		}
		return n, err
	}
	return f.File.WriteAt(b, off)
}

func (f *nodeFile) Write(b []byte) (int, error) {
	if err := f.fs.ask("write", f.path); err != nil {
		n := 0
		if errors.Is(err, errHalf) {
			n, _ = f.File.Write(b[:len(b)/2])
		}
		return n, err
	}
	return f.File.Write(b)
}

func (f *nodeFile) SyncData() error {
	if err := f.fs.ask("sync", f.path); err != nil {
		return err
	}
	return f.File.SyncData()
}

func (f *nodeFile) Sync() error {
	if err := f.fs.ask("sync", f.path); err != nil {
		return err
	}
	return f.File.Sync()
}

// inWAL says whether path is a file of the node's log.
func inWAL(path string) bool { return filepath.Base(filepath.Dir(path)) == "wal" }

var (
	errNoSpace = syscall.ENOSPC
	errBroken  = syscall.EIO
)

// everything is a crash of the process alone: nothing is lost.
func everything() vfs.CrashCloneCfg {
	return vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 2))}
}

func newMemNode(t *testing.T, change func(*Options)) *memNode {
	t.Helper()
	m := &memNode{t: t, dir: t.TempDir(), mem: vfs.NewCrashableMem()}
	m.o = testOptions(m.dir, nil)
	// The directory exists before the node does, as on a disk.
	if err := m.mem.MkdirAll(m.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for dir := m.dir; dir != "/"; {
		dir = filepath.Dir(dir)
		d, err := m.mem.OpenDir(dir)
		if err == nil {
			err = errors.Join(d.Sync(), d.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if change != nil {
		change(&m.o)
	}
	m.open()
	return m
}

func (m *memNode) open() {
	m.t.Helper()
	if err := m.tryOpen(); err != nil {
		m.t.Fatal(err)
	}
}

func (m *memNode) tryOpen() error { return m.tryOpenWith(nil) }

// tryOpenWith starts the node on a disk that fails from the beginning.
func (m *memNode) tryOpenWith(fail func(op, path string) error) error {
	m.t.Helper()
	m.fs = &nodeFS{FS: m.mem, fail: fail, free: m.free}
	m.o.FS = m.fs
	var err error
	if m.Node, err = Open(context.Background(), m.o); err != nil {
		return err
	}
	// A test that fails closes nothing, and would keep the metadata's folder from
	// the cases behind it.
	node, fs := m.Node, m.fs
	m.t.Cleanup(func() {
		if m.t.Failed() {
			fs.set(nil, nil)
			_ = node.Close()
		}
	})
	return nil
}

func (m *memNode) close() {
	m.t.Helper()
	closeNode(m.t, m.Node)
}

// crash ends the process without a word. kept is how many percent of what was
// not synced survive: 100 when only the process died, less with the power.
func (m *memNode) crash(kept int, seed uint64) {
	m.t.Helper()
	clone := m.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: kept, RNG: rand.New(rand.NewPCG(seed, 3))})
	m.kill(clone)
}

// kill goes on with what clone holds.
func (m *memNode) kill(clone *vfs.MemFS) {
	m.t.Helper()
	if err := m.Node.Close(); err != nil { // gives the metadata and the goroutines back
		m.t.Log("close of the dead process:", err)
	}
	m.mem = clone
	m.open()
}

func (m *memNode) consume(topic string, limit int) []broker.Message {
	m.t.Helper()
	msgs, err := m.Consume(context.Background(), broker.ConsumeRequest{Topic: topic, Partition: -1, Max: limit})
	if err != nil {
		m.t.Fatal(err)
	}
	return msgs
}

func (m *memNode) settle(topic string, action broker.SettleAction, msgs ...broker.Message) {
	m.t.Helper()
	if err := m.trySettle(topic, action, msgs...); err != nil {
		m.t.Fatal(err)
	}
}

func (m *memNode) trySettle(topic string, action broker.SettleAction, msgs ...broker.Message) error {
	handles := make([]string, len(msgs))
	for i := range msgs {
		handles[i] = msgs[i].Handle
	}
	errs, err := m.Settle(context.Background(), broker.SettleRequest{Topic: topic, Action: action, Handles: handles})
	return errors.Join(append(errs, err)...)
}

func numbered(from, n int) (out []broker.NewRecord) {
	for i := range n {
		out = append(out, broker.NewRecord{Partition: 0, Value: fmt.Appendf(nil, "%d", from+i)})
	}
	return out
}

func valuesOf(msgs []broker.Message) string {
	var out []string
	for _, m := range msgs {
		out = append(out, string(m.Value))
	}
	return strings.Join(out, " ")
}
