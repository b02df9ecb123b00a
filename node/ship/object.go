package ship

import (
	"bytes"
	"context"
	"crypto/sha256"
	"hash/crc32"
	"math/rand/v2"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// shipOnce puts one object of what is durable, checks the fence and moves the
// mark. more says that there may be more to ship at once.
func (s *Shipper) shipOnce(ctx context.Context) (more bool, err error) {
	s.look()
	if _, err := s.gather(); err != nil {
		return false, err
	}
	run := s.pending.run
	if run.Next <= s.next {
		s.pending = pending{} // a log at rest holds no memory for objects
		if err := s.audit(ctx, s.next, false); err != nil {
			return false, err
		}
		return false, s.checkFenceNow(ctx)
	}
	behind := s.worthIt()
	data := s.pending.object()
	key := manifest.WALKey(s.opts.Node, s.opts.Incarnation, run.First, run.Next)
	start := s.opts.Now()
	// Told before it is known to be there: a try that fails, or one of the looks
	// below, is followed by an object with more frames and another key, and
	// nobody else learns that this one may stand.
	s.stands(manifest.Key{Kind: manifest.KindWAL, Node: s.opts.Node, Incarnation: s.opts.Incarnation, First: run.First, End: run.Next}, len(data), 0)
	if err := s.putWAL(ctx, key, run.First, run.Next, data); err != nil {
		return false, err
	}
	// Before the fence check: what an answer rests on is there when the check
	// begins.
	if err := s.audit(ctx, run.Next, false); err != nil {
		return false, err
	}
	exported := s.exported()
	if err := s.checkFence(ctx); err != nil {
		return false, err
	}
	s.next = run.Next
	s.stateBytes += int64(len(data))
	s.confirm(run.Next-1, exported)
	s.metrics.objects.Inc()
	s.metrics.bytes.Add(float64(len(data)))
	s.metrics.seconds.Observe(s.opts.Now().Sub(start).Seconds())
	return behind && run.Next <= s.opts.Log.Durable(), nil
}

// putWAL puts an object of the log, or finds it there.
func (s *Shipper) putWAL(ctx context.Context, key string, first, next uint64, data []byte) error {
	a := &s.audits
	a.begins(first)
	o := shipped{key: key, first: first, next: next, size: int64(len(data)), crc: crc32.Checksum(data, castagnoli)}
	// One sum, which is also what it is recognised by when it is read back: each
	// one more reads everything that the node takes once more.
	err := s.opts.Store.Put(ctx, key, bytes.NewReader(data), o.size, objstore.PutOptions{CreateOnly: true, CRC32C: &o.crc})
	switch {
	case err == nil:
		a.last, a.bytes = o, a.bytes+o.size
	case errcode.Is(err, errcode.Exists):
		// An earlier answer was lost, or another copy of this directory runs.
		if err := s.compare(ctx, key); err != nil {
			return err
		}
		a.last, a.seen = o, next // it was read
	default:
		return err
	}
	return nil
}

// checkFenceNow is the check of an idle node, and of a waiter that needs one
// after an export.
func (s *Shipper) checkFenceNow(ctx context.Context) error {
	exported := s.exported()
	if err := s.checkFence(ctx); err != nil {
		return err
	}
	if err := s.checkLaterCluster(ctx); err != nil {
		return err
	}
	s.confirm(s.next-1, exported)
	return nil
}

// exported returns the newest export that stands now. A fence check confirms
// only what stood before it began: who takes over creates the fence first and
// looks for exports then.
func (s *Shipper) exported() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.exported
}

// confirm moves the shipped mark after a fence check that began when exports up
// to the given index stood.
func (s *Shipper) confirm(lsn, exported uint64) {
	durable := s.opts.Log.Durable()
	s.mu.Lock()
	s.mu.shipped = max(s.mu.shipped, lsn)
	s.mu.confirmed = max(s.mu.confirmed, exported)
	s.mu.sure = max(s.mu.sure, s.audits.sure-1)
	switch {
	case durable <= lsn:
		s.mu.behind = time.Time{}
	case lsn >= s.mu.seen.lsn:
		s.mu.behind = s.mu.seen.at
	}
	s.broadcastLocked()
	s.mu.Unlock()
	// What was not looked at again may have to be shipped again.
	if seen := s.audits.seen; seen > s.held {
		s.held = seen
		s.opts.Log.Hold(holdName, seen)
		// A restart begins at the mark: it must not forget that there is a hole.
		if s.opts.OnShipped != nil && s.audits.hole == 0 {
			s.opts.OnShipped(seen - 1)
		}
	}
}

func (s *Shipper) stands(key manifest.Key, size int, replayFrom uint64) {
	if s.opts.OnObject != nil {
		s.opts.OnObject(Object{key, int64(size), replayFrom})
	}
}

// put creates a small object, with all sums that a store may compare.
func put(ctx context.Context, store objstore.Store, key string, data []byte) error {
	sum, crc := sha256.Sum256(data), crc32.Checksum(data, castagnoli)
	return store.Put(ctx, key, bytes.NewReader(data), int64(len(data)), objstore.PutOptions{CreateOnly: true, SHA256: &sum, CRC32C: &crc})
}

func jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}

