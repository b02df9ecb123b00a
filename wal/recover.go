package wal

import (
	"errors"
	"io"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// RecoveryInfo says what Open found and did.
type RecoveryInfo struct {
	Files      int    // log files found
	Frames     uint64 // frames replayed, marks included
	Bytes      int64  // bytes of their groups, without padding
	Durable    uint64 // highest LSN proven durable before anything was rewritten
	Rewritten  uint64 // frames above it that were made durable again
	Next       uint64 // LSN of the next frame
	TornFile   string // file whose last group was cut, "" = none was recognized
	TornAt     int64  // position of the cut
	LastMarkMs uint64 // time of the last mark, 0 = none
	Took       time.Duration
}

// recovery is the state of one Open. It only reads until everything at or
// below the proven durable LSN has verified and been replayed.
type recovery struct {
	l      *Log
	replay func(Frame) error
	info   RecoveryInfo
	scan   scanner
	firsts []uint64 // of the log files, ascending
	heads  []fileHeader
	sizes  []int64
	end    uint64 // first LSN that does not verify in the last file
	proven uint64 // D: everything up to it was fsynced
}

// recover opens the directory, replays it and makes it ready for appends.
// docs/formats/wal.md numbers the same steps.
func (l *Log) recover(replay func(Frame) error) (RecoveryInfo, error) {
	begin := time.Now()
	r := &recovery{l: l, replay: replay}
	err := r.run()
	r.info.Took = time.Since(begin)
	return r.info, err
}

func (r *recovery) run() error {
	if err := r.openDir(); err != nil {
		return err
	}
	if err := r.list(); err != nil {
		return err
	}
	if len(r.firsts) == 0 {
		return r.begin()
	}
	for _, step := range []func() error{
		r.readHeaders, r.checkStart, r.surveyLast, r.replayDurable, r.rewriteRest,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// openDir makes the directory if there is none, and what is in it durable. Its
// own name must survive a crash too, so the parent is synced.
func (r *recovery) openDir() error {
	l, fs := r.l, r.l.o.FS
	if err := fs.MkdirAll(l.o.Dir, 0o755); err != nil {
		return errcode.Wrap(errcode.Storage, err, "make wal directory %s", l.o.Dir)
	}
	parent, err := fs.OpenDir(fs.PathDir(l.o.Dir))
	if err == nil {
		err = errors.Join(parent.Sync(), parent.Close())
	}
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "sync the parent of wal directory %s", l.o.Dir)
	}
	if l.dir, err = fs.OpenDir(l.o.Dir); err != nil {
		return errcode.Wrap(errcode.Storage, err, "open wal directory %s", l.o.Dir)
	}
	// The process before may have died between a rename and its sync. A spare
	// that is a log file on disk still must not get new content: after a loss
	// of power it would stand under its old name, and be damage.
	return errcode.Wrap(errcode.Storage, l.dir.Sync(), "sync wal directory %s", l.o.Dir)
}

// list sorts the directory into log files and spares. Spares of a useful size
// are adopted, others removed; what is neither is left alone.
func (r *recovery) list() error {
	names, err := r.l.o.FS.List(r.l.o.Dir)
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "list wal directory %s", r.l.o.Dir)
	}
	slices.Sort(names)
	for _, name := range names {
		if first, ok := parseFileName(name); ok {
			r.firsts = append(r.firsts, first)
		} else if n, ok := spareNumber(name); ok {
			if err := r.spare(name, n); err != nil {
				return err
			}
		}
	}
	r.info.Files = len(r.firsts)
	return nil
}

func (r *recovery) spare(name string, n uint64) error {
	l := r.l
	st, err := l.o.FS.Stat(l.path(name))
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "stat %s", name)
	}
	l.files.mu.serial = max(l.files.mu.serial, n)
	if reusable(l.o, st.Size()) && len(l.files.mu.spares) < l.o.PoolFiles {
		l.files.mu.spares = append(l.files.mu.spares, spare{name: name, size: st.Size()})
		return nil
	}
	return errcode.Wrap(errcode.Storage, l.o.FS.Remove(l.path(name)), "remove stray %s", name)
}

