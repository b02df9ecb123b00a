package repair

import (
	"errors"
	"io"
	iofs "io/fs"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/segment"
)

// track follows one partition through the surviving log, as a replay would.
type track struct {
	id    broker.PartitionID
	state state.Partition // as it was before
	files []localFile     // that hold its records, ascending
	next  int64           // exclusive end of the records so far
	local int64           // the end of what is in the files before the log adds to them
	lastT int64           // highest timestamp so far, ms

	lost    [][2]int64
	records int64  // that only the log has
	lastLSN uint64 // of the last frame with records of it
}

// localFile is one segment file of a partition.
type localFile struct {
	name   string
	base   int64
	listed bool // a sealed one that the local state lists
}

// newTrack looks at the files of a partition. Errors: Corrupt when they are
// not what the local state says, which only a restore repairs.
func newTrack(fs vfs.FS, dir string, e *state.Entry) (*track, error) {
	t := &track{id: e.ID, state: e.Partition, next: e.Flushed}
	for i := range e.Sealed {
		s := &e.Sealed[i]
		t.files = append(t.files, localFile{segment.SealedName(s.Base), s.Base, true})
		t.lastT = max(t.lastT, s.MaxTimestamp)
		if _, err := fs.Stat(fs.PathJoin(dir, segment.SealedName(s.Base))); err != nil && !s.Confirmed && s.Next > max(e.ArchivedEnd, e.Oldest) {
			return nil, errcode.New(errcode.Corrupt, "segment file %s is missing and the archive does not have it: %w", fs.PathJoin(dir, segment.SealedName(s.Base)), err)
		}
	}
	names, err := fs.List(dir)
	if err != nil && !errors.Is(err, iofs.ErrNotExist) {
		return nil, errcode.Wrap(errcode.Storage, err, "list %s", dir)
	}
	slices.Sort(names) // .log before .seg
	for _, name := range names {
		base, sealed, ok := segment.ParseName(name)
		listed := slices.ContainsFunc(t.files, func(f localFile) bool { return f.listed && f.base == base })
		active := e.Active != nil && e.Active.Base == base
		if !ok || listed || base < e.Flushed && !active {
			continue
		}
		if begins := base == t.state.Start && t.next <= t.state.PreviousEnd; !active && base != t.next && !begins {
			return nil, errcode.New(errcode.Corrupt, "segment file %s begins behind the records before it, which end at %d", fs.PathJoin(dir, name), t.next)
		}
		if err := t.read(fs, fs.PathJoin(dir, name), sealed); err != nil {
			return nil, err
		}
		t.files = slices.DeleteFunc(t.files, func(f localFile) bool { return !f.listed && f.base == base })
		t.files = append(t.files, localFile{name, base, false})
	}
	if t.next < e.Flushed || e.Active != nil && !slices.ContainsFunc(t.files, func(f localFile) bool { return f.base == e.Active.Base }) {
		return nil, errcode.New(errcode.Corrupt, "the segment files in %s end at offset %d, everything below %d had been flushed", dir, t.next, e.Flushed)
	}
	if t.state.Start > t.state.PreviousEnd {
		t.next = max(t.next, t.state.Start) // nothing of this generation was written yet
	}
	t.local = t.next
	return t, nil
}

// read takes the batches of a file that is not listed as sealed.
func (t *track) read(fs vfs.FS, path string, sealed bool) error {
	f, err := fs.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "open %s", path)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "stat %s", path)
	}
	end := st.Size()
	if sealed {
		_, footer, err := segment.OpenReader(path, f, end)
		if err != nil {
			return err
		}
		end = footer.DataLength
	}
	for s := segment.NewScanner(path, f, 0, end, nil); ; {
		_, h, err := s.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errcode.Is(err, errcode.Storage) || err != nil && sealed:
			return err
		case err != nil:
			return nil // a torn end: a start cuts it off, and the log has its records
		}
		t.next = max(t.next, h.NextOffset())
		t.lastT = max(t.lastT, h.MaxTimestamp)
	}
}

// sink takes what a track finds; nil functions count alone.
type sink struct {
	batch func(t *track, appendMS int64, data []byte) error
}

// section takes the records of one frame: those that are there already are
// passed over, and offsets that nobody has any more become batches without
// records.
func (t *track) section(lsn uint64, appendMS int64, s frame.Section, to sink) error {
	t.lastLSN = lsn
	for rest := s.Batches; len(rest) > 0; {
		batch, after, err := segment.NextBatch(rest)
		if err != nil {
			return err
		}
		h, err := segment.VerifyBatch(batch)
		if err != nil {
			return err
		}
		rest = after
		if h.BaseOffset > t.next && t.state.Again(lsn, h.BaseOffset, h.NextOffset()) || h.NextOffset() <= t.next || s.Generation < t.state.Generation && h.BaseOffset >= t.state.PreviousEnd {
			continue
		}
		if h.BaseOffset < t.next {
			return errcode.New(errcode.Corrupt, "partition %s: the log has offsets %d to %d in one batch, the files end at %d", t.id, h.BaseOffset, h.LastOffset(), t.next)
		}
		if h.BaseOffset > t.next {
			if err := t.fillUp(h.BaseOffset, h.Generation, appendMS, to); err != nil {
				return err
			}
		}
		if to.batch != nil {
			if err := to.batch(t, appendMS, batch); err != nil {
				return err
			}
		}
		t.next = h.NextOffset()
		t.lastT = max(t.lastT, h.MaxTimestamp)
		t.records += int64(h.Records)
	}
	return nil
}

// fillUp keeps the lost offsets up to next.
func (t *track) fillUp(next int64, generation uint32, appendMS int64, to sink) error {
	t.lost = append(t.lost, [2]int64{t.next, next})
	for t.next < next {
		end := min(next, t.next+math.MaxInt32)
		// A time that is not above those before it leaves searches by time alone.
		b, err := segment.AppendEmpty(nil, t.next, end, generation, t.lastT)
		if err == nil && to.batch != nil {
			err = to.batch(t, appendMS, b)
		}
		if err != nil {
			return err
		}
		t.next = end
	}
	return nil
}
