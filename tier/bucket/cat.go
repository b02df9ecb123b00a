package bucket

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"slices"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// maxEarly bounds the batches of shipped WAL that came before the ones in
// front of them.
const maxEarly = 64 << 20

// CatOptions say which batches Cat reads.
type CatOptions struct {
	Partition broker.PartitionID
	From      int64 // first offset; below the log's start it begins there
	To        int64 // offset to stop before; negative: everything
	// Present is where the partition's present generation begins, by the
	// metadata: the chain does not know a generation that published nothing yet.
	// Zero: nothing is known.
	Present manifest.Fence
	// Decoders read what is behind the chain's end, in shipped WAL: Batches, and
	// Needs to leave out what the chain covers. Without Batches Cat ends with the
	// chain.
	Decoders Decoders
}

// CatReport says what Cat has read.
type CatReport struct {
	Start    int64 // of the log
	ChainEnd int64 // records from here on came out of shipped WAL
	Next     int64 // offset behind the last batch
}

// Cat calls fn for the batches of one partition that hold offsets of the range,
// in offset order, out of the bucket alone: the segments that the chain names,
// then shipped WAL. A batch is verified, and valid during the call. It may begin
// before the range and end behind it. Memory does not depend on how much is
// read. Errors: NotFound (no such partition), Corrupt, Gone (an object that the
// chain names is not there), the store's, and fn's.
func Cat(ctx context.Context, store objstore.Store, o CatOptions, fn func(batch []byte, h *segment.BatchHeader) error) (CatReport, error) {
	chain, err := manifest.Load(ctx, store, o.Partition, 0)
	if err != nil {
		return CatReport{}, errcode.Wrap(errcode.Internal, err, "chain of partition %s", o.Partition)
	}
	if o.To < 0 {
		o.To = 1<<63 - 1
	}
	c := &catter{ctx: ctx, store: store, o: o, chain: chain, fn: fn, fences: chain.Fences()}
	c.learn(o.Present)
	if len(c.fences) == 0 {
		c.learn(manifest.Fence{Generation: 1}) // every partition begins with it
	}
	c.next = max(o.From, chain.Start())
	err = c.archived()
	if err == nil && o.Decoders.Batches != nil && c.o.To > chain.End() {
		err = c.shipped()
	}
	if err == nil && chain.Seq() == 0 && c.next == 0 && o.Present == (manifest.Fence{}) {
		err = errcode.New(errcode.NotFound, "the archive has nothing of partition %s", o.Partition)
	}
	return CatReport{Start: chain.Start(), ChainEnd: chain.End(), Next: c.next}, err
}

type catter struct {
	ctx   context.Context
	store objstore.Store
	o     CatOptions
	chain *manifest.Chain
	fn    func([]byte, *segment.BatchHeader) error
	next  int64

	fences []manifest.Fence // of the chain, and Present

	early      map[int64][]byte
	earlyBytes int
}

// learn takes where a generation began, unless the chain says it.
func (c *catter) learn(f manifest.Fence) {
	at, known := slices.BinarySearchFunc(c.fences, f.Generation, func(x manifest.Fence, g uint32) int { return cmp.Compare(x.Generation, g) })
	if !known && f.Generation > 0 {
		c.fences = slices.Insert(c.fences, at, f)
	}
}

// archived reads the segments of the chain, one after the other.
func (c *catter) archived() error {
	missing := "" // object that was not there
	for c.next < min(c.o.To, c.chain.End()) {
		at, err := c.chain.Find(c.ctx, c.next)
		if err != nil {
			return err
		}
		if at.Kind == manifest.InSegment {
			err := c.segment(&at.Segment)
			if errcode.Is(err, errcode.Gone) && at.Segment.Key() != missing {
				// Merged or trimmed since the chain was read, perhaps.
				missing = at.Segment.Key()
				if _, err = c.chain.Refresh(c.ctx); err == nil {
					continue
				}
			}
			if err != nil {
				return err
			}
		}
		if c.next = max(c.next, at.Next); at.Next <= 0 {
			return nil
		}
	}
	return nil
}

func (c *catter) segment(s *manifest.Segment) error {
	key := s.Key()
	r, _, err := segment.OpenReader(key, &object{ctx: c.ctx, store: c.store, key: key}, s.Bytes)
	if err != nil {
		if errcode.Is(err, errcode.NotFound) {
			return errcode.New(errcode.Gone, "offsets %d to %d: the archive does not have %s: see tidemark bucket verify", s.Base, s.Next-1, key)
		}
		return err
	}
	for scan := r.Scan(c.next, nil); ; {
		b, h, err := scan.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case h.BaseOffset >= c.o.To:
			return nil
		case h.NextOffset() <= c.next:
			continue
		}
		if err := c.emit(b, &h); err != nil {
			return err
		}
	}
}

func (c *catter) emit(b []byte, h *segment.BatchHeader) error {
	c.next = h.NextOffset()
	return c.fn(b, h)
}

