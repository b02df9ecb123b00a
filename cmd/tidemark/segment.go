package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/bucket"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

func newSegment(p *process) *cobra.Command {
	cmd := family("segment", "Look into segment files, on disk or in an archive, and check them",
		"  tidemark segment verify /var/lib/tidemark/topics/*/*/*", newSegmentDump(p), newSegmentVerify(p))
	cmd.Long = `Look into segment files, without a node: sealed ones (.seg, also as objects of an
archive) and the one that a partition writes to (.log). Nothing is changed.`
	return cmd
}

// segmentSource is a segment file, or an object of an archive.
type segmentSource struct {
	name   string
	size   int64
	sealed bool
	io.ReaderAt
	close func()
}

// openSegmentFile opens a segment file. By its name it is active (.log) or
// sealed; any other name is taken for sealed.
func openSegmentFile(path string) (*segmentSource, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, errors.Unwrap(err))
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = errors.New("it is a directory; name its files")
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &segmentSource{path, info.Size(), filepath.Ext(path) != ".log", f, func() { f.Close() }}, nil
}

// openSegment opens the segment that was named: a key when an archive is given.
func openSegment(ctx context.Context, p *process, name, archive string) (*segmentSource, error) {
	if archive == "" {
		return openSegmentFile(name)
	}
	store, done, err := openBucket(ctx, p, archive, objstore.CauseOther)
	if err != nil {
		return nil, err
	}
	r, size, err := bucket.OpenObject(ctx, store, name)
	if err != nil {
		done()
		return nil, err
	}
	return &segmentSource{name, size, true, r, done}, nil
}

func newSegmentVerify(p *process) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "verify FILE...", Short: "Check segment files: every batch, both checksums, order, index, footer",
		Long: `Check segment files: the checksum of every batch, every record, the SHA-256 of the
data, the order of offsets, index and footer. An active file (.log) has no footer;
bytes at its end that are no batch may be a torn write, which a start cuts off.
Of a directory every segment file is checked, and whether they follow each other.
Exits 1 when something does not verify, and says what to do then.`,
		Example: "  tidemark segment verify /var/lib/tidemark/topics/4f3c2b1a09876543/0",
		Args: func(cmd *cobra.Command, given []string) error {
			if len(given) == 0 {
				return usagef("segment verify: FILE is missing; see `%s --help`", cmd.CommandPath())
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		files, err := segmentFiles(args)
		if err != nil {
			return err
		}
		out := segmentVerification{Files: []verifiedSegment{}, Problems: []segmentProblem{}}
		for _, path := range files {
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			if err := out.verify(path); err != nil {
				return err
			}
		}
		out.gaps()
		if asJSON {
			err = p.printJSON(&out)
		} else {
			err = out.print(p.stdout)
		}
		if err == nil && len(out.Problems) > 0 {
			return fmt.Errorf("%d of %d segment files do not verify", out.bad(), len(out.Files))
		}
		return err
	}
	return cmd
}

// segmentFiles replaces directories by the segment files in them, by name.
func segmentFiles(args []string) (files []string, err error) {
	for _, path := range args {
		if !isDir(path) {
			files = append(files, path)
			continue
		}
		names, err := os.ReadDir(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, errors.Unwrap(err))
		}
		n := len(files)
		for _, e := range names {
			if _, _, ok := segment.ParseName(e.Name()); ok {
				files = append(files, filepath.Join(path, e.Name()))
			}
		}
		if n == len(files) {
			return nil, fmt.Errorf("%s holds no segment file", path)
		}
	}
	return files, nil
}

// segmentVerification is the JSON form of a verify.
type segmentVerification struct {
	Files    []verifiedSegment `json:"files"`
	Problems []segmentProblem  `json:"problems"`
	Missing  []missingOffsets  `json:"missing"` // between the files of one directory
}

type verifiedSegment struct {
	File    string `json:"file"`
	Kind    string `json:"kind"` // sealed or active
	OK      bool   `json:"ok"`
	First   int64  `json:"first_offset"`
	Next    int64  `json:"next_offset"`
	Records int64  `json:"records"`
	Batches int    `json:"batches"`
	Bytes   int64  `json:"bytes"`
}

type segmentProblem struct {
	File     string `json:"file"`
	Position int64  `json:"position"`
	First    int64  `json:"first_offset"` // -1: about no batch
	Next     int64  `json:"next_offset,omitempty"`
	What     string `json:"what"`
	Want     string `json:"want"`
	Got      string `json:"got"`
}

