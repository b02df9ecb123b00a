package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node/partition"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/count"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// scrubNode is a node whose topic "t" has sealed segments, each of them on disk
// and in the archive, confirmed, and nothing in memory.
type scrubNode struct {
	*memNode
	store *mem.Store
	calls *count.Store
	id    broker.PartitionID
	want  []string
}

func newScrubNode(t *testing.T, segments int) *scrubNode {
	t.Helper()
	s := &scrubNode{store: mem.New("scrub", nil)}
	s.calls = count.New(s.store)
	s.memNode = newMemNode(t, func(o *Options) {
		o.Archive = objstore.Stack(s.calls, objstore.StackOptions{})
	})
	s.id.Topic = createTopic(t, s.Node, "t", 1).ID
	rng := rand.New(rand.NewPCG(1, 2))
	for range segments {
		var recs []broker.NewRecord
		for range 10 {
			value := make([]byte, 300)
			for i := range value {
				value[i] = byte(rng.Uint32())
			}
			recs = append(recs, broker.NewRecord{Partition: 0, Value: value})
			produce(t, s.Node, "t", broker.AckCommitted, recs[len(recs)-1])
		}
		if err := s.engine.Seal(s.part()); err != nil {
			t.Fatal(err)
		}
	}
	s.want = readAll(t, s.Node, "t", 0)
	within(t, "everything is confirmed", func() bool {
		list := s.files()
		return len(list) == segments && !slices.ContainsFunc(list, func(f partition.File) bool { return !f.Confirmed })
	})
	s.reopen(nil)
	return s
}

func (s *scrubNode) part() *partition.Partition { return s.engine.Get(s.id) }

func (s *scrubNode) files() []partition.File { return s.part().Files(0, 1000) }

// reopen restarts the node; between is called while it is closed. Its memory is
// empty then: reads find what files and bucket have.
func (s *scrubNode) reopen(between func()) {
	s.t.Helper()
	s.memNode.close()
	if between != nil {
		between()
	}
	s.open()
}

// listed returns the chain's segments.
func (s *scrubNode) listed() []manifest.Segment {
	s.t.Helper()
	chain, err := s.chains.load(context.Background(), s.id)
	if err != nil {
		s.t.Fatal(err)
	}
	list, err := chain.Segments(context.Background(), 0, chain.End())
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

func (s *scrubNode) readFile(path string) []byte {
	s.t.Helper()
	f, err := s.mem.Open(path)
	if err != nil {
		return nil
	}
	b, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		s.t.Fatal(err)
	}
	return b
}