// begin makes the first file of a new log. If anything was durable before,
// the files are missing, and LSNs would be given out twice.
func (r *recovery) begin() error {
	if o := r.l.o; o.KnownDurable > 0 || o.NextNeeded > 1 {
		return r.damage(fileName(1), 0, 1, "no file is there, but LSNs up to %d were durable and LSN %d is needed", o.KnownDurable, o.NextNeeded)
	}
	r.info.Next = 1
	return r.startFile(1, nil)
}

// readHeaders checks each file's header against its name and the incarnation.
// A file is fsynced before it is renamed in, so none may be torn.
func (r *recovery) readHeaders() error {
	for _, first := range r.firsts {
		h, size, err := r.readHeader(first)
		if err != nil {
			return err
		}
		r.heads, r.sizes = append(r.heads, h), append(r.sizes, size)
	}
	return nil
}

func (r *recovery) readHeader(first uint64) (fileHeader, int64, error) {
	name := fileName(first)
	f, size, err := r.l.openFile(name)
	if err != nil {
		return fileHeader{}, 0, err
	}
	defer f.Close()
	b := make([]byte, fileHeaderSize)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return fileHeader{}, 0, errcode.Wrap(errcode.Storage, err, "read header of %s", name)
	}
	h, err := parseFileHeader(b[:n])
	switch {
	case errcode.Is(err, errcode.UnsupportedVersion):
		return h, 0, errcode.Wrap(errcode.UnsupportedVersion, err, "%s", r.l.path(name))
	case err != nil:
		return h, 0, r.damage(name, 0, first, "%v", err)
	case h.Incarnation != r.l.o.Incarnation:
		return h, 0, errcode.New(errcode.Conflict, "wal file %s is of incarnation %016x, this data directory is %016x; put back the directory that belongs here", r.l.path(name), h.Incarnation, r.l.o.Incarnation)
	case h.First != first:
		return h, 0, r.damage(name, 0, first, "its header says LSN %d", h.First)
	}
	return h, size, nil
}

// openFile opens a log file for reading and returns its size.
func (l *Log) openFile(name string) (vfs.File, int64, error) {
	f, err := l.o.FS.Open(l.path(name), vfs.SequentialReadsOption)
	if err != nil {
		return nil, 0, errcode.Wrap(errcode.Storage, err, "open %s", name)
	}
	st, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(errcode.Wrap(errcode.Storage, err, "stat %s", name), f.Close())
	}
	return f, st.Size(), nil
}

func (r *recovery) checkStart() error {
	if need := r.l.o.NextNeeded; need > 0 && r.firsts[0] > need {
		return r.damage(fileName(r.firsts[0]), 0, need, "it is the first file, but LSN %d is still needed", need)
	}
	return nil
}

// surveyLast finds where the last file's groups end and what is proven
// durable, and tells a torn tail from damage by it.
func (r *recovery) surveyLast() error {
	i := len(r.firsts) - 1
	name := fileName(r.firsts[i])
	f, size, err := r.l.openFile(name)
	if err != nil {
		return err
	}
	defer f.Close()

	r.proven = max(r.firsts[i]-1, r.l.o.KnownDurable)
	r.scan.reset(f, size, r.heads[i].Salt)
	var spans [][2]uint64 // groups above the proven LSN so far: first, next
	r.end = r.firsts[i]
	for {
		g, raw, err := r.scan.group()
		if errcode.Is(err, errcode.Storage) {
			return errcode.Wrap(errcode.Storage, err, "%s", name)
		}
		if err != nil || g.First != r.end {
			break
		}
		r.proven = max(r.proven, g.Durable)
		spans = append(spans, [2]uint64{g.First, g.Next()})
		r.end = g.Next()
		r.scan.skip(len(raw))
	}
	at := r.scan.off
	if h, err := r.scan.header(); err == nil && h.First == r.end {
		r.info.TornFile, r.info.TornAt = name, at
	}
	if err := r.surveyBeyond(); err != nil {
		return errcode.Wrap(errcode.Storage, err, "%s", name)
	}
	// A group is fsynced whole: one LSN of it proves all of it.
	for _, s := range spans {
		if s[0] <= r.proven && r.proven < s[1] {
			r.proven = s[1] - 1
		}
	}
	if r.end <= r.proven {
		return r.damage(name, at, r.end, "it does not verify, but LSNs up to %d were durable", r.proven)
	}
	r.info.Durable = r.proven
	return nil
}

