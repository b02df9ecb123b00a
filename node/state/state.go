package state

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"log/slog"
	"sort"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/steady"
	"github.com/tidemark-mq/tidemark/segment"
)

// formatVersion is the layout of keys and values; another one is refused.
const formatVersion = 1

// Partition is the durable state of one partition, apart from its sealed
// segments and its groups.
type Partition struct {
	Generation  uint32     `json:"generation"`
	PreviousEnd int64      `json:"previous_end"`   // end of the offsets of earlier generations
	Start       int64      `json:"start"`          // first offset of this generation
	Oldest      int64      `json:"oldest"`         // start of the log: what is below is trimmed
	Flushed     int64      `json:"flushed"`        // exclusive end of what segment files hold and was synced
	Gaps        [][2]int64 `json:"gaps,omitempty"` // half-open ranges without records, ascending
	GroupLSN    uint64     `json:"group_lsn"`      // group entries up to here are in the group states
	Active      *Active    `json:"active,omitempty"`
	ChainSeq    uint64     `json:"chain_seq"`    // where to begin looking for the end of the archive's chain
	ArchivedEnd int64      `json:"archived_end"` // end of the chain as last seen
	Carried
	// Records that were trimmed before the chain held them: until its end
	// reaches SkippedEnd, a restore needs the log from SkippedLSN on. 0 = none.
	SkippedLSN uint64 `json:"skipped_lsn,omitempty"`
	SkippedEnd int64  `json:"skipped_end,omitempty"`
	// Records [0] to [1] have append times that cannot be right: age counts from
	// [2] (ms). The last may be open, with zeros for both: from [0] on nobody has
	// found out yet.
	Doubts [][3]int64 `json:"doubts,omitempty"`
}

// Carried says that the log holds a partition's records from offset From up to
// End a second time, in carries at LSN and above. What it has of them below LSN
// may begin in the middle, because frames before that are recycled: a replay
// passes over what does not continue the records. The zero value says that
// nothing was carried.
type Carried struct {
	LSN  uint64 `json:"carried_lsn,omitempty"`
	From int64  `json:"carried_from,omitempty"`
	End  int64  `json:"carried_end,omitempty"`
}

// Again says whether records from base up to next, which the log has at lsn,
// stand in the carry too.
func (c Carried) Again(lsn uint64, base, next int64) bool {
	return lsn < c.LSN && base >= c.From && next <= c.End
}

// Active describes the segment file that is being written; what it says of
// append times and LSNs cannot be read from the file's batches.
type Active struct {
	Base      int64  `json:"base"`
	MinAppend int64  `json:"min_append"`
	MaxAppend int64  `json:"max_append"`
	FirstLSN  uint64 `json:"first_lsn"` // of the first commit in the file
}

// Sealed is one sealed segment on local disk.
type Sealed struct {
	segment.Info
	FirstLSN uint64 `json:"first_lsn"` // of the first commit in it
	// Confirmed: the chain names an object with exactly these bytes, so this
	// copy may go (I6). That the chain covers the offsets is not enough.
	Confirmed bool `json:"confirmed"`
}

// Marks are the node's own numbers.
type Marks struct {
	Incarnation uint64 `json:"incarnation"`
	Durable     uint64 `json:"durable"` // an LSN known to be fsynced
	Needed      uint64 `json:"needed"`  // the lowest LSN that a replay needs; older frames may be recycled
	Shipped     uint64 `json:"shipped"` // the archive's shipped WAL holds every frame below or at this LSN
}

// Entry is everything that is known of one partition.
type Entry struct {
	ID broker.PartitionID
	Partition
	Sealed []Sealed // ascending base
	Groups [][]byte // group states
}

// DB is the local state of one data directory. Its methods may be called
// concurrently.
type DB struct {
	db    *pebble.DB
	fs    *steady.FS
	guard *guard
}

