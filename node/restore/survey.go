package restore

import (
	"cmp"
	"context"
	"slices"
	"sort"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/ship"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/wal"
)

// maxState bounds a state object as it is stored.
const maxState = 256 << 20

// survey is what the archive holds, as far as lists and small objects tell.
type survey struct {
	claim        archive.Claim // of the highest cluster generation
	exportKey    string
	export       []byte // decoded
	meta         *raftmeta.State
	incarnations []*incarnation // in the order in which they wrote
	newest       time.Time      // store's time of the newest WAL object
	perInterval  int64          // records in the newest WAL objects of all nodes
	chains       map[broker.PartitionID]*manifest.Chain
	deleted      map[broker.TopicID]bool // topics of the export with a tombstone
}

// incarnation is one writer of shipped WAL.
type incarnation struct {
	node     string
	id       uint64
	open     archive.Open
	hasOpen  bool
	fenced   bool
	wal      []manifest.Key // ascending
	bytes    []int64        // of each
	states   []manifest.Key // ascending
	stateKey string         // of state
	state    *archive.State // the newest that reads; nil: it wrote none
	damaged  []string       // state objects newer than that
	lately   int64          // records in the last of wal, if a replay read it
}

func (i *incarnation) replayFrom() uint64 {
	if i.state == nil {
		return 1
	}
	return i.state.ReplayFrom
}

// toReplay returns the index of the first object that a restore needs. Ends do
// not ascend where objects overlap.
func (i *incarnation) toReplay() int {
	from := i.replayFrom()
	for k := range i.wal {
		if i.wal[k].End > from {
			return k
		}
	}
	return len(i.wal)
}

// complete says, from the names alone, whether every frame that a restore needs
// is there.
func (i *incarnation) complete() error {
	next := i.replayFrom()
	for k := i.toReplay(); k < len(i.wal); k++ {
		if i.wal[k].First > next {
			return i.missing(next, i.wal[k].First, "before "+i.wal[k].String())
		}
		next = max(next, i.wal[k].End)
	}
	// A state object comes after the frames that it covers.
	if i.state != nil && next <= i.state.LSN {
		return i.missing(next, i.state.LSN+1, "although "+i.stateKey+" was written after them")
	}
	return nil
}

func (i *incarnation) missing(from, to uint64, where string) error {
	return errcode.New(errcode.Corrupt, "shipped WAL of node %s, incarnation %016x: frames %d to %d are missing %s; put the object back, or restore to a point before it", i.node, i.id, from, to-1, where)
}

// look reads the archive's claims, newest export, lists and state objects, and
// refuses logs with holes.
func look(ctx context.Context, o *Options) (*survey, error) {
	s := &survey{}
	if err := s.findClaim(ctx, o.Store); err != nil {
		return nil, err
	}
	if err := s.findExport(ctx, o.Store); err != nil {
		return nil, err
	}
	if _, err := s.findTombstones(ctx, o.Store); err != nil {
		return nil, err
	}
	return s, s.findIncarnations(ctx, o.Store)
}

// list calls fn for every object below prefix, in order.
func list(ctx context.Context, store objstore.Store, prefix string, fn func(objstore.Info) error) error {
	after := ""
	for {
		page, err := store.List(ctx, prefix, after, 0)
		if err != nil {
			return errcode.Wrap(errcode.ArchiveUnavailable, err, "list %s", prefix)
		}
		for _, info := range page.Objects {
			after = info.Key
			if err := fn(info); err != nil {
				return err
			}
		}
		if !page.More || len(page.Objects) == 0 {
			return nil
		}
	}
}

// newest returns the last key of one kind below prefix, and the one before it.
// Foreign objects are passed over: a tool's leftover does not stop a restore.
func newest(ctx context.Context, store objstore.Store, prefix string, kind manifest.KeyKind) (last, before manifest.Key, err error) {
	err = list(ctx, store, prefix, func(i objstore.Info) error {
		if k, err := manifest.ParseKey(i.Key); err == nil && k.Kind == kind {
			before, last = last, k
		}
		return nil
	})
	return last, before, err
}

func (s *survey) findClaim(ctx context.Context, store objstore.Store) error {
	last, _, err := newest(ctx, store, manifest.PrefixCluster, manifest.KindCluster)
	if err != nil {
		return err
	}
	if last == (manifest.Key{}) {
		return errcode.New(errcode.NotFound, "archive %s holds no cluster: check the URL and its prefix", store.Capabilities().URL)
	}
	data, err := ship.ReadSmall(ctx, store, last.String())
	if err != nil {
		return errcode.Wrap(errcode.ArchiveUnavailable, listed(err), "read %s", last)
	}
	if s.claim, err = archive.DecodeClaim(data); err == nil && s.claim.Generation != last.Cluster {
		err = errcode.New(errcode.Corrupt, "it says generation %d", s.claim.Generation)
	}
	return errcode.Wrap(errcode.Corrupt, err, "read %s", last)
}

