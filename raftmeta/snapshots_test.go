package raftmeta

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// create adds n topics named after a prefix.
func create(t testing.TB, m *Meta, prefix string, n int) {
	t.Helper()
	for i := range n {
		must(t)(m.CreateTopic(t.Context(), DefaultTopic(fmt.Sprintf("%s-%d", prefix, i))))
	}
}

func snapshotIDs(t testing.TB, dir string) (ids []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, snapshotsDir))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	// Same term: the index decides, and it has one length in these tests.
	slices.SortFunc(ids, func(a, b string) int { return strings.Compare(pad(a), pad(b)) })
	return ids
}

func pad(id string) string {
	var term, index, ms uint64
	_, _ = fmt.Sscanf(id, "%d-%d-%d", &term, &index, &ms)
	return fmt.Sprintf("%020d%020d%020d", term, index, ms)
}

// B149: with 0 or 1 trailing entries, killed right after a snapshot, the next
// start has the whole state, also when the log is cut to nothing.
func TestKillAfterSnapshot(t *testing.T) {
	for _, trailing := range []uint64{0, 1} {
		for _, snapshots := range []int{1, 2} {
			o := testOptions(tempDir(t))
			o.TrailingLogs = trailing
			m := openReady(t, o)
			create(t, m, "t", 20)
			for range snapshots {
				must(t)(nil, m.Snapshot(t.Context()))
			}
			// Two snapshots of one index are each other's older one.
			if entries := m.plane.store.entries(); snapshots == 2 && entries != trailing {
				t.Fatalf("trailing %d: %d entries are left", trailing, entries)
			}
			want := exportOf(t, m)
			o2 := o
			o2.Dir = killImage(t, o.Dir)
			closeMeta(t, m)
			m = open(t, o2)
			if got := exportOf(t, m); got != want {
				t.Fatalf("trailing %d: state differs", trailing)
			}
			// It goes on from there, and the next restart has both.
			create(t, m, "after", 3)
			want = exportOf(t, m)
			closeMeta(t, m)
			if got := exportOf(t, open(t, o2)); got != want {
				t.Fatalf("trailing %d: state differs after going on", trailing)
			}
		}
	}
}

// damages are ways in which a file comes back from a machine crash or a bad disk.
func damages(size int64) map[string]func(path string) error {
	out := map[string]func(string) error{
		"cut to nothing": func(p string) error { return os.Truncate(p, 0) },
		"cut to half":    func(p string) error { return os.Truncate(p, size/2) },
		"removed":        os.Remove,
	}
	for i := range int64(16) {
		at := i * (size - 1) / 15
		out[fmt.Sprintf("flipped at %d", at)] = func(p string) error {
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			b[at] ^= 1
			return os.WriteFile(p, b, 0o600)
		}
	}
	return out
}

// B150: the newest snapshot cut to nothing, to half, or with a flipped bit, in
// either file: the older one and the log give the whole state. Never an empty one.
func TestDamagedNewestSnapshot(t *testing.T) {
	for _, earlier := range []bool{true, false} { // without an earlier snapshot the log reaches back to the beginning
		o := testOptions(tempDir(t))
		m := openReady(t, o)
		create(t, m, "a", 10)
		if earlier {
			must(t)(nil, m.Snapshot(t.Context()))
		}
		create(t, m, "b", 10)
		must(t)(nil, m.Snapshot(t.Context()))
		create(t, m, "c", 10)
		want := exportOf(t, m)
		closeMeta(t, m)
		ids := snapshotIDs(t, o.Dir)
		newest := ids[len(ids)-1]
		for _, file := range []string{"state.bin", "meta.json"} {
			info, err := os.Stat(filepath.Join(o.Dir, snapshotsDir, newest, file))
			if err != nil {
				t.Fatal(err)
			}
			for name, damage := range damages(info.Size()) {
				o2 := o
				o2.Dir = killImage(t, o.Dir)
				if err := damage(filepath.Join(o2.Dir, snapshotsDir, newest, file)); err != nil {
					t.Fatal(err)
				}
				m, err := tryOpen(t, o2)
				if err != nil {
					t.Errorf("%s %s: %v", file, name, err)
					continue
				}
				if got := exportOf(t, m); got != want {
					t.Errorf("%s %s: state differs", file, name)
				}
				// A bit of meta.json that says nothing (its size, old fields) may flip unseen.
				if _, err := os.Stat(filepath.Join(o2.Dir, damagedDir, newest)); err != nil && file == "state.bin" {
					t.Errorf("%s %s: the damaged snapshot was not kept aside: %v", file, name, err)
				}
				must(t)(nil, m.Snapshot(t.Context()))
				closeMeta(t, m)
				m = open(t, o2)
				if got := exportOf(t, m); got != want {
					t.Errorf("%s %s: state differs after the next snapshot", file, name)
				}
				closeMeta(t, m)
			}
		}
	}
}

