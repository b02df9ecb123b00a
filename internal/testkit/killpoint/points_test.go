package killpoint

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/testkit/process"
	"github.com/tidemark-mq/tidemark/node"
	"github.com/tidemark-mq/tidemark/node/restore"
)

// named is a point of a node's life, or of a restore, with the name it has for
// people.
type named struct {
	name  string
	point point
}

// before and after are the two sides of one call.
func before(op, path string, skip int, arm string) point {
	return point{Op: op, Path: path, Skip: skip, Arm: arm}
}

func after(op, path string, skip int, arm string) point {
	p := before(op, path, skip, arm)
	p.After = true
	return p
}

// Paths of files and keys of objects.
const (
	logFile   = `^[^/]*/wal/[^/]+$`
	logDir    = `^[^/]*/wal/$`
	logName   = `^[^/]*/wal/spare-\d+ .*\.wal$`
	logSpare  = `^[^/]*/wal/\d+\.wal .*/wal/spare-`
	active    = `/topics/.*\.log$`
	sealed    = `\.log .*\.seg$`
	partDir   = `/topics/.*/0/$`
	segFile   = `\.seg$`
	stateLog  = `/state/\d+\.log$`
	stateList = `/state/MANIFEST`
	object    = `^t/.*/s/`
	entry     = `^t/.*/m/`
	shipped   = `^wal/.*\.ship$`
	fence     = `^wal/.*/FENCE$`
	wholeDir  = `^data\.restoring data$`
)

// servePoints are points of a node that serves.
var servePoints = []named{
	{"append: before the write", before("write", logFile, 30, "serving")},
	{"append: written, before the sync", before("sync", logFile, 45, "serving")},
	{"append: synced, before the answer", after("sync", logFile, 60, "serving")},
	{"log: a new file is synced and has no name yet", before("rename", logName, 0, "serving")},
	{"log: a new file has its name, which is not synced", after("rename", logName, 0, "serving")},
	{"log: the name of a new file is synced", after("sync", logDir, 0, "serving")},
	{"flush: before the write", before("write", active, 20, "serving")},
	{"flush: written, before the sync", before("sync", active, 5, "serving")},
	{"checkpoint: files synced, before the local state", before("sync", stateLog, 8, "serving")},
	{"checkpoint: behind the local state", after("sync", stateLog, 11, "serving")},
	{"seal: before the sync", before("sync", active, 9, "serving")},
	{"seal: before the rename", before("rename", sealed, 2, "serving")},
	{"seal: renamed, before the sync of the name", after("rename", sealed, 3, "serving")},
	{"seal: the name is synced", after("sync", partDir, 9, "serving")},
	{"state: before the sync of its list of files", before("sync", stateList, 0, "")},
	{"state: behind the sync of its list of files", after("sync", stateList, 0, "")},
	{"upload: before the object", before("put", object, 2, "serving")},
	{"upload: behind the object, before its entry", after("put", object, 3, "serving")},
	{"publish: before the fence of the chain", before("put", entry, 0, "serving")},
	{"publish: before the entry", before("put", entry, 4, "serving")},
	{"publish: behind the entry", after("put", entry, 5, "serving")},
	{"ship: before the object", before("put", shipped, 6, "serving")},
	{"ship: behind the object, before the look at the fence", after("put", shipped, 9, "serving")},
	{"ship: behind the look at the fence, before the answer", after("get", fence, 12, "serving")},
	{"ship: before a state object", before("put", `^state/`, 1, "serving")},
	{"ship: behind a state object", after("put", `^state/`, 1, "serving")},
	{"ship: behind an export", after("put", `^meta/`, 0, "")},
	{"evict: before a file is removed", before("remove", segFile, 1, "serving")},
	{"evict: behind a file that is removed", after("remove", segFile, 2, "serving")},
	{"trim: before the local state", before("sync", stateLog, 0, "trim")},
	{"trim: behind the local state", after("sync", stateLog, 0, "trim")},
	{"trim: before the chain's entry", before("put", entry, 1, "trim")},
	{"trim: behind the chain's entry", after("put", entry, 1, "trim")},
	{"trim: before the objects go", before("delete", `t/.*/s/`, 0, "trim")},
	{"trim: behind the objects that went", after("delete", `t/.*/s/`, 0, "trim")},
	{"garbage: before shipped log goes", before("delete", `wal/.*\.ship`, 0, "serving")},
	{"garbage: behind shipped log that went", after("delete", `wal/.*\.ship`, 0, "serving")},
	{"log: before its oldest file is reused", before("rename", logSpare, 0, "serving")},
	{"log: behind the reuse of its oldest file", after("rename", logSpare, 1, "serving")},
	{"carry: before it is synced", before("sync", logFile, 0, "carried")},
	{"carry: before the local state names it", before("sync", stateLog, 0, "carried")},
	{"carry: behind the local state that names it", after("sync", stateLog, 0, "carried")},
	{"carry: before the file with the first copy is reused", before("rename", logSpare, 0, "carried")},
	{"carry: behind the reuse of the file with the first copy", after("rename", logSpare, 0, "carried")},
	{"claim: before it", before("put", `^cluster/`, 0, "")},
	{"claim: behind it", after("put", `^cluster/`, 0, "")},
	{"claim: before OPEN", before("put", `/OPEN$`, 0, "")},
	{"claim: behind OPEN", after("put", `/OPEN$`, 0, "")},
}

