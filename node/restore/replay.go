package restore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"iter"
	"slices"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/partition"
	"github.com/tidemark-mq/tidemark/node/queue"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/wal"
)

// maxWALStored bounds a shipped WAL object as it is stored.
const maxWALStored = 160 << 20

// maxEarly bounds the bytes of batches that came before the ones in front of
// them.
const maxEarly = 256 << 20

// replay puts shipped WAL on top of the chains.
type replay struct {
	store  objstore.Store
	queue  *queue.Engine
	parts  map[broker.PartitionID]*restored
	report *Replayed
	to     *importers // nil: nothing is written, as in a dry run
	early  int64      // bytes in all restored.early
	newest int64      // append ms of the newest record

	stored, groups buffers // memory that objects are read into, and decoded into
}

// restored is one partition on its way back.
type restored struct {
	*partition.Partition // nil in a dry run
	id                   broker.PartitionID
	fences               []manifest.Fence // generations and where they begin: see learn
	next                 int64            // where the next record is expected
	generation           uint32           // highest one seen anywhere
	early                earlyBatches
	torn                 []string // entries behind the chain's last that do not read
	reach                int64    // where the records ended by the state objects

	groupGeneration uint32 // whose groups the queue has
	groupLSN        uint64 // of the present incarnation, up to which they are complete
}

// learn takes where a generation began, unless that is known. The chain knows
// the generations that fenced it; one that never published stands in the
// metadata's assignment, in the base in front of its records, and in state
// objects.
func (p *restored) learn(f manifest.Fence) {
	at, known := slices.BinarySearchFunc(p.fences, f.Generation, func(x manifest.Fence, g uint32) int { return cmp.Compare(x.Generation, g) })
	if !known && f.Generation > 0 {
		p.fences = slices.Insert(slices.Clip(p.fences), at, f)
	}
}

// all replays every incarnation's log, in the order in which they wrote.
func (r *replay) all(ctx context.Context, s *survey, progress func(done int64)) error {
	done := int64(0)
	progress(0)
	for _, i := range s.incarnations {
		err := r.incarnation(ctx, i, func(n int64) {
			done += n
			progress(done)
		})
		if err != nil {
			return err
		}
	}
	if err := r.finish(); err != nil {
		return err
	}
	return r.to.finish()
}

// incarnation replays one writer's log from its newest state on. The survey has
// seen that its objects follow each other.
func (r *replay) incarnation(ctx context.Context, i *incarnation, progress func(bytes int64)) error {
	for _, p := range r.parts {
		p.groupLSN = 0
	}
	if i.state != nil {
		for k := range i.state.Partitions {
			if err := r.state(&i.state.Partitions[k]); err != nil {
				return errcode.Wrap(errcode.Corrupt, err, "state object %s", i.stateKey)
			}
		}
	}
	r.report.Damaged = append(r.report.Damaged, i.damaged...)
	next := i.replayFrom()
	end := next
	seen := overlap{}
	first := i.toReplay()
	objects := r.readAhead(ctx, i, first)
	defer objects.stop()
	for k := first; k < len(i.wal); k++ {
		key := i.wal[k]
		object, err := objects.next()
		if err == nil {
			err = object.Each(func(f wal.Frame) error {
				switch {
				case f.LSN < next:
					return seen.compare(f)
				case f.LSN > next:
					return i.missing(next, f.LSN, "before "+key.String())
				}
				if k+1 < len(i.wal) && f.LSN >= i.wal[k+1].First {
					seen.note(f)
				}
				next = f.LSN + 1
				r.report.Frames++
				if k == len(i.wal)-1 {
					n, err := records(f)
					if err != nil {
						return err
					}
					i.lately += n
				}
				return r.frame(f)
			})
		}
		if failed := r.to.failure(); failed != nil {
			return failed // no damage of the archive
		}
		if errcode.Is(err, errcode.Corrupt) && i.elsewhere(k, next) {
			// A shipper that reads a damaged object back ships its frames again.
			r.report.Damaged = append(r.report.Damaged, key.String())
			err = nil
		}
		if err != nil {
			return errcode.Wrap(errcode.Corrupt, err, "shipped WAL %s", key)
		}
		end = max(end, key.End)
		err = r.to.objectDone(func() {
			progress(i.bytes[k])
			if object != nil {
				r.groups.put(object.Groups)
			}
		})
		if err != nil {
			return err
		}
	}
	if next < end {
		return i.missing(next, end, "at its end")
	}
	return nil
}

// elsewhere says, from the names, whether the frames of object k from next on
// stand in other objects too. Those are read all the same: what they lack is
// missed then.
func (i *incarnation) elsewhere(k int, next uint64) bool {
	for j := range i.wal {
		if j != k && i.wal[j].First <= next {
			next = max(next, i.wal[j].End)
		}
	}
	return next >= i.wal[k].End
}