// surveyBeyond looks past the first group that does not verify for others that
// do: they are not replayed, but what they say was durable is evidence, and
// so a flipped bit in the middle is not taken for a torn end.
func (r *recovery) surveyBeyond() error {
	for r.scan.off < r.scan.size {
		g, raw, err := r.scan.group()
		switch {
		case err == nil:
			r.proven = max(r.proven, g.Durable)
			r.scan.skip(len(raw))
		case errcode.Is(err, errcode.Storage):
			return err
		default:
			r.scan.off += blockSize
		}
	}
	return nil
}

// replayDurable verifies and replays everything up to the proven LSN, file by
// file. A file ends where its successor begins; nothing beyond is looked at.
func (r *recovery) replayDurable() error {
	for i, first := range r.firsts {
		until := r.proven + 1
		if i+1 < len(r.firsts) {
			until = r.firsts[i+1]
		}
		if err := r.replayFile(first, r.heads[i].Salt, until); err != nil {
			return err
		}
	}
	return nil
}

// replayFile replays the LSNs [first, until), which must all be there.
func (r *recovery) replayFile(first, salt, until uint64) error {
	name := fileName(first)
	f, size, err := r.l.openFile(name)
	if err != nil {
		return err
	}
	defer f.Close()
	r.scan.reset(f, size, salt)
	for next := first; next < until; {
		g, raw, err := r.scan.group()
		switch {
		case errcode.Is(err, errcode.Storage):
			return errcode.Wrap(errcode.Storage, err, "%s", name)
		case err != nil:
			return r.damage(name, r.scan.off, next, "%v", err)
		case g.First != next || g.Next() > until:
			return r.damage(name, r.scan.off, next, "the group there holds LSNs %d to %d, want %d to at most %d", g.First, g.Next()-1, next, until-1)
		}
		if err := g.Each(r.frame); err != nil {
			return err
		}
		r.info.Bytes += int64(len(raw))
		next = g.Next()
		r.scan.skip(len(raw))
	}
	return nil
}

// frame hands one frame on, and keeps the clock of the marks.
func (r *recovery) frame(f Frame) error {
	r.info.Frames++
	if err := r.noteMark(f); err != nil {
		return err
	}
	if r.replay == nil {
		return nil
	}
	if err := r.replay(f); err != nil {
		return errcode.Wrap(errcode.Internal, err, "replay %v frame at LSN %d", f.Kind, f.LSN)
	}
	return nil
}

func (r *recovery) noteMark(f Frame) error {
	if f.Kind != KindMark {
		return nil
	}
	if m, err := ParseMark(f.Body); err == nil {
		r.info.LastMarkMs = max(r.info.LastMarkMs, m.TimeMs)
	}
	return nil
}

// rewriteRest makes what verified above the proven LSN durable under a new
// salt, in a file that replaces or follows the last one, and replays it only
// then: until now it may have been in the page cache alone, and whoever
// replayed it could build on something that the next power loss takes away.
func (r *recovery) rewriteRest() error {
	i := len(r.firsts) - 1
	r.l.files.mu.list = make([]*logFile, 0, len(r.firsts)+1)
	for j, first := range r.firsts {
		f := &logFile{first: first, salt: r.heads[j].Salt}
		f.size.Store(r.sizes[j])
		r.l.files.mu.list = append(r.l.files.mu.list, f)
	}
	if r.proven+1 == r.firsts[i] { // replaced under its own name
		r.l.files.mu.list = r.l.files.mu.list[:i]
	}
	f, size, err := r.l.openFile(fileName(r.firsts[i]))
	if err != nil {
		return err
	}
	defer f.Close()
	r.scan.reset(f, size, r.heads[i].Salt)
	for {
		h, err := r.scan.header()
		if err != nil && !errcode.Is(err, errcode.Corrupt) {
			return err
		}
		if err != nil || h.First > r.proven {
			break
		}
		r.scan.skip(int(h.Bytes))
	}
	first := r.proven + 1
	r.info.Rewritten = r.end - first
	r.info.Next = r.end + 1
	if err := r.startFile(first, &r.scan); err != nil {
		return err
	}
	return r.replayFile(first, r.l.mu.salt, r.end)
}