// B150, B58: when what is left does not add up to one state the start stops
// with a message that names directory and way out, and changes nothing.
func TestPartsOfADirectoryAreRefused(t *testing.T) {
	o := testOptions(tempDir(t))
	m := openReady(t, o)
	for i := range 3 { // the first snapshot is reaped, the log begins above 1
		create(t, m, fmt.Sprintf("t%d", i), 10)
		must(t)(nil, m.Snapshot(t.Context()))
	}
	want := exportOf(t, m)
	closeMeta(t, m)
	ids := snapshotIDs(t, o.Dir)
	if len(ids) != retainSnapshots {
		t.Fatalf("%d snapshots are kept", len(ids))
	}
	inSnapshots := func(dir string, parts ...string) string {
		return filepath.Join(append([]string{dir, snapshotsDir}, parts...)...)
	}
	for name, c := range map[string]struct {
		damage func(dir string) error
		code   errcode.Code
		text   string
	}{
		"both snapshots cut": {func(dir string) error {
			_ = os.Truncate(inSnapshots(dir, ids[0], "state.bin"), 10)
			return os.Truncate(inSnapshots(dir, ids[1], "state.bin"), 10)
		}, errcode.Corrupt, "is damaged: the newest good snapshot ends at index 0"},
		"snapshots removed": {func(dir string) error { return os.RemoveAll(inSnapshots(dir)) }, errcode.Corrupt, "is damaged"},
		"log removed":       {func(dir string) error { return os.RemoveAll(filepath.Join(dir, "log")) }, errcode.Corrupt, "is missing, though there are snapshots"},
		"newer snapshot": {func(dir string) error {
			path := inSnapshots(dir, ids[1], "state.bin")
			return rewriteSnapshot(path, func(b []byte) []byte { b[len(snapshotMagic)-1]++; return b })
		}, errcode.UnsupportedVersion, "snapshot has version 2"},
		"newer export": {func(dir string) error {
			path := inSnapshots(dir, ids[1], "state.bin")
			return rewriteSnapshot(path, func(b []byte) []byte {
				return []byte(strings.Replace(string(b), `"version":1`, `"version":9`, 1))
			})
		}, errcode.UnsupportedVersion, "version 9"},
	} {
		o2 := o
		o2.Dir = killImage(t, o.Dir)
		if err := c.damage(o2.Dir); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second start finds the same
			_, err := tryOpen(t, o2)
			wantCode(t, err, c.code, c.text)
		}
		if _, err := os.Stat(filepath.Join(o2.Dir, damagedDir)); err == nil {
			t.Error("a start that was refused moved something")
		}
		if t.Failed() {
			t.Fatalf("case %q", name)
		}
	}
	if got := exportOf(t, open(t, o)); got != want {
		t.Fatal("the original directory changed")
	}
}

// I4: a flipped bit in the files of the log, in front of what was synced later,
// is found and refused; nothing answered is cut off as a torn tail. At the very
// end a flip cannot be told from a torn write, and only there.
func TestDamagedLog(t *testing.T) {
	o := testOptions(tempDir(t))
	m := openReady(t, o)
	create(t, m, "s", 5)
	closeMeta(t, m)
	m = open(t, o) // moves the first log into a table: the manifest has something to lose
	create(t, m, "t", 60)
	want := exportOf(t, m)
	image := killImage(t, o.Dir)
	closeMeta(t, m)
	for _, pattern := range []string{"*.log", "MANIFEST-*", "*.sst"} {
		files, err := filepath.Glob(filepath.Join(image, "log", pattern))
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, files, err)
		}
		slices.Sort(files)
		name, err := filepath.Rel(image, files[len(files)-1])
		if err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(filepath.Join(image, name))
		if err != nil {
			t.Fatal(err)
		}
		used := len(strings.TrimRight(string(raw), "\x00"))
		refused, steps := 0, 24
		for i := range steps {
			at := used * i / steps
			o2 := o
			o2.Dir = killImage(t, image)
			bad := slices.Clone(raw)
			bad[at] ^= 1
			if err := os.WriteFile(filepath.Join(o2.Dir, name), bad, 0o600); err != nil {
				t.Fatal(err)
			}
			m, err := tryOpen(t, o2)
			switch {
			case err != nil:
				wantCode(t, err, errcode.Corrupt, "damaged")
				refused++
			case exportOf(t, m) != want:
				t.Errorf("%s: bit of byte %d of %d flipped: opened with another state", name, at, used)
			}
			if err == nil {
				closeMeta(t, m)
			}
		}
		t.Logf("%s: %d of %d flips refused, the others changed nothing", name, refused, steps)
		if refused == 0 || pattern == "*.log" && refused < steps-2 {
			t.Errorf("%s: only %d of %d flips were found", name, refused, steps)
		}
	}
}