// Open opens or creates the database in dir. A directory that another process
// has open is refused by Pebble's lock.
func Open(fs vfs.FS, dir string, logger *slog.Logger) (*DB, error) {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	g := newGuard()
	s := &DB{guard: g, fs: steady.New(fs, "the local state in "+dir, logger, func(err error) { g.stop(err.Error()) })}
	err := s.guard.run(func() (err error) {
		s.db, err = pebble.Open(dir, &pebble.Options{
			FS:           s.fs,
			Logger:       pebbleLogger{logger, s.guard},
			MemTableSize: 4 << 20,
		})
		if err != nil {
			return errcode.Wrap(errcode.Storage, err, "open local state %s", dir)
		}
		if err := s.checkVersion(dir); err != nil {
			return errors.Join(err, s.db.Close())
		}
		return nil
	})
	if err != nil {
		if errcode.Is(err, errcode.Poisoned) {
			return nil, errcode.New(errcode.Storage, "the local state %s cannot be opened, nothing in it was changed: free space or repair the disk, and start again: %w", dir, err)
		}
		return nil, err
	}
	return s, nil
}

func (s *DB) checkVersion(dir string) error {
	v, closer, err := s.db.Get([]byte("V"))
	if errors.Is(err, pebble.ErrNotFound) {
		return s.db.Set([]byte("V"), []byte{formatVersion}, pebble.Sync)
	}
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "read local state %s", dir)
	}
	defer func() { _ = closer.Close() }()
	if len(v) != 1 || v[0] != formatVersion {
		return errcode.New(errcode.UnsupportedVersion, "local state %s has format %x, this build knows %d: run the build that wrote it, or restore from the archive", dir, v, formatVersion)
	}
	return nil
}

// Patient makes writes that the disk does not take wait from now on, until it
// does. Before, they fail for good: a start says what is wrong and ends.
func (s *DB) Patient() { s.fs.Patient() }

// Err returns nil, or why the local state is not written now: errcode.Storage
// while a write waits for the disk, which ends by itself, or errcode.Poisoned
// after a failed sync, which ends with a restart. It does not block.
func (s *DB) Err() error {
	if err := s.guard.err(); err != nil {
		return err
	}
	return s.fs.Err()
}

// Waits returns how many writes had to wait for the disk so far.
func (s *DB) Waits() uint64 { return s.fs.Waits() }

// Hasten says that the end is near: commits that wait for the disk fail, and
// those that come do not begin to wait. What is on disk stays whole.
func (s *DB) Hasten() { s.fs.Hasten() }

// Close closes the database. One that failed, or cannot be written, is left as a
// crash would leave it, with an error.
func (s *DB) Close() error {
	s.fs.Hasten()
	return s.guard.run(s.db.Close)
}

// Marks returns the node's marks; a fresh database has zeros.
func (s *DB) Marks() (Marks, error) {
	var out Marks
	err := s.guard.run(func() (err error) {
		out, err = s.marks()
		return err
	})
	if err != nil {
		return Marks{}, err
	}
	return out, nil
}

func (s *DB) marks() (Marks, error) {
	var m Marks
	v, closer, err := s.db.Get([]byte("N"))
	if errors.Is(err, pebble.ErrNotFound) {
		return m, nil
	}
	if err != nil {
		return m, errcode.Wrap(errcode.Storage, err, "read node marks")
	}
	defer func() { _ = closer.Close() }()
	return m, decode("node marks", v, &m)
}