// stateIfDue writes a state object when enough was shipped since the last one,
// or force says so.
func (s *Shipper) stateIfDue(ctx context.Context, force bool) error {
	if s.unsure != nil {
		// Whether it stands decides what may be deleted of the log, so that is
		// found out before there is another one.
		if err := s.putState(ctx, s.unsure); err != nil {
			return err
		}
	}
	if s.opts.States == nil || s.next-1 <= s.stateLSN {
		return nil
	}
	interval := s.opts.StateInterval
	if s.audits.hole > 0 {
		interval = min(interval, idleCheck)
	}
	if !force && s.stateBytes < s.opts.StateBytes && s.opts.Now().Sub(s.stateAt) < interval {
		return nil
	}
	st, err := s.opts.States.Capture()
	if err != nil {
		return err
	}
	// Frames that an earlier state did not need are not needed by a later one:
	// the archive may have let go of them. After a restart the capture may not
	// know how far back a file reaches, and says less.
	st.ReplayFrom = max(st.ReplayFrom, s.floor)
	st.Node, st.Incarnation, st.TimeMS = s.opts.Node, s.opts.Incarnation, s.opts.Now().UnixMilli()
	// What the state knows has to be in the archive before the state is: a
	// position must never be ahead of the records (I16).
	for s.next <= st.LSN {
		more, err := s.shipOnce(ctx)
		if err != nil {
			return err
		}
		if !more && s.next <= st.LSN {
			if !waitDurable(ctx, s.opts.Log, st.LSN) {
				return ctx.Err() // the disk is slow or takes nothing: captured anew, behind a look for the fence
			}
		}
	}
	return s.putState(ctx, st)
}

// putState puts a state object whose frames were shipped. While it is open
// whether it stands, the shipper keeps it: the same one is put again.
func (s *Shipper) putState(ctx context.Context, st *archive.State) error {
	data, err := archive.EncodeState(st)
	if err != nil {
		return err
	}
	key := manifest.Key{Kind: manifest.KindState, Node: s.opts.Node, Incarnation: s.opts.Incarnation, First: st.LSN}
	s.unsure = st
	err = Create(ctx, s.opts.Store, key.String(), data)
	if errcode.Is(err, errcode.Exists) {
		// An earlier answer was lost. What stands there may have been captured
		// earlier, by a process before this one, and need more of the log.
		st, err = ReadState(ctx, s.opts.Store, key)
	}
	if errcode.Is(err, errcode.Corrupt) || errcode.Is(err, errcode.UnsupportedVersion) {
		s.unsure = nil // no try makes it another one, and a later state takes its place
	}
	if err != nil {
		return err
	}
	s.unsure = nil
	s.stateStands(st.ReplayFrom)
	s.stateBytes, s.stateAt, s.stateLSN = 0, s.opts.Now(), st.LSN
	s.floor = max(s.floor, st.ReplayFrom)
	s.stands(key, len(data), st.ReplayFrom)
	s.metrics.states.Inc()
	return nil
}

// waitDurable waits for the log's disk, but no longer than a node may be without
// a look for its fence.
func waitDurable(ctx context.Context, log Log, lsn uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, idleCheck)
	defer cancel()
	for {
		changed := log.DurableChanged()
		if log.Durable() >= lsn {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		}
	}
}

// runExport keeps the newest metadata in the archive, from when the archive is
// known to be this cluster's until the incarnation is fenced.
func (s *Shipper) runExport(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.registered:
	}
	backoff := time.Duration(0)
	for s.Fenced() == nil {
		changed := s.opts.Metadata.Changed()
		err := s.exportOnce(ctx)
		if ctx.Err() != nil {
			return nil
		}
		s.note(&s.mu.exportErr, "exporting the metadata", err)
		if err != nil {
			backoff = min(max(2*backoff, firstBackoff), maxBackoff)
			if !sleep(ctx, backoff/2+jitter(backoff/2)) {
				return nil
			}
			continue
		}
		backoff = 0
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-s.exportKick:
		}
	}
	<-ctx.Done()
	return nil
}

// exportOnce puts the metadata as it is now, unless the archive has it.
func (s *Shipper) exportOnce(ctx context.Context) error {
	index, data, err := s.opts.Metadata.Export()
	if err != nil {
		return err
	}
	s.mu.Lock()
	known := s.mu.exported >= index && index > 0
	s.mu.Unlock()
	if known {
		return nil
	}
	packed, err := archive.Pack(data)
	if err != nil {
		return err
	}
	key := manifest.MetaKey(s.opts.ClusterGeneration, index)
	err = Create(ctx, s.opts.Store, key, packed)
	if errcode.Is(err, errcode.Exists) {
		// An index names one state, so what stands there is this one, if it can
		// be read.
		err = readable(ctx, s.opts.Store, key, func(stored []byte) error {
			_, err := archive.Unpack(stored)
			return err
		})
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.mu.exported = max(s.mu.exported, index)
	s.broadcastLocked()
	s.mu.Unlock()
	s.stands(manifest.Key{Kind: manifest.KindMeta, Cluster: s.opts.ClusterGeneration, Index: index}, len(packed), 0)
	s.metrics.exports.Inc()
	return nil
}
