package raftmeta

import (
	"encoding/json"
	"hash/crc64"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// rewriteSnapshot changes a state file and makes its checksum right again.
func rewriteSnapshot(path string, change func([]byte) []byte) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	b = change(b)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		return err
	}
	metaPath := filepath.Join(filepath.Dir(path), "meta.json")
	raw, err := os.ReadFile(metaPath)
	if err != nil {
		return err
	}
	var meta map[string]any
	if err := json.Unmarshal(raw, &meta); err != nil {
		return err
	}
	sum := crc64.New(crc64.MakeTable(crc64.ECMA))
	_, _ = sum.Write(b)
	meta["CRC"] = sum.Sum(nil)
	if raw, err = json.Marshal(meta); err != nil {
		return err
	}
	return os.WriteFile(metaPath, raw, 0o600)
}

// An op, a version or a field that this build does not know stops the plane:
// the callback hears it once, nothing after it is applied, reads go on, no
// snapshot claims to contain it, and the next start says the same.
func TestUnknownCommandStops(t *testing.T) {
	for name, c := range map[string]struct {
		data string
		code errcode.Code
		text string
	}{
		"op":      {"\x01\xee{}", errcode.UnsupportedVersion, "command op 238 is not known"},
		"version": {"\x02\x01{}", errcode.UnsupportedVersion, "command version 2 is not known"},
		"field":   {"\x01\x07" + `{"key":"k","value":"v","ttl_ms":5}`, errcode.UnsupportedVersion, `unknown field "ttl_ms"`},
		"garbage": {"\x01\x07{", errcode.Corrupt, "put_setting command does not decode"},
	} {
		fatals := make(chan error, 8)
		o := testOptions(tempDir(t))
		o.OnFatal = func(err error) { fatals <- err }
		m := openReady(t, o)
		create(t, m, "t", 3)
		before := exportOf(t, m)
		_ = m.plane.raft.Apply([]byte(c.data), time.Second).Error()
		err := m.PutSetting(t.Context(), "k", "v")
		wantCode(t, err, errcode.Poisoned, c.text)
		wantCode(t, m.Snapshot(t.Context()), errcode.Poisoned, c.text)
		wantCode(t, <-fatals, c.code, "stops rather than differ")
		wantCode(t, m.Err(), c.code, c.text)
		if got := exportOf(t, m); got != before || len(fatals) != 0 {
			t.Errorf("%s: state changed, or %d more reports", name, len(fatals))
		}
		closeMeta(t, m)
		_, err = tryOpen(t, o)
		wantCode(t, err, c.code, c.text)
		if len(fatals) != 0 {
			t.Errorf("%s: a start that fails reports twice", name)
		}
	}
}

// failing makes o's disk fail with cause while the switch is on, for the calls
// on Pebble's log that match.
func failing(o *Options, cause error, match func(errorfs.OpKind) bool) *atomic.Bool {
	on := new(atomic.Bool)
	o.FS = errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if on.Load() && match(op.Kind) && strings.HasSuffix(op.Path, ".log") {
			return cause
		}
		return nil
	}))
	return on
}

// I5: a sync of the log that fails stops the plane. The proposal is answered
// "may have been applied", later ones are refused, reads go on, Close ends, and
// a restart has everything that was answered.
func TestFailedSync(t *testing.T) {
	if !inOwnProcess(t) {
		return
	}
	fatals := make(chan error, 8)
	o := testOptions(tempDir(t))
	o.OnFatal = func(err error) { fatals <- err }
	on := failing(&o, syscall.EIO, func(k errorfs.OpKind) bool { return k == errorfs.OpFileSync || k == errorfs.OpFileSyncData })
	m := openReady(t, o)
	create(t, m, "kept", 5)
	on.Store(true)
	_, err := m.CreateTopic(t.Context(), DefaultTopic("lost"))
	wantCode(t, err, errcode.NotConfirmed, "may have been applied")
	wantCode(t, <-fatals, errcode.Storage, "check the volume")
	_, err = m.CreateTopic(t.Context(), DefaultTopic("later"))
	wantCode(t, err, errcode.Poisoned, "input/output error")
	wantCode(t, m.Snapshot(t.Context()), errcode.Poisoned, "until a restart")
	if _, ok := m.Topic("kept-4"); !ok {
		t.Error("reads ended with the failure")
	}
	image := killImage(t, o.Dir)
	closeMeta(t, m)
	m = open(t, testOptions(image)) // the process that failed keeps its lock; a restart is another process
	for _, name := range []string{"kept-0", "kept-4"} {
		if _, ok := m.Topic(name); !ok {
			t.Errorf("%s was answered and is gone", name)
		}
	}
	if len(fatals) != 0 {
		t.Errorf("%d more reports", len(fatals))
	}
}

