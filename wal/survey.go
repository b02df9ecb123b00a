package wal

import (
	"errors"
	"io"
	iofs "io/fs"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// SurveyOptions say whose log is looked at, and what is known of it from
// elsewhere.
type SurveyOptions struct {
	FS  vfs.FS
	Dir string // of the log, or one of its files
	// KnownDurable and NextNeeded are those of [Options]; 0 = nothing is known.
	KnownDurable uint64
	NextNeeded   uint64
}

// Survey is what the files of a log hold, damaged or not. It follows the rules
// of recovery (docs/formats/wal.md), but goes on where recovery refuses. Making
// one only reads; it may be made of a directory that a running log holds, and
// is then behind it.
type Survey struct {
	Dir   string
	Files []SurveyedFile // ascending
	// Holes are the frames that have to be there and are not, ascending. None =
	// recovery accepts the log, as far as its files tell.
	Holes  []Hole
	First  uint64 // lowest LSN that is there, 0 = none
	Next   uint64 // LSN after the last frame that counts
	Proven uint64 // highest LSN that is proven durable
	// Where an unproven tail was cut; "" = the last file ends with its groups.
	TornFile string
	TornAt   int64

	fs   vfs.FS
	runs []run // that count, ascending
}

// SurveyedFile is one file of a log.
type SurveyedFile struct {
	Name        string
	Path        string
	First       uint64 // by its name
	Until       uint64 // by the name of its successor; math.MaxUint64 for the last one
	Size        int64
	Incarnation uint64 // by its header, 0 when that does not verify
	Salt        uint64
	CreatedMs   int64
	HeaderErr   error  // why the header does not verify
	SaltGuessed bool   // the header is damaged, but groups verify with the salt that stands in it
	Groups      int    // that verify, whether they count or not
	Frames      uint64 // in those
	GroupsEnd   int64  // position behind the last of them
}

// readable says whether groups of the file can be verified.
func (f *SurveyedFile) readable() bool { return f.HeaderErr == nil || f.SaltGuessed }

// Hole is a range of LSNs that are not there.
type Hole struct {
	From, Next uint64 // half-open; equal when no LSN in it is proven to have existed
	// Open: nothing verifies behind it, so more LSNs than those may have been
	// given out.
	Open     bool
	File     string // path of the file where From should be
	Position int64  // in it
	Why      string
}

// run is a sequence of groups without holes in one file.
type run struct {
	file        int
	first, next uint64
	pos, end    int64  // in the file, padding included
	durable     uint64 // highest that a group of it says
}

// Examine makes a survey. Errors: errcode.UnsupportedVersion for a file of a
// newer build, errcode.Storage when something cannot be read. Damage is in the
// survey.
func Examine(o SurveyOptions) (*Survey, error) {
	s := &Survey{Dir: o.Dir, fs: o.FS}
	if err := s.list(); err != nil {
		return nil, err
	}
	var found []run
	scan := new(scanner)
	for i := range s.Files {
		more, err := s.read(i, scan)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	s.judge(s.dropRecycled(found), o)
	return s, nil
}

// dropRecycled leaves out the files that a running log has recycled since they
// were listed, oldest first as it does, with what was read of them.
func (s *Survey) dropRecycled(found []run) []run {
	gone := 0
	for i := range s.Files[:max(len(s.Files)-1, 0)] { // never the last one
		if _, err := s.fs.Stat(s.Files[i].Path); errors.Is(err, iofs.ErrNotExist) {
			gone = i + 1
		}
	}
	s.Files = s.Files[gone:]
	found = slices.DeleteFunc(found, func(r run) bool { return r.file < gone })
	for i := range found {
		found[i].file -= gone
	}
	return found
}

// list finds the log's files; a path that is a file is the only one.
func (s *Survey) list() error {
	st, err := s.fs.Stat(s.Dir)
	if errors.Is(err, iofs.ErrNotExist) {
		return nil // a log that has lost all of its files
	}
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "look at %s", s.Dir)
	}
	if !st.IsDir() {
		first, _ := parseFileName(s.fs.PathBase(s.Dir))
		s.Files = []SurveyedFile{{Name: s.fs.PathBase(s.Dir), Path: s.Dir, First: first, Until: math.MaxUint64}}
		return nil
	}
	names, err := s.fs.List(s.Dir)
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "list %s", s.Dir)
	}
	slices.Sort(names)
	for _, name := range names {
		first, ok := parseFileName(name)
		if !ok {
			continue
		}
		if n := len(s.Files); n > 0 {
			s.Files[n-1].Until = first
		}
		s.Files = append(s.Files, SurveyedFile{Name: name, Path: s.fs.PathJoin(s.Dir, name), First: first, Until: math.MaxUint64})
	}
	return nil
}