// readWAL reads one shipped WAL object of i. Its groups are of r.groups, and may
// be given back there.
func (r *replay) readWAL(ctx context.Context, i *incarnation, key manifest.Key) (*archive.WAL, error) {
	stored, _, err := objstore.ReadInto(ctx, r.store, key.String(), maxWALStored, r.stored.get())
	if err != nil {
		return nil, errcode.Wrap(errcode.ArchiveUnavailable, listed(err), "read")
	}
	defer r.stored.put(stored)
	object, err := archive.DecodeWALInto(stored, r.groups.get())
	if err == nil && (object.First != key.First || object.Next != key.End || object.Incarnation != i.id) {
		err = errcode.New(errcode.Corrupt, "it says frames %d to %d of incarnation %016x", object.First, object.Next-1, object.Incarnation)
	}
	if err != nil {
		return nil, err
	}
	return object, nil
}

// overlap remembers frames that the next object holds too. Equal ones come from
// a put whose answer was lost; other ones mean that two copies of a data
// directory shipped, and no one can say which is right.
type overlap map[uint64][sha256.Size]byte

func sumOf(f wal.Frame) [sha256.Size]byte {
	h := sha256.New()
	h.Write([]byte{byte(f.Kind)})
	h.Write(f.Body)
	return [sha256.Size]byte(h.Sum(nil))
}

func (o overlap) note(f wal.Frame) { o[f.LSN] = sumOf(f) }

func (o overlap) compare(f wal.Frame) error {
	if sum, ok := o[f.LSN]; ok && sum != sumOf(f) {
		return errcode.New(errcode.Corrupt, "frame %d differs from the one in an object before it: two copies of one data directory shipped; keep the objects of one of them", f.LSN)
	}
	return nil
}

func (r *replay) frame(f wal.Frame) error {
	switch f.Kind {
	case wal.KindCommit, wal.KindCarry:
		h, sections, err := frame.ParseCommit(f.Body)
		if err != nil {
			return err
		}
		for s := range sections {
			if err := r.section(h.AppendMS, s); err != nil {
				return err
			}
		}
		return nil
	case wal.KindGroup:
		g, err := frame.ParseGroup(f.Body)
		if err != nil {
			return err
		}
		return r.group(f.LSN, g)
	case wal.KindBase:
		b, err := frame.ParseBase(f.Body)
		if err != nil {
			return err
		}
		return r.base(b)
	case wal.KindMark:
		return nil
	default:
		return errcode.New(errcode.UnsupportedVersion, "frame %d has kind %d, which this build does not know: use the build that wrote it, or a newer one", f.LSN, f.Kind)
	}
}

func (r *replay) section(appendMS int64, s frame.Section) error {
	p := r.parts[s.Partition]
	if p == nil {
		r.report.UnknownFrames++
		return nil
	}
	p.generation = max(p.generation, s.Generation)
	for rest := s.Batches; len(rest) > 0; {
		batch, after, err := segment.NextBatch(rest)
		if err != nil {
			return err
		}
		rest = after
		h, err := segment.VerifyBatch(batch)
		if err != nil {
			return err
		}
		if h.NextOffset() <= p.next || !manifest.Counts(p.fences, s.Generation, h.BaseOffset) {
			continue // the chain has it, or it is of an owner that had lost the partition
		}
		if err := r.cutBatch(p, s.Generation, appendMS, h.BaseOffset, batch); err != nil {
			return err
		}
	}
	return nil
}

// cutBatch takes a batch, without the offsets that are there already: a
// repaired node carries records in other batches than it had shipped them in.
func (r *replay) cutBatch(p *restored, generation uint32, appendMS, base int64, batch []byte) error {
	if base >= p.next {
		return r.batch(p, generation, appendMS, base, batch)
	}
	whole, err := segment.ParseHeader(batch)
	if err != nil || whole.NextOffset() <= p.next {
		return err
	}
	run, err := segment.CutBatch(batch, p.next)
	for err == nil && len(run) > 0 {
		var part []byte
		var h segment.BatchHeader
		if part, run, err = segment.NextBatch(run); err == nil {
			h, err = segment.ParseHeader(part)
		}
		if err == nil {
			err = r.batch(p, generation, appendMS, h.BaseOffset, part)
		}
	}
	return err
}