// shipped reads what is behind the chain's end out of the log that nodes
// shipped, in the order in which their incarnations began to write.
func (c *catter) shipped() error {
	objects, err := c.objects()
	if err != nil {
		return err
	}
	c.early = map[int64][]byte{}
	for _, k := range objects {
		if c.next >= c.o.To {
			return nil
		}
		stored, _, err := objstore.ReadAll(c.ctx, c.store, k.String(), maxObject)
		if err != nil {
			return errcode.Wrap(errcode.Internal, err, "read %s", k)
		}
		if err := c.o.Decoders.Batches(k, stored, c.o.Partition, c.batch); err != nil {
			return errcode.Wrap(errcode.Corrupt, err, "%s", k)
		}
	}
	if len(c.early) > 0 {
		first := slices.Min(slices.Collect(maps.Keys(c.early)))
		if first < c.o.To {
			return errcode.New(errcode.Corrupt, "partition %s: shipped WAL has offset %d, those from %d on are nowhere: see tidemark bucket verify", c.o.Partition, first, c.next)
		}
	}
	return nil
}

// batch takes a batch of shipped WAL. Records of an owner that had lost the
// partition do not count.
func (c *catter) batch(generation uint32, b []byte) error {
	h, err := segment.ParseHeader(b)
	if err != nil {
		return err
	}
	if h.NextOffset() <= max(c.next, c.chain.End()) || h.BaseOffset >= c.o.To || !manifest.Counts(c.fences, generation, h.BaseOffset) {
		return nil
	}
	c.next = max(c.next, c.chain.End())
	if h.BaseOffset > c.next && !c.isGap(c.next, h.BaseOffset) {
		if _, ok := c.early[h.BaseOffset]; ok {
			return nil
		}
		if c.earlyBytes += len(b); c.earlyBytes > maxEarly {
			return errcode.New(errcode.Corrupt, "partition %s: offset %d and those behind it are there, those from %d on are not", c.o.Partition, h.BaseOffset, c.next)
		}
		c.early[h.BaseOffset] = slices.Clone(b)
		return nil
	}
	if err := c.emit(b, &h); err != nil {
		return err
	}
	for {
		at, ok := c.nextEarly()
		if !ok {
			return nil
		}
		b := c.early[at]
		delete(c.early, at)
		c.earlyBytes -= len(b)
		h, err := segment.ParseHeader(b)
		if err == nil {
			err = c.emit(b, &h)
		}
		if err != nil {
			return err
		}
	}
}

func (c *catter) nextEarly() (int64, bool) {
	for at := range c.early {
		if at == c.next || at > c.next && c.isGap(c.next, at) {
			return at, true
		}
	}
	return 0, false
}

// isGap says whether nothing can stand between from and to.
func (c *catter) isGap(from, to int64) bool {
	return slices.ContainsFunc(c.chain.Gaps(), func(g manifest.Gap) bool { return g.From <= from && g.Next == to }) ||
		slices.ContainsFunc(c.fences, func(f manifest.Fence) bool { return f.PreviousEnd == from && f.Start == to && to > from })
}

// objects lists shipped WAL, leaving out what the newest state object of each
// incarnation says that a chain covers.
func (c *catter) objects() (out []manifest.Key, err error) {
	newest := map[writer]manifest.Key{}
	walk := func(prefix string, kind manifest.KeyKind, fn func(manifest.Key, objstore.Info)) error {
		return Walk(c.ctx, c.store, prefix, func(o objstore.Info) error {
			if k, err := manifest.ParseKey(o.Key); err == nil && k.Kind == kind {
				fn(k, o)
			}
			return nil
		})
	}
	err = walk(manifest.PrefixState, manifest.KindState, func(k manifest.Key, _ objstore.Info) { newest[writerOf(k)] = k })
	if err != nil {
		return nil, err
	}
	from := map[writer]uint64{}
	for w, k := range newest {
		if c.o.Decoders.Needs == nil {
			break
		}
		stored, _, err := objstore.ReadAll(c.ctx, c.store, k.String(), maxObject)
		if err != nil {
			return nil, errcode.Wrap(errcode.Internal, err, "read %s", k)
		}
		if from[w], _, err = c.o.Decoders.Needs(k, stored); err != nil {
			return nil, errcode.Wrap(errcode.Corrupt, err, "%s", k)
		}
	}
	type log struct {
		keys  []manifest.Key
		began int64
	}
	logs := map[writer]*log{}
	err = walk(manifest.PrefixWAL, manifest.KindWAL, func(k manifest.Key, o objstore.Info) {
		if k.End <= from[writerOf(k)] {
			return
		}
		l := logs[writerOf(k)]
		if l == nil {
			l = &log{began: o.Modified.UnixNano()}
			logs[writerOf(k)] = l
		}
		l.keys = append(l.keys, k)
	})
	if err != nil {
		return nil, err
	}
	// Generations order records, and the chain knows them; the order of
	// incarnations only saves memory.
	order := slices.Collect(maps.Values(logs))
	slices.SortFunc(order, func(a, b *log) int { return int(min(max(a.began-b.began, -1), 1)) })
	for _, l := range order {
		out = append(out, l.keys...)
	}
	return out, nil
}
