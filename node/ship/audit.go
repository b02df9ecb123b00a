package ship

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/wal"
)

// A store may say that it took an object and have nothing: a gateway that
// answers before it writes, a quota that ends behind the answer. An object that
// is missing in the middle of the shipped log is the worst of it, because a
// restore refuses a log with a hole. So what was put is looked at again:
//
//   - When somebody waits for ack=archived, the newest object is read back and
//     compared, and everything that was put since the last such look is found in
//     a list and read, once. Only then is the answer given. From then on each
//     object is read back as it is put, for as long as others may wait soon: an
//     answer finds nothing left to read.
//   - Else the newest object is read back now and then. That costs next to
//     nothing, and finds a store that loses what it acknowledges before the
//     local log lets go of it.
//
// What is missing is shipped again out of the local log, which is held back to
// the last look.
const (
	auditInterval = 30 * time.Second // between looks while nobody waits; 2,880 GETs a day
	auditBytes    = 64 << 20         // shipped between looks at most: it bounds what the local log holds for them
	waitersStay   = 10 * time.Minute // since somebody waited: each object is read back as it is put
	readAtOnce    = 8                // objects that are read back in parallel
	readMemory    = 64 << 20         // and their bytes, as they are stored
)

// shipped is how the newest object is recognised.
type shipped struct {
	key         string
	first, next uint64
	size        int64
	crc         uint32
}

// audits is what the shipping goroutine knows about what it put.
type audits struct {
	last  shipped   // the newest object of this process
	seen  uint64    // first LSN behind what was read back: the local log is held from here
	sure  uint64    // first LSN behind what is known to be there without a hole
	hole  uint64    // first LSN that neither the archive nor the local log has, 0 = none
	bytes int64     // put since the last look
	at    time.Time // of the last look
	asked time.Time // when somebody was last seen to wait; zero: never

	// Where objects begin that a list from sure on has to show, ascending: the
	// one that holds sure, which need not be its first frame, and those behind.
	firsts []uint64
}

// maxFirsts bounds audits.firsts: hours of shipping without a state object.
const maxFirsts = 1 << 14

// begin says that everything below next is there.
func (a *audits) begin(next uint64, now time.Time) {
	a.seen, a.sure, a.at, a.firsts = next, next, now, nil
}

// begins notes that an object begins at first. After a loss that may be inside
// of others, which are put anew from there on.
func (a *audits) begins(first uint64) {
	at, _ := slices.BinarySearch(a.firsts, first)
	if at == maxFirsts { // a list from an earlier one is only longer
		at--
	}
	a.firsts = append(a.firsts[:at], first)
}

// from returns where the newest object begins that may hold sure.
func (a *audits) from() uint64 {
	at, exact := slices.BinarySearch(a.firsts, a.sure)
	if !exact {
		at--
	}
	if at < 0 {
		return a.sure
	}
	a.firsts = slices.Delete(a.firsts, 0, at) // sure only rises
	return a.firsts[0]
}

// audit looks at what was put, which ends before end, when that is due. An error
// means that the archive lacks something, or that nobody can tell.
func (s *Shipper) audit(ctx context.Context, end uint64, force bool) error {
	a := &s.audits
	full := a.sure < end && a.hole == 0 && s.wanted()
	due := a.seen < end && (force || full || a.bytes >= auditBytes || s.opts.Now().Sub(a.at) >= auditInterval)
	if due {
		there, err := s.readBack(ctx)
		if err != nil {
			return err
		}
		if !there { // then what came before it may be missing too
			return s.findHole(ctx, a.last.first, true)
		}
		a.seen, a.bytes, a.at = end, 0, s.opts.Now()
	}
	if full {
		return s.findHole(ctx, end, false)
	}
	return nil
}

// wanted says whether somebody waits for more than is known to be there, or did
// so of late.
func (s *Shipper) wanted() bool {
	now := s.opts.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.want >= s.audits.sure {
		s.audits.asked = now
	}
	return !s.audits.asked.IsZero() && now.Sub(s.audits.asked) < waitersStay
}