// startFile makes the current file, beginning at first: the groups that src
// stands at up to r.end, then a closing mark, both fsynced in that order so
// that the mark may say that the groups are durable. src nil = an empty log.
func (r *recovery) startFile(first uint64, src *scanner) error {
	l := r.l
	nb, err := l.newFile(first)
	if err != nil {
		return err
	}
	pos := int64(blockSize)
	if src != nil {
		pos, err = r.copyGroups(nb, src, first)
	}
	if err == nil {
		err = errcode.Wrap(errcode.Storage, nb.file.SyncData(), "sync %s", nb.spare)
	}
	if err != nil {
		return errors.Join(err, l.discard(nb))
	}
	if err := l.christen(nb); err != nil {
		return err
	}
	l.adopt(nb, pos)
	last := r.info.Next - 1
	l.mu.next = r.info.Next
	l.written.Store(last)
	l.durable.Store(last)
	return nil
}

func (r *recovery) copyGroups(nb newborn, src *scanner, first uint64) (int64, error) {
	pos := int64(blockSize)
	var buf []byte
	for next := first; next < r.end; {
		g, raw, err := src.group()
		if err != nil || g.First != next {
			return 0, errcode.New(errcode.Storage, "the group of LSN %d reads differently than a moment ago: %w", next, err)
		}
		if err := g.Each(r.noteMark); err != nil {
			return 0, err
		}
		size := roundUp(int64(len(raw)))
		buf = append(append(buf[:0], raw...), make([]byte, size-int64(len(raw)))...)
		sealGroup(buf[:len(raw)], nb.header.Salt, g.First, uint32(g.Frames), first-1)
		if err := writeAll(nb.file, buf, pos); err != nil {
			return 0, errcode.Wrap(errcode.Storage, err, "rewrite LSN %d into %s", next, nb.spare)
		}
		next, pos = g.Next(), pos+size
		src.skip(len(raw))
	}
	if r.end > first {
		if err := nb.file.SyncData(); err != nil {
			return 0, errcode.Wrap(errcode.Storage, err, "sync %s", nb.spare)
		}
	}
	return r.closingMark(nb, pos)
}

// closingMark appends a mark whose group header says that all before it is
// durable.
func (r *recovery) closingMark(nb newborn, pos int64) (int64, error) {
	l := r.l
	l.mu.markMs = max(r.info.LastMarkMs, uint64(max(l.o.Now().UnixMilli(), 0)))
	l.mu.markLSN = r.end
	b := make([]byte, blockSize)
	n := groupHeaderSize + frameHeaderSize + markBodySize
	b[groupHeaderSize+3], b[groupHeaderSize+4] = markBodySize, byte(KindMark)
	Mark{TimeMs: l.mu.markMs, LowWater: l.files.lowWater()}.encode(b[groupHeaderSize+frameHeaderSize:])
	sealGroup(b[:n], nb.header.Salt, r.end, 1, r.end-1)
	if err := writeAll(nb.file, b, pos); err != nil {
		return 0, errcode.Wrap(errcode.Storage, err, "write closing mark into %s", nb.spare)
	}
	return pos + blockSize, nil
}

// damage is the error that refuses a start. pos is in bytes, lsn the frame
// that should be there.
func (r *recovery) damage(name string, pos int64, lsn uint64, format string, args ...any) error {
	why := errcode.New(errcode.Corrupt, format, args...)
	return errcode.New(errcode.Corrupt,
		"wal file %s is damaged at position %d, where LSN %d should be: %s; nothing was changed; restore the file, or see what `tidemark wal repair` would drop",
		r.l.path(name), pos, lsn, why.Msg).
		With("file", r.l.path(name)).With("position", pos).With("lsn", lsn)
}