// findExport takes the newest export. One that does not read ends the restore:
// an older one may lack topics, so that is a choice for people.
func (s *survey) findExport(ctx context.Context, store objstore.Store) error {
	last, before, err := newest(ctx, store, manifest.PrefixMeta, manifest.KindMeta)
	if err != nil {
		return err
	}
	if last == (manifest.Key{}) {
		return errcode.New(errcode.NotFound, "archive %s holds no metadata export: its cluster never finished its first start, there is nothing to restore", store.Capabilities().URL)
	}
	stored, _, err := objstore.ReadAll(ctx, store, last.String(), maxState)
	if err != nil {
		return errcode.Wrap(errcode.ArchiveUnavailable, listed(err), "read %s", last)
	}
	if s.export, err = archive.Unpack(stored); err == nil {
		s.meta, err = raftmeta.ParseExport(s.export)
	}
	if err == nil {
		if c := s.meta.Cluster(); c.ID != s.claim.ClusterID || c.Generation != last.Cluster || s.meta.Index() != last.Index {
			err = errcode.New(errcode.Corrupt, "it is of cluster %s, generation %d, index %d, the archive of cluster %s", c.ID, c.Generation, s.meta.Index(), s.claim.ClusterID)
		}
	}
	if err != nil {
		older := "there is no older one"
		if before != (manifest.Key{}) {
			older = "the one before it is " + before.String()
		}
		return errcode.Wrap(errcode.Corrupt, err, "metadata export %s (%s)", last, older)
	}
	s.exportKey = last.String()
	return nil
}

func (s *survey) findIncarnations(ctx context.Context, store objstore.Store) error {
	type id struct {
		node string
		inc  uint64
	}
	found := map[id]*incarnation{}
	of := func(k manifest.Key) *incarnation {
		i := found[id{k.Node, k.Incarnation}]
		if i == nil {
			i = &incarnation{node: k.Node, id: k.Incarnation}
			found[id{k.Node, k.Incarnation}] = i
		}
		return i
	}
	note := func(info objstore.Info) error {
		k, err := manifest.ParseKey(info.Key)
		if err != nil {
			return nil // not ours: a tool's leftover does not stop a restore
		}
		switch k.Kind {
		case manifest.KindWAL:
			i := of(k)
			i.wal, i.bytes = append(i.wal, k), append(i.bytes, info.Size)
			if info.Modified.After(s.newest) {
				s.newest = info.Modified
			}
		case manifest.KindWALFence:
			of(k).fenced = true
		case manifest.KindWALOpen:
			of(k).hasOpen = true
		case manifest.KindState:
			of(k).states = append(of(k).states, k)
		}
		return nil
	}
	// States first: one that is listed was put after the frames that it covers,
	// so the list that follows holds them, also while a cluster writes.
	for _, prefix := range []string{manifest.PrefixState, manifest.PrefixWAL} {
		if err := list(ctx, store, prefix, note); err != nil {
			return err
		}
	}
	for _, i := range found {
		if f, ok := s.meta.Fenced(raftmeta.Incarnation(i.id)); ok && f.RetiredMs > 0 && f.Node == i.node {
			// Its heir found everything that it shipped covered by the chains and
			// by its own state, and part of it may be gone.
			if i.fenced {
				continue
			}
			i = &incarnation{node: i.node, id: i.id} // to be fenced once more
		}
		if err := i.read(ctx, store); err != nil {
			return err
		}
		if err := i.complete(); err != nil {
			// Beside a node that ships, a list may show an object and not the one
			// before it, which was put while the list ran.
			return &vanished{err}
		}
		s.incarnations = append(s.incarnations, i)
	}
	sort.Slice(s.incarnations, func(a, b int) bool {
		x, y := s.incarnations[a], s.incarnations[b]
		// Two of one time are in the same order in every look.
		return cmp.Or(cmp.Compare(x.open.ClusterGeneration, y.open.ClusterGeneration), cmp.Compare(x.open.TimeMS, y.open.TimeMS),
			cmp.Compare(x.node, y.node), cmp.Compare(x.id, y.id)) < 0
	})
	return nil
}

func (i *incarnation) read(ctx context.Context, store objstore.Store) error {
	if i.hasOpen {
		key := manifest.WALOpenKey(i.node, i.id)
		data, err := ship.ReadSmall(ctx, store, key)
		if err != nil {
			return errcode.Wrap(errcode.ArchiveUnavailable, listed(err), "read %s", key)
		}
		i.open, err = archive.DecodeOpen(data)
		if err == nil && (i.open.Node != i.node || i.open.Incarnation != i.id) {
			err = errcode.New(errcode.Corrupt, "it says incarnation %016x of node %s", i.open.Incarnation, i.open.Node)
		}
		if err != nil {
			return errcode.Wrap(errcode.Corrupt, err, "read %s", key)
		}
	}
	return i.readState(ctx, store)
}