func logWrites(k errorfs.OpKind) bool {
	return k == errorfs.OpFileWrite || k == errorfs.OpCreate || k == errorfs.OpReuseForWrite
}

// The disk under the log is full, read-only, failing or out of descriptors for a
// while: the change that meets it is answered "may be applied later" without
// waiting for the caller's deadline, later ones are refused with a time to wait,
// reads go on, and once the disk takes writes so does the plane, without a
// restart; what waited is applied, once (B155).
func TestFailedWriteHeals(t *testing.T) {
	for _, cause := range []error{syscall.ENOSPC, syscall.EROFS, syscall.EIO, syscall.EMFILE} {
		t.Run(cause.Error(), func(t *testing.T) {
			t.Parallel()
			o := testOptions(tempDir(t))
			o.OnFatal = func(err error) { t.Errorf("stopped for good: %v", err) }
			on := failing(&o, cause, logWrites)
			m := openReady(t, o)
			create(t, m, "kept", 5)
			on.Store(true)
			_, err := m.CreateTopic(t.Context(), DefaultTopic("late"))
			wantCode(t, err, errcode.NotConfirmed, "may be applied later")
			_, err = m.CreateTopic(t.Context(), DefaultTopic("refused"))
			wantCode(t, err, errcode.Storage, "takes no changes now")
			wantCode(t, m.Err(), errcode.Storage, cause.Error())
			wantCode(t, m.Snapshot(t.Context()), errcode.Storage, "takes no changes now")
			if _, ok := m.Topic("kept-4"); !ok {
				t.Error("reads ended with the failure")
			}
			on.Store(false)
			for end := time.Now().Add(20 * time.Second); m.Err() != nil || m.State().NumTopics() != 6; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("it does not go on: %v, %d topics", m.Err(), m.State().NumTopics())
				}
			}
			create(t, m, "after", 2)
			if m.DiskWaits() == 0 {
				t.Error("no write is counted as one that waited")
			}
			want := exportOf(t, m)
			closeMeta(t, m)
			m = open(t, testOptions(o.Dir))
			if got := exportOf(t, m); got != want {
				t.Errorf("after a restart:\n%s\nwant\n%s", got, want)
			}
			closeMeta(t, m)
		})
	}
}

// Close on a full disk ends, and the next start has all that was answered.
func TestCloseOnAFullDisk(t *testing.T) {
	if !inOwnProcess(t) {
		return
	}
	o := testOptions(tempDir(t))
	on := failing(&o, syscall.ENOSPC, logWrites)
	m := openReady(t, o)
	create(t, m, "kept", 5)
	on.Store(true)
	_, err := m.CreateTopic(t.Context(), DefaultTopic("late"))
	wantCode(t, err, errcode.NotConfirmed, "may be applied later")
	image := killImage(t, o.Dir)
	began := time.Now()
	_ = m.Close() // it may say that something failed
	if took := time.Since(began); took > drainTimeout+3*unwindTimeout {
		t.Errorf("the close took %s", took)
	}
	m = open(t, testOptions(image))
	if n := m.State().NumTopics(); n < 5 || n > 6 {
		t.Errorf("%d topics", n)
	}
}

// A volume that is full from the start gives an error, not a hang or a panic.
func TestOpenOnAFullVolume(t *testing.T) {
	if !inOwnProcess(t) {
		return
	}
	full := func(o Options) Options {
		o.FS = errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData {
				return syscall.ENOSPC
			}
			return nil
		}))
		return o
	}
	fresh := testOptions(tempDir(t))
	used := testOptions(tempDir(t))
	m := openReady(t, used)
	create(t, m, "t", 3)
	want := exportOf(t, m)
	closeMeta(t, m)
	for _, o := range []Options{fresh, used} {
		_, err := tryOpen(t, full(o))
		if err == nil || !strings.Contains(err.Error(), "no space left on device") {
			t.Fatalf("opened on a full volume: %v", err)
		}
	}
	if got := exportOf(t, open(t, Options{Dir: killImage(t, used.Dir), NodeID: "n1", BindAddr: "127.0.0.1:0"})); got != want {
		t.Fatal("the state is another after the failed start")
	}
}