// read looks through one file, block by block where nothing verifies, and
// returns the runs of groups in it. Groups beyond the file's successor count
// for nothing and are left out.
func (s *Survey) read(i int, scan *scanner) (runs []run, err error) {
	sf := &s.Files[i]
	f, err := s.fs.Open(sf.Path, vfs.SequentialReadsOption)
	if errors.Is(err, iofs.ErrNotExist) { // recycled by a running log since it was listed
		sf.HeaderErr = errcode.New(errcode.NotFound, "the file is gone since it was listed")
		return nil, nil
	}
	if err != nil {
		return nil, errcode.Wrap(errcode.Storage, err, "open %s", sf.Path)
	}
	defer f.Close()
	if err := sf.header(f); err != nil {
		return nil, err
	}
	scan.reset(f, sf.Size, sf.Salt)
	for scan.off < sf.Size {
		g, raw, err := scan.group()
		if errcode.Is(err, errcode.Storage) {
			return nil, errcode.Wrap(errcode.Storage, err, "%s", sf.Path)
		}
		if err != nil {
			scan.off += blockSize
			continue
		}
		if sf.HeaderErr != nil {
			sf.SaltGuessed = true
		}
		sf.Groups++
		sf.Frames += uint64(g.Frames)
		pos := scan.off
		scan.skip(len(raw))
		sf.GroupsEnd = scan.off
		if g.First < sf.First || g.Next() > sf.Until {
			continue
		}
		last := len(runs) - 1
		switch {
		case last >= 0 && g.First == runs[last].next:
			runs[last].next, runs[last].end, runs[last].durable = g.Next(), scan.off, max(runs[last].durable, g.Durable)
		case last < 0 || g.First > runs[last].next:
			runs = append(runs, run{i, g.First, g.Next(), pos, scan.off, g.Durable})
		}
	}
	return runs, nil
}

// header reads the file's header. One that does not verify may still have its
// salt: the groups tell.
func (f *SurveyedFile) header(file vfs.File) error {
	st, err := file.Stat()
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "stat %s", f.Path)
	}
	f.Size = st.Size()
	b := make([]byte, fileHeaderSize)
	n, err := file.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return errcode.Wrap(errcode.Storage, err, "read header of %s", f.Path)
	}
	h, err := parseFileHeader(b[:n])
	switch {
	case errcode.Is(err, errcode.UnsupportedVersion):
		return errcode.Wrap(errcode.UnsupportedVersion, err, "%s", f.Path)
	case err == nil && f.First != 0 && h.First != f.First:
		err = errcode.New(errcode.Corrupt, "file header: first LSN %d, the name says %d", h.First, f.First)
	}
	f.HeaderErr, f.Salt = err, saltOf(b)
	f.First = max(f.First, 1) // a single file whose name is not a log's
	if err == nil {
		f.First, f.Incarnation, f.CreatedMs = h.First, h.Incarnation, h.CreatedMs
	}
	return nil
}

// judge decides which runs count, by the rules of recovery, and what is
// missing between them.
func (s *Survey) judge(found []run, o SurveyOptions) {
	if len(s.Files) == 0 {
		if o.KnownDurable > 0 || o.NextNeeded > 1 {
			from := max(o.NextNeeded, 1)
			s.Holes = []Hole{{From: from, Next: max(from, o.KnownDurable+1), Open: true, File: s.Dir, Why: "there is no log file"}}
		}
		s.Next = max(o.KnownDurable, max(o.NextNeeded, 1)-1) + 1
		s.Proven = s.Next - 1
		return
	}
	last := len(s.Files) - 1
	s.Proven = max(s.Files[last].First-1, o.KnownDurable)
	for _, r := range found {
		if r.file == last {
			s.Proven = max(s.Proven, r.durable)
		}
	}
	s.Next = s.Files[0].First
	if o.NextNeeded > 0 && o.NextNeeded < s.Next {
		s.Holes = append(s.Holes, Hole{From: o.NextNeeded, Next: s.Next, File: s.Files[0].Path, Why: "it is the first file, and older frames are still needed"})
	}
	for i := range s.Files {
		if i > 0 {
			s.hole(s.Files[i].First, i-1, "the groups of this file end there, the next file begins further on: this one is damaged, or one between them is missing")
		}
		for _, r := range found {
			if r.file != i {
				continue
			}
			if r.first > s.Next && s.Next > s.Proven {
				break // an unproven tail: nothing behind it counts
			}
			s.hole(r.first, i, "no group verifies there, but others do behind it")
			s.runs = append(s.runs, r)
			s.Next = r.next
		}
	}
	if len(s.runs) > 0 {
		s.First = s.runs[0].first
	}
	s.tail(last)
}