// againPoints are points of a start on what a killed process left.
var againPoints = []named{
	{"start: before the identity is synced again", before("sync", `^data/$`, 0, "")},
	{"start: before the log's first sync", before("sync", logFile, 0, "")},
	{"start: behind the log's first sync", after("sync", logFile, 0, "")},
	{"start: before the log's directory is synced", before("sync", logDir, 0, "")},
	{"start: behind the first sync of the local state", after("sync", stateLog, 0, "")},
	{"start: before the first object it ships", before("put", shipped, 0, "")},
}

// restorePoints are points of a restore.
var restorePoints = []named{
	{"restore: before the claim", before("put", `^cluster/`, 0, "")},
	{"restore: behind the claim", after("put", `^cluster/`, 0, "")},
	{"restore: before a fence", before("put", fence, 0, "")},
	{"restore: behind a fence", after("put", fence, 0, "")},
	{"restore: before the identity has its name", before("rename", `identity`, 0, "")},
	{"restore: behind a fence of a chain", after("put", entry, 0, "")},
	{"restore: before the log's first sync", before("sync", logFile, 0, "")},
	{"restore: before the tail is synced", before("sync", active, 0, "")},
	{"restore: behind the tail", after("sync", active, 0, "")},
	{"restore: before the directory has its name", before("rename", wholeDir, 0, "")},
	{"restore: behind the rename of the directory", after("rename", wholeDir, 0, "")},
}

// site is the directories of one history.
type site struct {
	t       *testing.T
	dir     string
	archive string
	answers string
}

func newSite(t *testing.T) *site {
	t.Helper()
	top := t.TempDir()
	return &site{t: t, dir: filepath.Join(top, "data"), archive: filepath.Join(top, "archive"), answers: filepath.Join(top, "answers")}
}

// killed runs a child until it dies at its point; one that does not die, or
// dies otherwise, fails the test.
func (s *site) killed(work string, p point) {
	s.t.Helper()
	text, err := json.Marshal(order{Work: work, Dir: s.dir, Archive: s.archive, Answers: s.answers, Point: p})
	if err != nil {
		s.t.Fatal(err)
	}
	child, err := process.Start(process.Options{Path: os.Args[0], Env: []string{childVariable + "=" + string(text)}})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*workMax)
	defer cancel()
	if code, err := child.Wait(ctx); err != nil || code != -1 { // -1: a signal
		s.t.Fatalf("the child was not killed at its point: code %d, %v\n%s", code, err, child.Log())
	}
}

func (s *site) told() *told {
	s.t.Helper()
	know, err := readAnswers(s.answers)
	if err != nil {
		s.t.Fatal(err)
	}
	return know
}

