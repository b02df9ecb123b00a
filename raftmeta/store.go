package raftmeta

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/steady"
)

// store is Raft's LogStore and StableStore on one Pebble.
//
//	'l' | index u64          version u8 | type u8 | term u64 | appended unix ns i64 | data length u32 | data | extensions
//	's' | key                value as Raft gave it; numbers are u64
//	'm' | key                marks of this package: what the directory is
//
// Every write is one batch that is fsynced before it returns: Raft answers a
// proposal on the strength of it (I1). A write that the disk does not take waits
// for it; Raft stands still meanwhile. Writes come from Raft's main goroutine
// and, prefix deletion only, from its snapshot goroutine; reads from any.
type store struct {
	db     *pebble.DB
	lock   *pebble.Lock
	fatal  *fatal
	disk   *steady.FS // what Pebble writes through: it waits for a disk that takes nothing
	broken *broken

	// Raft's gauge of the oldest entry reads every ten seconds on a goroutine that
	// its Shutdown does not wait for, and a closed Pebble panics.
	reading sync.RWMutex
	closed  bool // under reading

	// The log is contiguous from first to last; 0 and 0 when it is empty. They
	// move after the batch that moves them is durable.
	first, last atomic.Uint64
}

const (
	logPrefix    = 'l'
	stablePrefix = 's'
	markPrefix   = 'm'

	logValueVersion = 1
	logValueHeader  = 1 + 1 + 8 + 8 + 4
	maxLogValue     = maxAdoptBytes + (1 << 20)
)

// openStore opens or creates the store in dir. It has to run under fatal.guard.
func openStore(fs vfs.FS, dir string, mustExist bool, f *fatal, logger *slog.Logger) (*store, error) {
	lock, err := pebble.LockDirectory(dir, fs)
	if err != nil {
		return nil, lockError(dir, err)
	}
	opened := false
	defer func() {
		// Not asked of the error: a fatal error of Pebble ends this goroutine
		// without one. The lock of a directory that was not opened guards nothing.
		if !opened {
			_ = lock.Close()
		}
	}()
	existed, err := checkPebble(fs, dir)
	if err != nil {
		return nil, err
	}
	log := pebbleLogger{logger: logger.With("component", "pebble"), fatal: f, broken: newBroken()}
	disk := steady.New(fs, "the metadata log in "+dir, logger, func(err error) {
		log.fail(err)
		select {} // inside Pebble, with its locks: it must not even be unwound
	})
	options := func() *pebble.Options {
		return &pebble.Options{
			FS:                 disk,
			Lock:               lock,
			FormatMajorVersion: pebble.FormatWALSyncChunks, // its log says what was synced: see checkPebble
			ErrorIfNotExists:   mustExist,
			CacheSize:          4 << 20,   // entries are read once, at a start
			MemTableSize:       512 << 10, // bounds the write-ahead logs that a small state keeps on disk
			Logger:             log,
			EventListener:      log.listener(),
		}
	}
	db, err := pebble.Open(dir, options())
	if err == nil && !existed {
		// The log that a creation begins with is of the oldest format, which
		// does not say what was synced. That of the second opening does.
		if err = db.Close(); err == nil {
			db, err = pebble.Open(dir, options())
		}
	}
	switch {
	case errors.Is(err, pebble.ErrDBDoesNotExist):
		return nil, errcode.New(errcode.Corrupt, "the metadata log %s is missing, though there are snapshots of it; put it back, or restore the cluster from its archive into an empty directory: %w", dir, err)
	case err != nil && pebble.IsCorruptionError(err):
		return nil, errcode.New(errcode.Corrupt, "the metadata log %s is damaged; restore it from a copy, or the cluster from its archive into an empty directory: %w", dir, err)
	case err != nil:
		return nil, errcode.Wrap(errcode.Storage, err, "open the metadata log in %s", dir)
	}
	s := &store{db: db, lock: lock, fatal: f, disk: disk, broken: log.broken}
	if err := s.findBounds(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	opened = true
	return s, nil
}

// lockError turns the lock's errors into one that says who holds it.
func lockError(dir string, err error) error {
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) || err.Error() == "lock held by current process" {
		return errcode.New(errcode.Conflict, "metadata directory %s is in use by another tidemark process; stop it, or choose another data directory: %w", dir, err)
	}
	return errcode.Wrap(errcode.Storage, err, "lock the metadata directory %s", dir)
}

func (s *store) findBounds() (err error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{logPrefix}, UpperBound: []byte{logPrefix + 1}})
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "read the metadata log")
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	if it.First() {
		s.first.Store(logIndex(it.Key()))
	}
	if it.Last() {
		s.last.Store(logIndex(it.Key()))
	}
	return errcode.Wrap(errcode.Storage, it.Error(), "read the metadata log")
}

