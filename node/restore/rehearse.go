package restore

import (
	"context"
	"slices"
	"sync"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node/queue"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// maxShelf bounds the bytes of shipped WAL that a rehearsal keeps for the
// replay. A state object comes every 256 MiB of log, so what a restore reads
// usually fits, stored, and is read once; what is beyond is read twice.
const maxShelf = 256 << 20

// shelf has shipped WAL objects as they are stored. They never change. It may
// be used concurrently, for different objects.
type shelf struct {
	mu      sync.Mutex
	objects map[string][]byte
	room    int
	keep    bool // false: what is read now is not read again
}

func newShelf() *shelf { return &shelf{objects: map[string][]byte{}, room: maxShelf, keep: true} }

// read returns the object, from the shelf if it is there.
func (s *shelf) read(ctx context.Context, store objstore.Store, key string) ([]byte, error) {
	s.mu.Lock()
	b, ok := s.objects[key]
	if ok && !s.keep {
		delete(s.objects, key)
	}
	s.mu.Unlock()
	if ok {
		return b, nil
	}
	b, _, err := objstore.ReadAll(ctx, store, key, maxWALStored)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.keep && len(b) <= s.room {
		s.room -= len(b)
		s.objects[key] = b
	}
	return b, err
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