// readState reads the newest state object. One that is damaged is passed over
// for an older one: with the log from there on, which must be whole, a restore
// comes to the same. It is reported.
func (i *incarnation) readState(ctx context.Context, store objstore.Store) error {
	var first error
	for _, key := range slices.Backward(i.states) {
		state, err := ship.ReadState(ctx, store, key)
		if err == nil {
			i.state, i.stateKey = state, key.String()
			return nil
		}
		err = errcode.Wrap(errcode.ArchiveUnavailable, listed(err), "state object %s", key)
		if first == nil {
			first = err
		}
		if !errcode.Is(err, errcode.Corrupt) {
			return err
		}
		i.damaged = append(i.damaged, key.String())
	}
	return first // none reads: nobody knows where to begin
}

func (s *survey) readChains(ctx context.Context, o *Options) error {
	type loaded struct {
		id    broker.PartitionID
		chain *manifest.Chain
	}
	var ids []broker.PartitionID
	for _, t := range s.topics() {
		for i := range t.Partitions {
			ids = append(ids, broker.PartitionID{Topic: t.ID, Partition: i})
		}
	}
	out := make(chan loaded, len(ids))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for _, id := range ids {
		g.Go(func() error {
			c, err := manifest.Load(ctx, o.Store, id, 0, manifest.WithTornEnd())
			if err != nil {
				return errcode.Wrap(errcode.ArchiveUnavailable, err, "chain of partition %s", id)
			}
			out <- loaded{id, c}
			o.Progress("chains", int64(len(out)), int64(len(ids)))
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	close(out)
	s.chains = make(map[broker.PartitionID]*manifest.Chain, len(ids))
	for l := range out {
		s.chains[l.id] = l.chain
	}
	return nil
}

func (s *survey) plan(o *Options) Plan {
	p := Plan{
		Archive: o.Store.Capabilities().URL, ClusterID: s.claim.ClusterID,
		Generation: s.claim.Generation, NewGeneration: s.claim.Generation + 1,
		Export: s.exportKey, Topics: len(s.topics()), DeletedTopics: len(s.deleted), Partitions: len(s.chains), NewestObject: s.newest,
		MayBeMissing: s.perInterval, TornEntries: s.torn(),
	}
	for _, c := range s.chains {
		t := c.Totals()
		p.Segments += c.Len()
		p.ArchivedRecords += t.Records
		p.ArchivedBytes += t.Bytes
	}
	p.WALBytes = s.walBytes()
	for _, i := range s.incarnations {
		p.WALObjects += len(i.wal) - i.toReplay()
	}
	return p
}

// countNewest counts the records in each node's newest WAL object. They came in
// one shipping interval, so about as many may have come after it, which only
// the lost disk had. The replay has read those that a restore needs.
func (s *survey) countNewest(ctx context.Context, store objstore.Store) {
	last := map[string]*incarnation{} // by node
	for _, i := range s.incarnations {
		if len(i.wal) > 0 {
			last[i.node] = i
		}
	}
	for _, i := range last {
		if s.perInterval += i.lately; i.toReplay() < len(i.wal) {
			continue
		}
		// Damage to what a state object covers does not stop a restore.
		r := replay{store: store}
		object, err := r.readWAL(ctx, i, i.wal[len(i.wal)-1])
		if err != nil {
			continue
		}
		_ = object.Each(func(f wal.Frame) error {
			n, err := records(f)
			s.perInterval += n
			return err
		})
	}
}

// records returns how many records a frame holds.
func records(f wal.Frame) (n int64, err error) {
	if f.Kind != wal.KindCommit && f.Kind != wal.KindCarry {
		return 0, nil
	}
	_, sections, err := frame.ParseCommit(f.Body)
	if err != nil {
		return 0, err
	}
	for s := range sections {
		for rest := s.Batches; len(rest) > 0; {
			batch, after, err := segment.NextBatch(rest)
			if err != nil {
				return 0, err
			}
			h, err := segment.ParseHeader(batch)
			if err != nil {
				return 0, err
			}
			n, rest = n+int64(h.Records), after
		}
	}
	return n, nil
}

// alive reports whether the cluster is seen writing: its newest object is
// young, and another one appears while we watch.
func (s *survey) alive(ctx context.Context, o *Options) (bool, error) {
	if s.newest.IsZero() || o.Now().Sub(s.newest) > aliveAge {
		return false, nil
	}
	t := time.NewTimer(aliveWait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	var later *survey
	err := steady(func() error {
		later = &survey{meta: s.meta}
		return later.findIncarnations(ctx, o.Store)
	})
	return err == nil && later.newest.After(s.newest), err
}