// close releases Pebble. Once it is broken it cannot be closed in order, and
// whoever is parked inside may hold its locks: it is left alone, with its
// directory lock, until the process ends.
func (s *store) close() error {
	s.disk.Hasten()
	if s.broken.is() {
		return nil
	}
	// On a goroutine of its own: it may break now, and then does not return.
	done := make(chan error, 1)
	go func() {
		s.reading.Lock()
		s.closed = true
		s.reading.Unlock()
		done <- errors.Join(s.db.Close(), s.lock.Close())
	}()
	select {
	case err := <-done:
		return err
	case <-s.broken.ch:
		return nil
	}
}

// broken says that Pebble called its fatal hook, or that the disk failed when
// nobody could wait for it.
type broken struct {
	once sync.Once
	ch   chan struct{} // closed by the first mark
}

func newBroken() *broken { return &broken{ch: make(chan struct{})} }

func (b *broken) mark() { b.once.Do(func() { close(b.ch) }) }

func (b *broken) is() bool {
	select {
	case <-b.ch:
		return true
	default:
		return false
	}
}

// FirstIndex implements raft.LogStore.
func (s *store) FirstIndex() (uint64, error) { return s.first.Load(), nil }

// LastIndex implements raft.LogStore.
func (s *store) LastIndex() (uint64, error) { return s.last.Load(), nil }

// GetLog implements raft.LogStore. Nothing is found in a closed store.
func (s *store) GetLog(index uint64, out *raft.Log) error {
	err := s.read(index, out)
	if errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	if err = s.check(err, "read entry %d of the metadata log", index); err != nil {
		s.fatal.park() // Raft panics when an entry cannot be read
	}
	return nil
}

func (s *store) read(index uint64, out *raft.Log) error {
	s.reading.RLock()
	defer s.reading.RUnlock()
	if s.closed {
		return raft.ErrLogNotFound
	}
	value, closer, err := s.db.Get(logKey(index))
	if errors.Is(err, pebble.ErrNotFound) {
		return raft.ErrLogNotFound
	}
	if err != nil {
		return err
	}
	return errors.Join(decodeLog(index, value, out), closer.Close())
}

// StoreLog implements raft.LogStore.
func (s *store) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore: all entries or none, durable on return.
func (s *store) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return nil
	}
	b := s.db.NewBatch()
	for _, l := range logs {
		size := logValueHeader + len(l.Data) + len(l.Extensions)
		if size > maxLogValue {
			return errors.Join(errcode.New(errcode.TooLarge, "entry %d of the metadata log has %d bytes; at most %d are stored", l.Index, size, maxLogValue), b.Close())
		}
		op := b.SetDeferred(1+8, size)
		copy(op.Key, logKey(l.Index))
		encodeLog(op.Value, l)
		if err := op.Finish(); err != nil {
			return errors.Join(s.check(err, "stage entry %d of the metadata log", l.Index), b.Close())
		}
	}
	if err := s.commit(b, "store entries %d to %d of the metadata log", logs[0].Index, logs[len(logs)-1].Index); err != nil {
		return err
	}
	if s.first.Load() == 0 {
		s.first.Store(logs[0].Index)
	}
	s.last.Store(logs[len(logs)-1].Index)
	return nil
}

// DeleteRange implements raft.LogStore; both ends are inclusive. A deleted
// suffix must not come back after a crash, so this is synced as well.
func (s *store) DeleteRange(low, high uint64) error {
	first, last := s.first.Load(), s.last.Load()
	if first == 0 || high < first || low > last || low > high {
		return nil
	}
	if low > first && high < last {
		return errcode.New(errcode.Internal, "deleting entries %d to %d would leave a hole in the metadata log of %d to %d", low, high, first, last)
	}
	b := s.db.NewBatch()
	if err := b.DeleteRange(logKey(low), logKey(high+1), nil); err != nil {
		return errors.Join(s.check(err, "stage the deletion of entries %d to %d", low, high), b.Close())
	}
	if err := s.commit(b, "delete entries %d to %d of the metadata log", low, high); err != nil {
		return err
	}
	switch {
	case low <= first && high >= last:
		s.first.Store(0)
		s.last.Store(0)
	case low <= first:
		s.first.Store(high + 1)
	default:
		s.last.Store(low - 1)
	}
	return nil
}

// Set implements raft.StableStore. Raft panics when term or vote cannot be
// saved, so a failure parks here instead of returning.
func (s *store) Set(key, value []byte) error {
	b := s.db.NewBatch()
	err := b.Set(prefixed(stablePrefix, key), value, nil)
	if err == nil {
		err = s.commit(b, "save %s", key)
	}
	if err != nil {
		s.fatal.trip(err)
		s.fatal.park()
	}
	return nil
}

// Get implements raft.StableStore; a missing key is nil.
func (s *store) Get(key []byte) ([]byte, error) { return s.get(prefixed(stablePrefix, key)) }

// SetUint64 implements raft.StableStore.
func (s *store) SetUint64(key []byte, v uint64) error {
	return s.Set(key, binary.BigEndian.AppendUint64(nil, v))
}