// writeFile replaces a file's content in place, as a bad disk does; nil removes it.
func (s *scrubNode) writeFile(path string, b []byte) {
	s.t.Helper()
	err := s.mem.Remove(path)
	if err == nil && b != nil {
		var f vfs.File
		if f, err = s.mem.Create(path, vfs.WriteCategoryUnspecified); err == nil {
			_, err = f.Write(bytes.Clone(b))
			err = errors.Join(err, f.Sync(), f.Close())
		}
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *scrubNode) object(key string) []byte {
	b, _, err := objstore.ReadAll(context.Background(), s.store, key, 1<<30)
	if err != nil {
		return nil
	}
	return b
}

func (s *scrubNode) writeObject(key string, b []byte) {
	s.t.Helper()
	err := s.store.Delete(context.Background(), []string{key})
	if err == nil && b != nil {
		err = s.store.Put(context.Background(), key, bytes.NewReader(b), int64(len(b)), objstore.PutOptions{})
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// scrubNow verifies everything once and returns the report.
func (s *scrubNode) scrubNow() broker.ScrubReport {
	s.t.Helper()
	r, err := s.StartScrub(context.Background(), "t")
	if err != nil {
		s.t.Fatal(err)
	}
	within(s.t, "the round ends", func() bool {
		if r, err = s.Scrub(context.Background()); err != nil {
			s.t.Fatal(err)
		}
		return len(r.Asked) == 0
	})
	return r
}

// damages are the kinds of damage: of a copy b beside another segment's copy.
var damages = []struct {
	name string
	do   func(b, other []byte) []byte
}{
	{"a bit of a batch", func(b, _ []byte) []byte { b[segment.HeaderSize+20] ^= 4; return b }},
	{"a bit of the index", func(b, _ []byte) []byte { b[len(b)-segment.FooterSize-5] ^= 1; return b }},
	{"a bit of the footer", func(b, _ []byte) []byte { b[len(b)-100] ^= 128; return b }},
	{"the end is gone", func(b, _ []byte) []byte { return b[:len(b)-200] }},
	{"it goes on", func(b, _ []byte) []byte { return append(b, 0) }},
	{"nothing is left of it", func(b, _ []byte) []byte { return b[:0] }},
	{"another segment", func(_, other []byte) []byte { return other }},
	{"missing", func([]byte, []byte) []byte { return nil }},
}

// Every kind of damage, of a file and of an object, is found by one round and
// repaired from the other copy: the bytes are those that were sealed, the damaged
// file is kept, the chain names a good object, and no reader sees any of it, not
// before, not while and not after it is repaired. A restart and a second round
// find nothing any more (B36, B210).
func TestScrubRepairs(t *testing.T) {
	s := newScrubNode(t, 2*len(damages)+1)
	files, chain := s.files(), s.listed()
	sealed := make([][]byte, len(files))
	for i, f := range files {
		sealed[i] = s.readFile(f.Path)
	}
	s.reopen(nil) // no open file stands for one that is damaged now
	for i, d := range damages {
		s.writeFile(files[i].Path, d.do(bytes.Clone(sealed[i]), sealed[i+1]))
		j := len(damages) + i
		s.writeObject(chain[j].Key(), d.do(bytes.Clone(sealed[j]), sealed[j+1]))
	}
	if len(s.files()) != len(files) {
		t.Fatal("a file left the partition")
	}
	stop := make(chan struct{})
	var readers sync.WaitGroup
	readers.Go(func() { // before and while
		for done := false; !done; {
			select {
			case <-stop:
				done = true
			default:
			}
			r, err := s.ReadLog(context.Background(), broker.ReadRequest{Topic: "t", From: 0, To: -1})
			for n := 0; err == nil; {
				var recs []broker.Record
				if recs, err = r.Next(context.Background()); err == nil {
					n += len(recs)
				} else if n != len(s.want) {
					t.Errorf("a reader got %d records of %d: %v", n, len(s.want), err)
				}
			}
			if !errors.Is(err, io.EOF) {
				t.Error("a reader failed:", err)
			}
		}
	})
	r := s.scrubNow()
	close(stop)
	readers.Wait()
	if r.Unrepaired != 0 || len(r.Findings) != 0 {
		t.Fatalf("not repaired: %+v", r.Findings)
	}
	for i := range damages {
		for _, tier := range []string{"local", "archive"} {
			base := files[i].Base
			if tier == "archive" {
				base = files[len(damages)+i].Base
			}
			found := slices.ContainsFunc(r.Repaired, func(f broker.ScrubFinding) bool { return f.Tier == tier && f.From == base })
			// A missing file whose records the archive has may have been met by a
			// reader first, who let it go.
			if !found && (tier == "archive" || damages[i].name != "missing") {
				t.Errorf("%s, %s: not found: %+v", tier, damages[i].name, r.Repaired)
			}
		}
	}
	s.whole(sealed)
	for i, d := range damages[:4] { // the first ones are kept
		if got := s.readFile(files[i].Path + ".damaged"); !bytes.Equal(got, d.do(bytes.Clone(sealed[i]), sealed[i+1])) {
			t.Errorf("%s: the damaged file was not kept as it was", d.name)
		}
	}
	s.reopen(nil)
	if r := s.scrubNow(); len(r.Repaired)+len(r.Findings) != 0 {
		t.Fatalf("a second round found %+v %+v", r.Repaired, r.Findings)
	}
	s.whole(sealed)
	s.memNode.close()
}

// whole fails unless every copy that is named has the sealed bytes and the log
// reads as it was written.
func (s *scrubNode) whole(sealed [][]byte) {
	s.t.Helper()
	for _, f := range s.files() {
		i := slices.IndexFunc(sealed, func(b []byte) bool { return int64(len(b)) == f.Bytes && bytes.Equal(b, s.readFile(f.Path)) })
		if i < 0 {
			s.t.Errorf("file %s has not what was sealed", f.Path)
		}
	}
	list := s.listed()
	if len(list) != len(sealed) {
		s.t.Errorf("the chain names %d segments, want %d", len(list), len(sealed))
	}
	for i, x := range list {
		if !bytes.Equal(s.object(x.Key()), sealed[i]) {
			s.t.Errorf("object %s has not what was sealed", x.Key())
		}
	}
	same(s.t, readAll(s.t, s.Node, "t", 0), s.want)
	if d := s.Readiness().Degraded; len(d) != 0 {
		s.t.Errorf("degraded: %q", d)
	}
}

// A reader that meets damage on disk gets its records out of the archive, and the
// file is repaired without a round: also one that was cut before the start, which
// takes nothing out of service. Single records and a look for a time go the same
// way (B36).
func TestReadersHaveFilesRepaired(t *testing.T) {
	s := newScrubNode(t, 4)
	files := s.files()
	var sealed [][]byte
	s.reopen(func() {
		for i, f := range files {
			sealed = append(sealed, s.readFile(f.Path))
			if i < 3 {
				s.writeFile(f.Path, damages[[]int{0, 3, 2}[i]].do(bytes.Clone(sealed[i]), nil))
			}
		}
	})
	if err := s.part().Refused(); err != nil {
		t.Fatal("a partition whose file the archive has went out of service:", err)
	}
	for _, m := range s.consume("t", 100) {
		if got := fmt.Sprintf("%d %s=%s", m.Offset, m.Key, m.Value); got != s.want[m.Offset] {
			t.Fatalf("consumed another record at %d", m.Offset)
		}
	}
	if _, err := s.OffsetForTime(context.Background(), "t", 0, 1); err != nil {
		t.Fatal(err)
	}
	same(t, readAll(t, s.Node, "t", 0), s.want)
	within(t, "the files are repaired", func() bool {
		r, err := s.Scrub(context.Background())
		return err == nil && len(r.Repaired) == 3
	})
	s.whole(sealed)
	s.memNode.close()
}

// When both copies are bad, or there is only one, nothing is changed and nothing
// is deleted: the report and the readiness name the file, the key, the offsets and
// what to do, once and not again and again; records outside the damage are read
// as ever. It survives a restart, and ends when one of the copies is put back
// (B199, B218).
func TestScrubReportsWhatItCannotRepair(t *testing.T) {
	s := newScrubNode(t, 3)
	files, chain := s.files(), s.listed()
	var sealed [][]byte
	s.reopen(func() {
		for _, f := range files {
			sealed = append(sealed, s.readFile(f.Path))
		}
		s.writeFile(files[0].Path, damages[0].do(bytes.Clone(sealed[0]), nil))
		s.writeObject(chain[0].Key(), nil) // the first object of the partition
		s.writeFile(files[1].Path, damages[0].do(bytes.Clone(sealed[1]), nil))
		s.writeObject(chain[1].Key(), damages[1].do(bytes.Clone(sealed[1]), nil))
	})
	check := func(r broker.ScrubReport) {
		t.Helper()
		if r.Unrepaired != 4 || len(r.Findings) != 4 || len(r.Repaired) != 0 {
			t.Fatalf("findings: %+v", r)
		}
		for _, f := range r.Findings {
			i := int(f.From / 10)
			if f.File == files[i].Path == (f.Key == chain[i].Key()) || f.Next != f.From+10 || !strings.Contains(f.Done, "both copies are bad") || !strings.Contains(f.Done, "put one of them back") {
				t.Errorf("finding %+v", f)
			}
		}
	}
	first := s.scrubNow()
	check(first)
	degraded := strings.Join(s.Readiness().Degraded, "\n")
	if !s.Readiness().Ready || !strings.Contains(degraded, "4 damaged copies of segments could not be repaired") {
		t.Errorf("readiness %q", degraded)
	}
	if bytes.Equal(s.readFile(files[0].Path), sealed[0]) || len(s.readFile(files[0].Path)) != len(sealed[0]) || s.object(chain[1].Key()) == nil || !slices.Equal(s.listed(), chain) {
		t.Error("a damaged copy was changed")
	}
	calls := s.calls.Count("get_range")
	check(s.scrubNow())
	if again := s.calls.Count("get_range") - calls; again > 40 {
		t.Errorf("%d GETs for a second look", again)
	}
	p := s.part()
	run, err := p.Read(context.Background(), 20, 1<<20, nil)
	if err != nil || len(run) == 0 {
		t.Errorf("the undamaged segment: %v", err)
	}
	s.reopen(nil)
	if r, err := s.Scrub(context.Background()); err != nil || r.Unrepaired != 4 {
		t.Errorf("after a restart: %+v %v", r, err)
	}
	s.writeFile(files[0].Path, sealed[0])
	s.writeObject(chain[1].Key(), sealed[1])
	if r := s.scrubNow(); r.Unrepaired != 0 || len(r.Repaired) != 2 {
		t.Fatalf("after one copy of each was put back: %+v", r)
	}
	s.whole(sealed)
	s.memNode.close()
}

// A round over a healthy node changes nothing: no file, no object, no entry of a
// chain; it reads each object once in one GET, and asks the store nothing else.
func TestScrubOfAHealthyNodeChangesNothing(t *testing.T) {
	s := newScrubNode(t, 5)
	var before []string
	look := func() (out []string) {
		for _, f := range s.files() {
			out = append(out, f.Path+" "+fmt.Sprintf("%x", f.FileSHA256)+string(s.readFile(f.Path)))
		}
		names, err := s.mem.List(s.fs.PathDir(s.files()[0].Path))
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(names)
		out = append(out, names...)
		for _, x := range s.listed() {
			out = append(out, x.Key()+string(s.object(x.Key())))
		}
		return out
	}
	before = look()
	s.calls.Reset()
	r := s.scrubNow()
	same(t, look(), before)
	if len(r.Findings)+len(r.Repaired) != 0 {
		t.Errorf("found %+v", r)
	}
	for c, n := range s.calls.Calls() {
		switch {
		case c.Cause == objstore.CauseScrub && c.Op == "get_range" && n == 5:
		case c.Cause == objstore.CauseScrub, c.Cause == objstore.CauseSegment:
			t.Errorf("%d calls of %s for %s", n, c.Op, c.Cause)
		}
	}
	if s.calls.Calls()[count.Call{Op: "get_range", Cause: objstore.CauseScrub}] != 5 {
		t.Errorf("calls: %v", s.calls.Calls())
	}
	s.memNode.close()
}
