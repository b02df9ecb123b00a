package restore

import (
	"context"
	"slices"
	"sync"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/node/queue"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// maxShelf bounds the bytes of log that a rehearsal keeps for the replay. A
// state object comes every 256 MiB of log, so what a restore reads usually fits
// and is read, decompressed and checked once; what is beyond is read twice.
const maxShelf = 256 << 20

// shelf has shipped WAL objects as they were read. They never change. It may be
// used concurrently, for different objects.
type shelf struct {
	mu      sync.Mutex
	objects map[manifest.Key]*archive.WAL
	room    int
	keep    bool // false: what is read now is not read again
}

func newShelf() *shelf {
	return &shelf{objects: map[manifest.Key]*archive.WAL{}, room: maxShelf, keep: true}
}

// take returns the object, or nil if it is not there.
func (s *shelf) take(key manifest.Key) *archive.WAL {
	s.mu.Lock()
	defer s.mu.Unlock()
	object := s.objects[key]
	if !s.keep {
		delete(s.objects, key)
	}
	return object
}

// put keeps the object if there is room.
func (s *shelf) put(key manifest.Key, object *archive.WAL) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.objects[key]; !ok && s.keep && len(object.Groups) <= s.room {
		s.room -= len(object.Groups)
		s.objects[key] = object
	}
}

// rehearse replays the shipped WAL on top of the chains and writes nothing:
// every object that a restore needs is read, every checksum, link and offset
// held against the others. Whatever the replay would find damaged is found
// here, before the cluster that wrote it is ended. The memory that it needs is
// that of what is read ahead, of the shelf, and of what the replay itself holds.
func (s *survey) rehearse(ctx context.Context, o *Options) error {
	q := queue.New(queue.Options{Now: o.Now, Logger: o.Logger})
	defer q.Close()
	rp := &replay{store: o.Store, shelf: s.shelf, queue: q, parts: make(map[broker.PartitionID]*restored, len(s.chains)), report: &Report{}}
	for id := range s.chains {
		rp.parts[id] = s.restored(id)
		a, _ := s.meta.Assignment(id)
		if err := q.Attach(id, queue.PartitionConfig{Generation: a.Generation, Replay: true}, nil); err != nil {
			return err
		}
	}
	if err := rp.all(ctx, s, func(done int64) { o.Progress("shipped WAL, checked", done, s.walBytes()) }); err != nil {
		return err
	}
	return s.judgeTorn(ctx, o.Store, rp.parts)
}

// restored is a partition as its chain and the metadata describe it, before
// anything is replayed.
func (s *survey) restored(id broker.PartitionID) *restored {
	c := s.chains[id]
	a, _ := s.meta.Assignment(id)
	p := &restored{
		id: id, next: c.End(), early: map[int64]earlyBatch{},
		generation: max(a.Generation, c.Generation()), fences: slices.Clone(c.Fences()), torn: c.Torn(),
	}
	p.learn(manifest.Fence{Generation: a.Generation, PreviousEnd: a.PreviousEnd, Start: a.Start})
	return p
}

// doubts is what the newest state object that has the partition says of append
// times that cannot be right.
func (s *survey) doubts(id broker.PartitionID) (out [][3]int64) {
	for _, i := range s.incarnations {
		if i.state == nil {
			continue
		}
		for k := range i.state.Partitions {
			if p := &i.state.Partitions[k]; p.ID() == id {
				out = p.Doubts
			}
		}
	}
	return out
}

// walBytes is the size of the shipped WAL that a restore reads.
func (s *survey) walBytes() (n int64) {
	for _, i := range s.incarnations {
		for k := i.toReplay(); k < len(i.wal); k++ {
			n += i.bytes[k]
		}
	}
	return n
}