// What a crash leaves of a log, a prefix of it, opens with the entries it holds:
// the check for damage must not refuse a torn tail.
func TestTornLog(t *testing.T) {
	o := testOptions(tempDir(t))
	closeMeta(t, openReady(t, o))
	m := open(t, o)
	create(t, m, "t", 40)
	image := killImage(t, o.Dir)
	closeMeta(t, m)
	files, err := filepath.Glob(filepath.Join(image, "log", "*.log"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	slices.Sort(files)
	name, err := filepath.Rel(image, files[len(files)-1])
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(image, name))
	if err != nil {
		t.Fatal(err)
	}
	used := len(strings.TrimRight(string(raw), "\x00"))
	last := -1
	for i := range 20 {
		o2 := o
		o2.Dir = killImage(t, image)
		torn := append(slices.Clone(raw[:used*i/19]), make([]byte, len(raw)-used*i/19)...) // preallocated zeros follow
		if err := os.WriteFile(filepath.Join(o2.Dir, name), torn, 0o600); err != nil {
			t.Fatal(err)
		}
		m := open(t, o2)
		n := m.State().NumTopics()
		if n < last {
			t.Errorf("%d topics in a longer log, %d in a shorter one", n, last)
		}
		last = n
		closeMeta(t, m)
	}
	if last != 40 {
		t.Errorf("%d topics in the whole log", last)
	}
}

// B155: a cluster that changes rarely never fills the count; time takes the
// snapshot. And without changes none is taken again.
func TestSnapshotByTime(t *testing.T) {
	o := testOptions(tempDir(t))
	o.SnapshotInterval = 20 * time.Millisecond
	m := openReady(t, o)
	create(t, m, "t", 1)
	eventually(t, "a snapshot by time", func() bool { return m.plane.snapshots.newest.Load() >= m.State().Index() })
	ids := snapshotIDs(t, o.Dir)
	deadline := time.After(10 * o.SnapshotInterval)
	<-deadline
	if again := snapshotIDs(t, o.Dir); !slices.Equal(ids, again) {
		t.Fatalf("idle, and yet %v became %v", ids, again)
	}
}

// B156: restarts more frequent than the interval and shorter than the count
// must not keep the log from being cut: the count goes on across restarts.
func TestFrequentRestartsBoundTheLog(t *testing.T) {
	o := testOptions(tempDir(t))
	o.SnapshotThreshold = 1000
	settings := 0
	for range 20 {
		m := open(t, o)
		inParallel(499, func(i int) {
			if err := m.PutSetting(t.Context(), "filler", fmt.Sprint(i)); err != nil {
				t.Error(err)
			}
		})
		settings += 500
		must(t)(nil, m.PutSetting(t.Context(), "k", fmt.Sprint(settings)))
		eventually(t, "a due snapshot", func() bool { return m.sinceSnapshot() < o.SnapshotThreshold })
		// Back to the older snapshot, each taken at the count or one run after.
		if n := m.plane.store.entries(); n > 4*o.SnapshotThreshold {
			t.Fatalf("%d entries in the log after %d changes", n, settings)
		}
		closeMeta(t, m)
	}
	m := open(t, o)
	if v, _ := m.State().Setting("k"); v != fmt.Sprint(settings) {
		t.Fatalf("setting %s, want %d", v, settings)
	}
}

// B154: a steady load of creations and deletions does not make the directory
// grow: the log levels out, the snapshots are two exports of the state, which
// holds the confirmations of the deletions.
func TestSizePlateau(t *testing.T) {
	o := testOptions(tempDir(t))
	o.SnapshotThreshold = 500
	m := openReady(t, o)
	var logs []int64
	const rounds = 5
	for round := range rounds {
		inParallel(1000, func(i int) {
			name := fmt.Sprintf("topic-%d-%d", round, i)
			if _, err := m.CreateTopic(t.Context(), DefaultTopic(name)); err != nil {
				t.Error(err)
			}
			if _, err := m.DeleteTopic(t.Context(), name); err != nil {
				t.Error(err)
			}
		})
		eventually(t, "a due snapshot", func() bool { return m.sinceSnapshot() < o.SnapshotThreshold })
		logs = append(logs, dirBytes(t, filepath.Join(o.Dir, "log")))
		if n := m.plane.store.entries(); n > 4*o.SnapshotThreshold {
			t.Fatalf("%d entries in the log", n)
		}
	}
	t.Logf("bytes of the log after each 1,000 topics: %v", logs)
	// 10,000 commands are about 4 MB; what stays is Pebble's fixed share.
	if most := int64(2 << 20); logs[rounds-1] > most || logs[rounds-2] > most {
		t.Errorf("the log takes %v bytes; %d are allowed", logs, most)
	}
	if size, most := dirBytes(t, filepath.Join(o.Dir, snapshotsDir)), int64(retainSnapshots*(len(exportOf(t, m))+8<<10)); size > most {
		t.Errorf("the snapshots take %d bytes; %d are allowed", size, most)
	}
	if m.State().NumTopics() != 0 || len(m.State().DeletedTopics()) != 1000*rounds {
		t.Error("wrong state")
	}
}
