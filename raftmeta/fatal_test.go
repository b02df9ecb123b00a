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

// I5: a log write that fails stops the plane. The proposal is answered "may
// have been applied", later ones are refused, reads go on, Close ends, and a
// restart has everything that was answered.
func TestFailedSync(t *testing.T) {
	if !inOwnProcess(t) {
		return
	}
	for name, kind := range map[string]errorfs.OpKind{"sync": errorfs.OpFileSyncData, "write": errorfs.OpFileWrite} {
		t.Run(name, func(t *testing.T) {
			var failing atomic.Bool
			fatals := make(chan error, 8)
			o := testOptions(tempDir(t))
			o.OnFatal = func(err error) { fatals <- err }
			o.FS = errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if failing.Load() && (op.Kind == kind || kind == errorfs.OpFileSyncData && op.Kind == errorfs.OpFileSync) && strings.HasSuffix(op.Path, ".log") {
					return syscall.ENOSPC
				}
				return nil
			}))
			m := openReady(t, o)
			create(t, m, "kept", 5)
			failing.Store(true)
			_, err := m.CreateTopic(t.Context(), DefaultTopic("lost"))
			wantCode(t, err, errcode.NotConfirmed, "may have been applied")
			wantCode(t, <-fatals, errcode.Storage, "check the volume")
			_, err = m.CreateTopic(t.Context(), DefaultTopic("later"))
			wantCode(t, err, errcode.Poisoned, "no space left on device")
			wantCode(t, m.Snapshot(t.Context()), errcode.Poisoned, "until a restart")
			if _, ok := m.Topic("kept-4"); !ok {
				t.Error("reads ended with the failure")
			}
			image := killImage(t, o.Dir)
			closeMeta(t, m)
			o2 := testOptions(image) // the process that failed keeps its lock; a restart is another process
			m = open(t, o2)
			for _, name := range []string{"kept-0", "kept-4"} {
				if _, ok := m.Topic(name); !ok {
					t.Errorf("%s was answered and is gone", name)
				}
			}
			if len(fatals) != 0 {
				t.Errorf("%d more reports", len(fatals))
			}
		})
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