// readBack compares the newest object with what was put, and says whether it
// is there at all.
func (s *Shipper) readBack(ctx context.Context) (there bool, err error) {
	last := &s.audits.last
	sum, info, err := objstore.Sum(ctx, s.opts.Store, last.key, last.size)
	switch {
	case errcode.Is(err, errcode.NotFound):
		return false, nil
	case errcode.Is(err, errcode.TooLarge), err == nil && (info.Size != last.size || sum != last.crc):
		// It stays where it is. The next object begins at the same frame and
		// covers it: a restore passes over what is damaged and covered.
		s.metrics.lost.Inc()
		return true, errcode.New(errcode.Corrupt, "object %s has other bytes than were put: the store damaged it; its frames are shipped again", last.key)
	}
	return true, err
}

// findHole lists what was put since the last full look, and goes back to where
// it stops before end. The newest object was read back; when it is missing, the
// log is at best whole up to its beginning, which is end then.
func (s *Shipper) findHole(ctx context.Context, end uint64, missing bool) error {
	a, at := &s.audits, s.audits.sure
	if !missing && a.last.first <= at { // it is all there is
		a.sure = end
		return nil
	}
	// Objects are named by their first LSN: from the one on that holds the last
	// one that is sure. A state object's position may be in the middle of it.
	from := a.from()
	after := manifest.WALKey(s.opts.Node, s.opts.Incarnation, from-1, from-1)
	var objects []walked
	if err := s.walk(ctx, after, func(k manifest.Key, size int64) {
		if k.End > at && k.First < end {
			objects = append(objects, walked{k, size, nil})
		}
	}); err != nil {
		return err
	}
	if err := s.readAll(ctx, objects); err != nil {
		return err
	}
	var damaged []manifest.Key
	for _, o := range objects {
		if o.damage != nil {
			// It stays where it is, and counts for as little as with a restore.
			s.opts.Logger.Warn("the archive spoiled an object of the shipped log; its frames are shipped again", "key", o.String(), "error", o.damage)
			damaged = append(damaged, o.Key)
		} else if o.First <= at {
			at = max(at, o.End)
		}
	}
	if at = min(at, end); at < end || missing {
		return s.lost(at, damaged, "everything from frame %d on was put, and is not there without a hole", at)
	}
	a.sure = end
	return nil
}

// walked is an object that a list showed.
type walked struct {
	manifest.Key
	size   int64
	damage error
}

// readAll reads objects and notes which of them a restore could not use. The
// newest one was compared when it was read back. An error says that nobody can
// tell now.
func (s *Shipper) readAll(ctx context.Context, objects []walked) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readAtOnce)
	memory := semaphore.NewWeighted(readMemory)
	for i := range objects {
		o := &objects[i]
		if o.String() == s.audits.last.key {
			continue
		}
		weight := min(max(o.size, readMemory/readAtOnce), readMemory)
		if err := memory.Acquire(ctx, weight); err != nil {
			return cmp.Or(g.Wait(), err) // a read failed, or nobody waits any more
		}
		g.Go(func() error {
			defer memory.Release(weight)
			err := s.readObject(ctx, o)
			if errcode.Is(err, errcode.Corrupt) || errcode.Is(err, errcode.NotFound) || errcode.Is(err, errcode.TooLarge) {
				o.damage, err = err, nil
			}
			return err
		})
	}
	return g.Wait()
}

// readObject reads an object and checks every sum in it.
func (s *Shipper) readObject(ctx context.Context, o *walked) error {
	data, _, err := objstore.ReadAll(ctx, s.opts.Store, o.String(), maxObject)
	if err != nil {
		return err
	}
	w, err := archive.DecodeWAL(data)
	if err != nil {
		return err
	}
	if w.Incarnation != s.opts.Incarnation || w.First != o.First || w.Next != o.End {
		return errcode.New(errcode.Corrupt, "it says frames %d to %d of incarnation %016x", w.First, w.Next-1, w.Incarnation)
	}
	return errcode.Wrap(errcode.Corrupt, w.Each(func(wal.Frame) error { return nil }), "check the frames")
}

