package restore_test

import (
	"context"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/restore"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// onGet does something once, just before an object that matches is read.
type onGet struct {
	objstore.Store
	match func(key string) bool
	do    func(key string)
	once  sync.Once
}

func (s *onGet) Get(ctx context.Context, key string) (io.ReadCloser, objstore.Info, error) {
	if s.match(key) {
		s.once.Do(func() { s.do(key) })
	}
	return s.Store.Get(ctx, key)
}

// runOn restores through a store that changes meanwhile.
func (w *world) runOn(store objstore.Store) (string, *restore.Report) {
	w.t.Helper()
	o := w.options()
	o.Store = store
	r, err := restore.Run(context.Background(), o)
	if err != nil {
		w.t.Fatal(err)
	}
	return o.Dir, r
}

// metadataOf reads the metadata of a restored directory.
func (w *world) metadataOf(dir string) *raftmeta.State {
	w.t.Helper()
	m, err := raftmeta.Open(context.Background(), raftmeta.Options{Dir: filepath.Join(dir, "raft"), NodeID: nodeID, BindAddr: "127.0.0.1:0"})
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			w.t.Error(err)
		}
	}()
	return m.State()
}

// An export that still names a topic, restored after its deletion, does not
// bring the topic back, whichever part of its chain is gone already: the chain
// would look empty, damaged or whole. The deletion stands in the restored
// metadata, so the collection goes on, and another topic is untouched (T16).
func TestTombstonedTopicStaysDeleted(t *testing.T) {
	for name, gone := range map[string]func(entries []string) []string{
		"nothing":   func([]string) []string { return nil },
		"the first": func(e []string) []string { return e[:1] },
		"a middle":  func(e []string) []string { return e[1:2] },
		"all":       func(e []string) []string { return e },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			w.segments(0, 3, 10)
			other := raftmeta.DefaultTopic("other")
			other.Partitions = 1
			doomed := w.topic
			var err error
			if w.topic, err = w.meta.CreateTopic(t.Context(), other); err != nil {
				t.Fatal(err)
			}
			w.segments(0, 2, 10)
			w.export()
			w.put(manifest.TombstoneKey(doomed.ID), archive.Tombstone{Topic: doomed.ID, Name: "t"}.Encode())
			if err := w.mem.Delete(t.Context(), gone(w.keys(manifest.TopicPrefix(doomed.ID)))); err != nil {
				t.Fatal(err)
			}
			dir, r := w.restore()
			if r.Topics != 1 || r.DeletedTopics != 1 || r.Partitions != 1 || r.ArchivedRecords != 20 {
				t.Fatalf("%+v", r.Plan)
			}
			st := w.metadataOf(dir)
			if _, ok := st.Topic("t"); ok {
				t.Fatal("the deleted topic is back")
			}
			if d, ok := st.Deleted(doomed.ID); !ok || d.Purged {
				t.Fatalf("deletion %+v %v", d, ok)
			}
			if _, ok := st.Topic("other"); !ok {
				t.Fatal("the other topic is gone")
			}
		})
	}
}

// A tombstone of a topic that the export does not name, and a foreign object
// beside it, change nothing.
func TestForeignTombstones(t *testing.T) {
	w := newWorld(t, 1)
	w.segments(0, 1, 10)
	w.put(manifest.TombstoneKey(w.topic.ID+1), archive.Tombstone{Topic: w.topic.ID + 1}.Encode())
	w.put("x/readme.txt", []byte("hello"))
	dir, r := w.restore()
	if _, ok := w.metadataOf(dir).Topic("t"); !ok || r.DeletedTopics != 0 {
		t.Fatalf("%+v", r.Plan)
	}
}