// tail judges the end of the last file.
func (s *Survey) tail(last int) {
	f := &s.Files[last]
	switch {
	case s.Next <= s.Proven:
		s.hole(s.Proven+1, last, "no group verifies there, although later frames were durable")
		s.Holes[len(s.Holes)-1].Open = true
	case !f.readable():
		// A file is fsynced before it gets its name, so this is no torn write,
		// and whatever it held is lost.
		s.Holes = append(s.Holes, Hole{From: s.Next, Next: s.Next, Open: true, File: f.Path, Why: f.HeaderErr.Error()})
	case f.GroupsEnd > s.endOf(last):
		s.TornFile, s.TornAt = f.Path, s.endOf(last)
	}
}

// endOf returns the position behind the last group that counts of file i.
func (s *Survey) endOf(i int) int64 {
	end := int64(blockSize)
	for _, r := range s.runs {
		if r.file == i {
			end = r.end
		}
	}
	return end
}

// hole notes that the frames from s.Next up to next, if any, are missing
// behind what counts of a file.
func (s *Survey) hole(next uint64, file int, why string) {
	if next <= s.Next {
		return
	}
	f, pos := &s.Files[file], s.endOf(file)
	if !f.readable() {
		why, pos = f.HeaderErr.Error(), 0
	}
	s.Holes = append(s.Holes, Hole{From: s.Next, Next: next, File: f.Path, Position: pos, Why: why})
	s.Next = next
}

// Damaged says whether recovery refuses the log: frames are missing, or a
// header does not verify.
func (s *Survey) Damaged() bool {
	return len(s.Holes) > 0 || slices.ContainsFunc(s.Files, func(f SurveyedFile) bool { return f.HeaderErr != nil })
}

// Located is a group and where it stands.
type Located struct {
	File     *SurveyedFile
	Position int64
	Group    Group
	Raw      []byte // header and frames, as they stand in the file
}

// Each calls fn for every group that counts, in LSN order, until fn fails. What
// it hands out is valid during the call. errcode.Storage: a group does not read
// as it did a moment ago.
func (s *Survey) Each(fn func(Located) error) error {
	for _, r := range s.runs {
		if err := s.eachOf(r, fn); err != nil {
			return err
		}
	}
	return nil
}

func (s *Survey) eachOf(r run, fn func(Located) error) error {
	sf := &s.Files[r.file]
	f, err := s.fs.Open(sf.Path, vfs.SequentialReadsOption)
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "open %s", sf.Path)
	}
	defer f.Close()
	scan := new(scanner)
	scan.reset(f, sf.Size, sf.Salt)
	scan.off = r.pos
	for next := r.first; next < r.next; {
		g, raw, err := scan.group()
		if err == nil && g.First != next {
			err = errcode.New(errcode.Storage, "it holds LSN %d now", g.First)
		}
		if err != nil {
			return errcode.New(errcode.Storage, "the group of LSN %d at position %d of %s reads differently than a moment ago: %w", next, scan.off, sf.Path, err)
		}
		if err := fn(Located{sf, scan.off, g, raw}); err != nil {
			return err
		}
		next = g.Next()
		scan.skip(len(raw))
	}
	return nil
}

// Missing returns the parts of [from, next) that no group that counts holds.
func (s *Survey) Missing(from, next uint64) (out [][2]uint64) {
	for _, r := range s.runs {
		if r.next <= from || r.first >= next {
			continue
		}
		if r.first > from {
			out = append(out, [2]uint64{from, r.first})
		}
		from = r.next
	}
	if from < next {
		out = append(out, [2]uint64{from, next})
	}
	return out
}