// walk calls fn for every shipped object whose key is behind after, in order,
// with its size.
func (s *Shipper) walk(ctx context.Context, after string, fn func(manifest.Key, int64)) error {
	prefix := manifest.WALPrefix(s.opts.Node, s.opts.Incarnation)
	for {
		page, err := s.opts.Store.List(ctx, prefix, after, 0)
		if err != nil {
			return err
		}
		for _, o := range page.Objects {
			after = o.Key
			if k, err := manifest.ParseKey(o.Key); err == nil && k.Kind == manifest.KindWAL {
				fn(k, o.Size)
			}
		}
		if !page.More || len(page.Objects) == 0 {
			return nil
		}
	}
}

// lost goes back to the first LSN that the archive lacks, so that it is shipped
// again. Where a list was old and the object is there after all, the put finds
// it and compares. damaged are objects that stand in the place of what is lost.
func (s *Shipper) lost(from uint64, damaged []manifest.Key, format string, args ...any) error {
	s.metrics.lost.Inc()
	err := errcode.New(errcode.Transient, "the archive lost a part of the shipped log: "+format, args...)
	run, gone := s.opts.Log.ReadGroups(from, s.opts.ObjectBytes)
	taken := slices.ContainsFunc(damaged, func(k manifest.Key) bool { return k.First == run.First && k.End == run.Next })
	if errcode.Is(gone, errcode.Gone) || gone == nil && taken {
		// Lost longer ago than the last look, and the local log has let go of
		// it: the records are in segment files. Or what would be shipped has the
		// key of a damaged object, because a file of the log ends with it.
		// Shipping goes on; archived answers wait for a state object behind the
		// hole.
		s.audits.hole = from
		s.note(&s.mu.auditErr, "keeping the shipped log whole", err)
		return nil
	}
	s.next, s.audits.seen = min(s.next, from), min(s.audits.seen, from)
	s.retract(from)
	return errcode.New(errcode.Transient, "%w; it is shipped again", err)
}

// retract takes the shipped mark back to below from.
func (s *Shipper) retract(from uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.shipped = min(s.mu.shipped, from-1)
	if s.mu.behind.IsZero() {
		s.mu.behind = s.opts.Now()
	}
}

// stateStands notes a state object that was put and read back: what is below
// its replay position is needed no more.
func (s *Shipper) stateStands(replayFrom uint64) {
	a := &s.audits
	if a.sure = max(a.sure, replayFrom); a.hole == 0 || replayFrom <= a.hole {
		return
	}
	a.hole = 0
	s.note(&s.mu.auditErr, "keeping the shipped log whole", nil)
}

// Create creates an object that much hangs on (a claim, a fence, metadata, a
// state) and reads it back: these are rare, and a store that says it took one
// and has nothing must not be believed. Exists is returned as it is.
func Create(ctx context.Context, store objstore.Store, key string, data []byte) error {
	if err := put(ctx, store, key, data); err != nil {
		return err
	}
	return confirmKept(ctx, store, key, data)
}

// confirmKept reads back what was put.
func confirmKept(ctx context.Context, store objstore.Store, key string, data []byte) error {
	got, _, err := objstore.ReadAll(ctx, store, key, int64(len(data)))
	switch {
	case errcode.Is(err, errcode.NotFound):
		return errcode.New(errcode.Transient, "the store took %s and does not have it", key)
	case errcode.Is(err, errcode.TooLarge), err == nil && !bytes.Equal(got, data):
		return errcode.New(errcode.Corrupt, "object %s has other bytes than were put: the store damaged it", key)
	}
	return err
}

// readable checks an object that was there already.
func readable(ctx context.Context, store objstore.Store, key string, decode func([]byte) error) error {
	stored, _, err := objstore.ReadAll(ctx, store, key, maxState)
	if errcode.Is(err, errcode.NotFound) {
		return errcode.New(errcode.Transient, "the store says that %s exists and does not return it", key)
	}
	if err != nil {
		return err
	}
	return errcode.Wrap(errcode.Corrupt, decode(stored), "read %s", key)
}