// What is deleted between the restore's LIST and its GET, because newer objects
// cover it, makes it list again: a state object, an export, a topic whose chain
// is read. The claim of the restore stands by then, or not yet.
func TestDeletedBetweenListAndGet(t *testing.T) {
	t.Run("state", func(t *testing.T) {
		w := newWorld(t, 1)
		wr := w.writer(firstI, 1, 1)
		p := w.id(0)
		wr.base(frame.Base{Partition: p, Generation: 1})
		wr.records(p, 1, 0, 3)
		wr.ship()
		first := wr.state(archive.State{LSN: wr.shipped, ReplayFrom: 1})
		store := &onGet{Store: w.fault, match: func(key string) bool { return key == first }, do: func(string) {
			wr.records(p, 1, 3, 2)
			wr.ship()
			wr.state(archive.State{LSN: wr.shipped, ReplayFrom: 1})
			w.replace(first, nil)
		}}
		dir, _ := w.runOn(store)
		if got := w.records(dir, 0, 0); !slices.Equal(got, values(firstI, 1, 0, 5)) {
			t.Fatal(got)
		}
	})
	t.Run("export", func(t *testing.T) {
		w := newWorld(t, 1)
		old := w.keys(manifest.PrefixMeta)[0]
		store := &onGet{Store: w.fault, match: func(key string) bool { return key == old }, do: func(string) {
			if err := w.meta.PutSetting(t.Context(), "k", "v"); err != nil {
				t.Error(err)
			}
			w.export()
			w.replace(old, nil)
		}}
		dir, _ := w.runOn(store)
		if v, _ := w.metadataOf(dir).Setting("k"); v != "v" {
			t.Fatal("the older metadata was restored")
		}
	})
	t.Run("topic", func(t *testing.T) {
		w := newWorld(t, 1)
		w.segments(0, 3, 10)
		entries := w.keys(manifest.TopicPrefix(w.topic.ID))
		store := &onGet{Store: w.fault, match: func(key string) bool { return key == entries[1] }, do: func(string) {
			w.put(manifest.TombstoneKey(w.topic.ID), archive.Tombstone{Topic: w.topic.ID}.Encode())
			if err := w.mem.Delete(t.Context(), entries); err != nil {
				t.Error(err)
			}
		}}
		_, r := w.runOn(store)
		if r.Topics != 0 || r.DeletedTopics != 1 {
			t.Fatalf("%+v", r.Plan)
		}
	})
	// A list that ran while two objects were put may show the second alone.
	t.Run("list", func(t *testing.T) {
		w := newWorld(t, 1)
		wr := w.writer(firstI, 1, 1)
		p := w.id(0)
		wr.base(frame.Base{Partition: p, Generation: 1})
		for i := range int64(4) {
			wr.records(p, 1, i, 1)
			wr.ship()
		}
		wal := slices.DeleteFunc(w.keys("wal/"), func(k string) bool { return !strings.HasSuffix(k, ".ship") })
		store := &hiding{Store: w.fault, key: wal[2], times: 2}
		dir, _ := w.runOn(store)
		if got := w.records(dir, 0, 0); !slices.Equal(got, values(firstI, 1, 0, 4)) || store.times != 0 {
			t.Fatal(got, store.times)
		}
	})
	// What is lost for good ends the restore: it is never taken for an absence.
	t.Run("lost", func(t *testing.T) {
		w := newWorld(t, 1)
		wr := w.writer(firstI, 1, 1)
		wr.base(frame.Base{Partition: w.id(0), Generation: 1})
		wr.ship()
		wr.state(archive.State{LSN: wr.shipped, ReplayFrom: 1})
		o := w.options()
		o.Store = lying{w.fault}
		if _, err := restore.Run(context.Background(), o); err == nil || !strings.Contains(err.Error(), "state") {
			t.Fatal(err)
		}
	})
}

// hiding passes over an object in the first lists that would show it.
type hiding struct {
	objstore.Store
	key   string
	times int
}

func (s *hiding) List(ctx context.Context, prefix, after string, n int) (objstore.Page, error) {
	page, err := s.Store.List(ctx, prefix, after, n)
	at := slices.IndexFunc(page.Objects, func(o objstore.Info) bool { return o.Key == s.key })
	if at >= 0 && s.times > 0 {
		s.times--
		page.Objects = slices.Delete(page.Objects, at, at+1)
	}
	return page, err
}

// lying lists state objects that it does not return.
type lying struct{ objstore.Store }

func (s lying) Get(ctx context.Context, key string) (io.ReadCloser, objstore.Info, error) {
	if strings.HasPrefix(key, manifest.PrefixState) {
		return nil, objstore.Info{}, errcode.New(errcode.NotFound, "get %s: no such object", key)
	}
	return s.Store.Get(ctx, key)
}

// An incarnation that the metadata calls retired is passed over, also when part
// of its objects is gone; without that word the same archive is refused. Its
// fence is put back if somebody took it away.
func TestRetiredIncarnation(t *testing.T) {
	const second = 0x2222
	build := func(t *testing.T) *world {
		w := newWorld(t, 1)
		old := w.writer(firstI, 1, 1)
		p := w.id(0)
		old.base(frame.Base{Partition: p, Generation: 1})
		first := old.ship()
		old.records(p, 1, 0, 10)
		old.ship()
		w.segments(0, 1, 10) // the chain has passed its records
		wr := w.writer(second, 1, 2)
		wr.base(frame.Base{Partition: p, Generation: 1})
		wr.records(p, 1, 10, 2)
		wr.ship()
		wr.state(archive.State{LSN: wr.shipped, ReplayFrom: 1})
		w.put(manifest.WALFenceKey(nodeID, firstI), archive.Fence{ClusterGeneration: 1}.Encode())
		w.replace(first, nil) // half of it is gone
		return w
	}
	w := build(t)
	w.refused(errcode.Corrupt, "are missing")

	retire := func(w *world) {
		if _, err := w.meta.RegisterIncarnation(t.Context(), second, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := w.meta.RetireIncarnation(t.Context(), nodeID, firstI); err != nil {
			t.Fatal(err)
		}
		w.export()
	}
	retire(w)
	_, r := w.restore()
	if r.TailRecords != 2 || r.ArchivedRecords != 10 {
		t.Fatalf("%+v", r)
	}

	w = build(t)
	retire(w)
	fence := manifest.WALFenceKey(nodeID, firstI)
	w.replace(fence, nil)
	w.restore()
	w.get(fence) // fails without
}