// Load returns every partition, ordered by id.
func (s *DB) Load() ([]Entry, error) {
	var out []Entry
	err := s.guard.run(func() (err error) {
		out, err = s.load()
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (s *DB) load() ([]Entry, error) {
	entries := map[broker.PartitionID]*Entry{}
	entry := func(id broker.PartitionID) *Entry {
		e := entries[id]
		if e == nil {
			e = &Entry{ID: id}
			entries[id] = e
		}
		return e
	}
	known := map[broker.PartitionID]bool{}
	err := s.scan(func(kind byte, id broker.PartitionID, _, value []byte) error {
		switch e := entry(id); kind {
		case 'P':
			known[id] = true
			return decode("partition "+id.String(), value, &e.Partition)
		case 'S':
			var seg Sealed
			if err := decode("segment of "+id.String(), value, &seg); err != nil {
				return err
			}
			e.Sealed = append(e.Sealed, seg)
		case 'G':
			e.Groups = append(e.Groups, append([]byte(nil), value...))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	out := make([]Entry, 0, len(entries))
	for id, e := range entries {
		if !known[id] {
			return nil, errcode.New(errcode.Corrupt, "local state has segments or groups of partition %s without its entry: restore from the archive", id)
		}
		out = append(out, *e)
	}
	sort.Slice(out, func(i, j int) bool { return less(out[i].ID, out[j].ID) })
	return out, nil
}

func less(a, b broker.PartitionID) bool {
	return a.Topic < b.Topic || a.Topic == b.Topic && a.Partition < b.Partition
}

func (s *DB) scan(fn func(kind byte, id broker.PartitionID, rest, value []byte) error) error {
	for _, kind := range []byte{'G', 'P', 'S'} {
		it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{kind}, UpperBound: []byte{kind + 1}})
		if err != nil {
			return errcode.Wrap(errcode.Storage, err, "read local state")
		}
		for it.First(); it.Valid() && err == nil; it.Next() {
			k := it.Key()
			if len(k) < keySize {
				err = errcode.New(errcode.Corrupt, "local state has a key of %d bytes", len(k))
				break
			}
			id := broker.PartitionID{Topic: broker.TopicID(binary.BigEndian.Uint64(k[1:])), Partition: binary.BigEndian.Uint32(k[9:])}
			err = fn(kind, id, k[keySize:], it.Value())
		}
		if err = errors.Join(err, it.Error(), it.Close()); err != nil {
			return err
		}
	}
	return nil
}

const keySize = 1 + 8 + 4

func key(kind byte, id broker.PartitionID) []byte {
	k := make([]byte, keySize, keySize+16)
	k[0] = kind
	binary.BigEndian.PutUint64(k[1:], uint64(id.Topic))
	binary.BigEndian.PutUint32(k[9:], id.Partition)
	return k
}

func segmentKey(id broker.PartitionID, base int64) []byte {
	return binary.BigEndian.AppendUint64(key('S', id), uint64(base))
}

func decode(what string, b []byte, into any) error {
	if err := json.Unmarshal(b, into); err != nil {
		return errcode.New(errcode.Corrupt, "local state, %s: %w", what, err)
	}
	return nil
}

// Batch collects changes that become durable together.
type Batch struct {
	b     *pebble.Batch
	guard *guard
	err   error
}

// NewBatch returns an empty batch.
func (s *DB) NewBatch() *Batch { return &Batch{b: s.db.NewBatch(), guard: s.guard} }

// PutPartition sets a partition's entry.
func (b *Batch) PutPartition(id broker.PartitionID, p Partition) { b.put(key('P', id), p) }

// PutSegment sets a sealed segment's entry.
func (b *Batch) PutSegment(id broker.PartitionID, s Sealed) { b.put(segmentKey(id, s.Base), s) }

// DeleteSegment removes a sealed segment's entry; the caller removes the file
// after Commit, so that no entry ever names a file that is gone.
func (b *Batch) DeleteSegment(id broker.PartitionID, base int64) {
	b.keep(b.b.Delete(segmentKey(id, base), nil))
}

// PutGroup sets a group's state.
func (b *Batch) PutGroup(id broker.PartitionID, group string, state []byte) {
	b.keep(b.b.Set(append(key('G', id), group...), state, nil))
}

// DeletePartition removes everything of a partition.
func (b *Batch) DeletePartition(id broker.PartitionID) {
	for _, kind := range []byte{'G', 'P', 'S'} {
		from := key(kind, id)
		b.keep(b.b.DeleteRange(from, successor(from), nil))
	}
}

// successor is the smallest key above every key with the prefix k.
func successor(k []byte) []byte {
	out := append([]byte(nil), k...)
	for i := len(out) - 1; i >= 0; i-- {
		if out[i]++; out[i] != 0 {
			break
		}
	}
	return out
}

// PutMarks sets the node's marks.
func (b *Batch) PutMarks(m Marks) { b.put([]byte("N"), m) }

func (b *Batch) put(k []byte, v any) {
	data, err := json.Marshal(v)
	b.keep(err)
	b.keep(b.b.Set(k, data, nil))
}

func (b *Batch) keep(err error) {
	if b.err == nil {
		b.err = err
	}
}

// Commit writes the batch and returns when it is synced. The batch is spent.
// After Patient, on a disk that does not take it now, Commit waits until it does
// or Hasten: a commit that was reported as failed and came later would put back
// what was changed meanwhile. errcode.Poisoned: it may be there after a restart.
func (b *Batch) Commit() error {
	if b.err != nil {
		return errors.Join(errcode.Wrap(errcode.Internal, b.err, "encode local state"), b.b.Close())
	}
	return errcode.Wrap(errcode.Storage, b.guard.run(func() error { return b.b.Commit(pebble.Sync) }), "write local state")
}