type missingOffsets struct {
	Dir  string `json:"dir"`
	From int64  `json:"from"`
	Next int64  `json:"next"`
}

func (v *segmentVerification) verify(path string) error {
	src, err := openSegmentFile(path)
	if err != nil {
		return err
	}
	defer src.close()
	check, kind := segment.Verify, "sealed"
	if !src.sealed {
		check, kind = segment.VerifyActive, "active"
	}
	rep, err := check(path, src, src.size, true)
	if err != nil {
		return err
	}
	if base, _, ok := segment.ParseName(filepath.Base(path)); ok && rep.Batches > 0 && rep.Info.Base != base {
		rep.Problems = append(rep.Problems, segment.Problem{File: path, Offset: rep.Info.Base, What: "name of the file", Want: fmt.Sprint(rep.Info.Base), Got: fmt.Sprint(base)})
	}
	v.Files = append(v.Files, verifiedSegment{path, kind, len(rep.Problems) == 0, rep.Info.Base, rep.Info.Next, rep.Records, rep.Batches, src.size})
	for _, x := range rep.Problems {
		v.Problems = append(v.Problems, segmentProblem{path, x.Position, x.Offset, x.Next, x.What, oneLine(x.Want), oneLine(x.Got)})
	}
	if rep.More > 0 {
		v.Problems = append(v.Problems, segmentProblem{File: path, First: -1, What: "more problems", Got: fmt.Sprint(rep.More)})
	}
	return nil
}

// gaps finds offsets between neighbouring files of one directory.
func (v *segmentVerification) gaps() {
	v.Missing = []missingOffsets{}
	sorted := slices.Clone(v.Files)
	slices.SortFunc(sorted, func(a, b verifiedSegment) int { return strings.Compare(a.File, b.File) })
	for i := 1; i < len(sorted); i++ {
		a, b := sorted[i-1], sorted[i]
		if filepath.Dir(a.File) == filepath.Dir(b.File) && a.Batches > 0 && b.Batches > 0 && a.Next < b.First {
			v.Missing = append(v.Missing, missingOffsets{filepath.Dir(a.File), a.Next, b.First})
		}
	}
}

func (v *segmentVerification) bad() (n int) {
	for _, f := range v.Files {
		if !f.OK {
			n++
		}
	}
	return n
}

// quarantine is what to do with a file that does not verify.
const quarantine = `
What to do with a damaged file, in this order:
  1. Stop the node. Copy the file away; change nothing in it.
  2. Ask the archive: tidemark bucket verify URL --deep --topic ID. When it holds the same
     offsets without a problem, move a damaged .seg out of the directory and start the node:
     it reads those offsets from the archive.
  3. Else put the file back from a copy of the disk, or restore the node from the archive.
  A .log whose last bytes do not verify after a crash needs nothing: a start cuts them off and
  takes their records from the write-ahead log, or says that it cannot.
`

func (v *segmentVerification) print(w io.Writer) error {
	t := newTable("FILE", "KIND", "OFFSETS", "RECORDS", "BATCHES", "SIZE", "RESULT")
	for _, f := range v.Files {
		t.row(f.File, f.Kind, offsetSpan(f.First, f.Next), f.Records, f.Batches, formatBytes(f.Bytes), map[bool]string{true: "ok", false: "DAMAGED"}[f.OK])
	}
	if err := t.print(w); err != nil {
		return err
	}
	for _, m := range v.Missing {
		if _, err := fmt.Fprintf(w, "note: %s has no file for offsets %s: archived and removed, a gap, or lost\n", m.Dir, offsetSpan(m.From, m.Next)); err != nil {
			return err
		}
	}
	if len(v.Problems) == 0 {
		return nil
	}
	t = newTable("FILE", "POSITION", "OFFSETS", "WHAT", "WANT", "GOT")
	for _, x := range v.Problems {
		t.row(x.File, x.Position, offsetSpan(x.First, x.Next), x.What, x.Want, x.Got)
	}
	if _, err := io.WriteString(w, "\n"); err != nil {
		return err
	}
	if err := t.print(w); err != nil {
		return err
	}
	_, err := io.WriteString(w, quarantine)
	return err
}

// offsetSpan is a half-open range of offsets for people; an end that is not
// known is open.
func offsetSpan(first, next int64) string {
	switch {
	case first < 0:
		return "-"
	case next > first:
		return fmt.Sprintf("%d..%d", first, next-1)
	default:
		return fmt.Sprintf("%d..", first)
	}
}