// batch appends a batch that is next, and keeps one that comes early: the
// records in front of it stand later in the log, or lie behind a gap.
func (r *replay) batch(p *restored, generation uint32, appendMS, base int64, data []byte) error {
	if base != p.next && !p.gap(p.next, base) {
		if r.early += p.early.put(earlyBatch{base, generation, appendMS, data}); r.early > maxEarly {
			return errcode.New(errcode.Corrupt, "partition %s: records at offset %d and above are there, those from %d on are not", p.id, base, p.next)
		}
		return nil
	}
	if err := r.add(p, appendMS, data); err != nil {
		return err
	}
	for {
		at, ok := p.nextEarly()
		if !ok {
			return nil
		}
		e := p.early.take(at)
		r.early -= int64(len(e.data))
		if err := r.cutBatch(p, e.generation, e.appendMS, e.base, e.data); err != nil {
			return err
		}
	}
}

// nextEarly is the early batch whose turn it is. This is asked behind every
// batch, so it looks at the first one, and for those that begin a generation.
func (p *restored) nextEarly() (at int, ok bool) {
	if len(p.early) == 0 {
		return 0, false
	}
	if p.early[0].base <= p.next {
		return 0, true
	}
	for start := range p.starts(p.next) {
		if at, ok := p.early.find(start); ok {
			return at, true
		}
	}
	return 0, false
}

// gap says whether nothing can stand between from and to, which is the start
// of a generation.
func (p *restored) gap(from, to int64) bool {
	for start := range p.starts(from) {
		if start == to {
			return true
		}
	}
	return false
}

// starts are the starts of generations that may follow records up to from: from
// is where the predecessor ended, and no generation in between has records.
func (p *restored) starts(from int64) iter.Seq[int64] {
	return func(yield func(int64) bool) {
		for _, f := range p.fences {
			if f.PreviousEnd == from && f.Start > f.PreviousEnd {
				if !yield(f.Start) {
					return
				}
				from = f.Start
			}
		}
	}
}

func (r *replay) add(p *restored, appendMS int64, data []byte) error {
	h, err := segment.ParseHeader(data)
	if err != nil {
		return err
	}
	if r.to != nil {
		r.to.add(p, appendMS, data)
	}
	p.next = h.NextOffset()
	r.report.TailRecords += int64(h.Records)
	r.report.TailBytes += int64(h.Size)
	r.newest = max(r.newest, appendMS)
	return nil
}

// state takes the groups of a state object unless a later generation's are
// there already.
func (r *replay) state(s *archive.PartitionState) error {
	p := r.parts[s.ID()]
	if p == nil {
		return nil
	}
	p.reach = max(p.reach, s.Next)
	p.learn(manifest.Fence{Generation: s.Generation, PreviousEnd: s.PreviousEnd, Start: s.Start})
	return r.setGroups(p, s.Generation, s.GroupLSN, s.Groups)
}

func (r *replay) base(b frame.Base) error {
	p := r.parts[b.Partition]
	if p == nil {
		r.report.UnknownFrames++
		return nil
	}
	p.generation = max(p.generation, b.Generation)
	p.learn(manifest.Fence{Generation: b.Generation, PreviousEnd: b.PreviousEnd, Start: b.Start})
	if b.Generation <= p.groupGeneration {
		return nil // the state object, or an earlier carry of it, knows more
	}
	return r.setGroups(p, b.Generation, 0, b.Groups)
}

// setGroups replaces what the queue knows of a partition's groups.
func (r *replay) setGroups(p *restored, generation uint32, lsn uint64, groups [][]byte) error {
	p.generation = max(p.generation, generation)
	if generation < p.groupGeneration {
		return nil
	}
	states := make([]queue.State, 0, len(groups))
	for _, g := range groups {
		s, err := queue.DecodeState(g)
		if err != nil {
			return err
		}
		states = append(states, s)
	}
	r.queue.Detach(p.id)
	p.groupGeneration, p.groupLSN = generation, lsn
	return r.queue.Attach(p.id, queue.PartitionConfig{Generation: generation, Replay: true}, states)
}

func (r *replay) group(lsn uint64, g frame.Group) error {
	p := r.parts[g.Partition]
	if p == nil {
		r.report.UnknownFrames++
		return nil
	}
	if g.Generation < p.groupGeneration || lsn <= p.groupLSN {
		return nil
	}
	return r.queue.Apply(g.Partition, g.Name, g.Ops)
}

// finish checks that no records were left over.
func (r *replay) finish() error {
	for id, p := range r.parts {
		if len(p.early) > 0 {
			at := p.early[0].base
			if len(p.torn) > 0 {
				return tornRefused(p.torn[0], "shipped WAL of partition %s has offset %d, the records in front of it, from %d on, are nowhere without it", id, at, p.next)
			}
			return errcode.New(errcode.Corrupt, "partition %s: shipped WAL has offset %d, the records in front of it, from %d on, are nowhere: the archive lost an object; see tidemark bucket verify", id, at, p.next)
		}
	}
	if r.newest > 0 {
		r.report.NewestRecord = time.UnixMilli(r.newest)
	}
	return nil
}