// GetUint64 implements raft.StableStore; a missing key is 0.
func (s *store) GetUint64(key []byte) (uint64, error) {
	value, err := s.Get(key)
	switch {
	case err != nil || value == nil:
		return 0, err
	case len(value) != 8:
		return 0, errcode.New(errcode.Corrupt, "%s has %d bytes in the metadata store instead of 8", key, len(value))
	}
	return binary.BigEndian.Uint64(value), nil
}

// mark returns a mark of this package; nil when it is not set.
func (s *store) mark(key string) ([]byte, error) { return s.get(prefixed(markPrefix, []byte(key))) }

func (s *store) setMark(key string, value []byte) error {
	b := s.db.NewBatch()
	if err := b.Set(prefixed(markPrefix, []byte(key)), value, nil); err != nil {
		return errors.Join(s.check(err, "stage mark %s", key), b.Close())
	}
	return s.commit(b, "set mark %s", key)
}

// forgetStable removes term and vote of a creation that was not finished.
func (s *store) forgetStable() error {
	b := s.db.NewBatch()
	if err := b.DeleteRange([]byte{stablePrefix}, []byte{stablePrefix + 1}, nil); err != nil {
		return errors.Join(s.check(err, "stage the removal of an unfinished creation"), b.Close())
	}
	return s.commit(b, "remove an unfinished creation")
}

func (s *store) get(key []byte) ([]byte, error) {
	value, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, errcode.Wrap(errcode.Storage, err, "read %q from the metadata store", key)
	}
	out := append([]byte{}, value...)
	return out, errcode.Wrap(errcode.Storage, closer.Close(), "read %q from the metadata store", key)
}

// commit fsyncs b. A failed commit is never repeated (I5): nobody knows which
// part of it is on disk.
func (s *store) commit(b *pebble.Batch, format string, args ...any) error {
	if err := s.fatal.err(); err != nil {
		return errors.Join(err, b.Close())
	}
	// On a goroutine of its own: it does not return from a Pebble that breaks.
	done := make(chan error, 1)
	go func() { done <- errors.Join(b.Commit(pebble.Sync), b.Close()) }()
	select {
	case err := <-done:
		return s.check(err, format, args...)
	case <-s.broken.ch:
		<-s.fatal.tripped // which follows at once
		return errcode.Wrap(errcode.Storage, s.fatal.err(), "%s", fmt.Sprintf(format, args...))
	}
}

// check trips the plane on any error of Pebble.
func (s *store) check(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	err = errcode.Wrap(errcode.Storage, err, "%s", fmt.Sprintf(format, args...))
	s.fatal.trip(err)
	return err
}

func prefixed(prefix byte, key []byte) []byte { return append([]byte{prefix}, key...) }

func logKey(index uint64) []byte { return binary.BigEndian.AppendUint64([]byte{logPrefix}, index) }

func logIndex(key []byte) uint64 {
	if len(key) != 1+8 {
		return 0
	}
	return binary.BigEndian.Uint64(key[1:])
}

// encodeLog fills dst, which has exactly the length of the value.
func encodeLog(dst []byte, l *raft.Log) {
	dst[0], dst[1] = logValueVersion, byte(l.Type)
	binary.BigEndian.PutUint64(dst[2:], l.Term)
	var appended int64
	if !l.AppendedAt.IsZero() {
		appended = l.AppendedAt.UnixNano()
	}
	binary.BigEndian.PutUint64(dst[10:], uint64(appended))
	binary.BigEndian.PutUint32(dst[18:], uint32(len(l.Data)))
	n := copy(dst[logValueHeader:], l.Data)
	copy(dst[logValueHeader+n:], l.Extensions)
}

// decodeLog reads what encodeLog wrote and copies out of v.
func decodeLog(index uint64, v []byte, out *raft.Log) error {
	if len(v) < logValueHeader {
		return errcode.New(errcode.Corrupt, "entry %d of the metadata log has %d bytes; at least %d are written", index, len(v), logValueHeader)
	}
	if v[0] != logValueVersion {
		return errcode.New(errcode.UnsupportedVersion, "entry %d of the metadata log has version %d; this build knows %d", index, v[0], logValueVersion)
	}
	size, body := int64(binary.BigEndian.Uint32(v[18:])), v[logValueHeader:]
	if size > int64(len(body)) {
		return errcode.New(errcode.Corrupt, "entry %d of the metadata log declares %d bytes of data and has %d", index, size, len(body))
	}
	*out = raft.Log{Index: index, Term: binary.BigEndian.Uint64(v[2:]), Type: raft.LogType(v[1])}
	if ns := int64(binary.BigEndian.Uint64(v[10:])); ns != 0 {
		out.AppendedAt = time.Unix(0, ns)
	}
	own := append([]byte(nil), body...)
	if size > 0 {
		out.Data = own[:size:size]
	}
	if int64(len(own)) > size {
		out.Extensions = own[size:]
	}
	return nil
}

// entries returns the number of entries in the log.
func (s *store) entries() uint64 {
	if s.first.Load() == 0 {
		return 0
	}
	return s.last.Load() - s.first.Load() + 1
}