// copyOf copies a directory.
func copyOf(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// rounds is how often all points are gone through: `make crash` asks for more.
func rounds(t *testing.T) int {
	t.Helper()
	text := os.Getenv("TIDEMARK_KILL_ROUNDS")
	if text == "" {
		return 1
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("TIDEMARK_KILL_ROUNDS=%q is no number of rounds", text)
	}
	return 1 + n/10
}

// A node is killed before or after a certain call, from append to claim. Its
// directory then serves what was answered, where it was answered, and what was
// acked does not come back (I1, I3, I4, I11); its archive has no hole (I7, I8);
// and from a copy of the archive as the kill left it a cluster is restored that
// has everything that was answered as archived (I16). A trim that was answered
// holds.
func TestKillPoints(t *testing.T) {
	for round := range rounds(t) {
		for i, p := range servePoints {
			if testing.Short() && i%3 != 0 {
				continue
			}
			if p.point.Arm == "serving" { // a later call of the same kind
				p.point.Skip += round
			}
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				s := newSite(t)
				s.killed("serve", p.point)
				s.judge()
			})
		}
	}
}

// The same, where the second process on the directory dies while it starts.
func TestKillPointsOfAStart(t *testing.T) {
	for _, p := range againPoints {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.killed("serve", before("sync", logFile, 90, "serving"))
			s.killed("serve", p.point)
			s.judge()
		})
	}
}

// judge looks at what a kill left: the directory and its archive, and the archive
// alone.
func (s *site) judge() {
	s.t.Helper()
	know := s.told()
	store, err := openArchive(s.archive)
	if err != nil {
		s.t.Fatal(err)
	}
	claims, err := filepath.Glob(filepath.Join(s.archive, "meta", "*"))
	if err != nil {
		s.t.Fatal(err)
	}
	if len(claims) > 0 { // a cluster that never finished its first start is none yet
		alone, err := openArchive(copyOf(s.t, s.archive))
		if err != nil {
			s.t.Fatal(err)
		}
		judge(s.t, rebuild(s.t, alone), alone, know, true)
		verify(s.t, alone)
	}
	judge(s.t, s.dir, store, know, false)
	verify(s.t, store)
}

// lostNode is an archive that a node left, and what its clients know; made once.
var lostNode = sync.OnceValues(func() (s *site, err error) {
	top, err := os.MkdirTemp("", "tidemark-killpoint-")
	if err != nil {
		return nil, err
	}
	s = &site{dir: filepath.Join(top, "data"), archive: filepath.Join(top, "archive"), answers: filepath.Join(top, "answers")}
	store, err := openArchive(s.archive)
	if err != nil {
		return nil, err
	}
	a, err := openAnswers(s.answers)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), workMax)
	defer cancel()
	o := nodeOptions(s.dir, store)
	o.SealAge = 0 // what comes last is in the log alone
	n, err := node.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := load(ctx, n, a, func(string) {}, 130); err != nil {
		return nil, err
	}
	return s, n.Close()
})

// A restore is killed before or after a certain call, from its claim to the
// rename of the directory. There is a whole data directory then or none, and
// the restore, run again where there is none, brings back everything (I16,
// B224); an archive in which several restores died has no hole.
func TestKillPointsOfARestore(t *testing.T) {
	lost, err := lostNode()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(filepath.Dir(lost.dir)); err != nil {
			t.Error(err)
		}
	})
	for _, p := range restorePoints {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.archive, s.answers = copyOf(t, lost.archive), lost.answers
			s.killed("restore", p.point)
			store, err := openArchive(s.archive)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(s.dir); os.IsNotExist(err) {
				if _, err := restore.Run(t.Context(), restoreOptions(s.dir, store)); err != nil {
					t.Fatalf("the restore, run again: %v", err)
				}
			}
			know := s.told()
			for _, topic := range know.topics { // the node ended in order: all of it was shipped
				for record := range topic.stored {
					topic.archived[record] = true
				}
			}
			judge(t, s.dir, store, know, true)
			verify(t, store)
		})
	}
}
