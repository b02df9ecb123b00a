package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/wal"
)

func newWALDump(p *process) *cobra.Command {
	d := walDump{}
	var asJSON bool
	cmd := &cobra.Command{
		Use: "dump DIR|FILE", Short: "Print what stands in a write-ahead log, and whether it is whole",
		Long: `Print what stands in a write-ahead log: each file with its header, each group, each
frame with what it means, and at the end whether the log is whole, ends in a torn
write (normal after a crash), or is damaged, and where.

DIR is a data directory or its folder wal; FILE is one file of the log. Nothing is
changed, every byte is verified before it is believed, and memory does not depend
on the size of the log. A node may be running: then the end is a moment old.
Exits 1 when the log is damaged.`,
		Example: `  tidemark wal dump /var/lib/tidemark
  tidemark wal dump /var/lib/tidemark --from 5000 --to 5100 --json
  tidemark wal dump /var/lib/tidemark --verdict`,
		Args: args("DIR|FILE"),
	}
	f := cmd.Flags()
	f.Uint64Var(&d.from, "from", 0, "first LSN to print")
	f.Uint64Var(&d.to, "to", math.MaxUint64, "LSN to stop before (default the end)")
	f.BoolVar(&d.verdictOnly, "verdict", false, "print files and verdict alone")
	f.BoolVar(&asJSON, "json", false, "print one JSON object a line")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if d.from > d.to {
			return usagef("--from %d is after --to %d", d.from, d.to)
		}
		path, dataDir, err := logPath(args[0])
		if err != nil {
			return err
		}
		d.holder = holder(dataDir)
		survey, err := d.examine(path)
		if err != nil {
			return err
		}
		w := bufio.NewWriterSize(p.stdout, 64<<10)
		d.out = &dumpText{w}
		if asJSON {
			d.out = &dumpJSON{json.NewEncoder(w)}
		}
		err = errors.Join(d.run(survey), w.Flush())
		if err == nil && d.verdict(survey).Verdict == verdictDamaged {
			return errors.New("the log is damaged: see `tidemark wal repair`")
		}
		return err
	}
	return cmd
}

// walDump prints a survey.
type walDump struct {
	from, to    uint64
	verdictOnly bool
	holder      int // process that holds the directory, 0 = none
	out         dumper
}

// examine makes the survey. Of a log that is being written a reader may see a
// later group before an earlier one: what is damage is still there when it looks
// again.
func (d *walDump) examine(path string) (s *wal.Survey, err error) {
	for range 5 {
		s, err = wal.Examine(wal.SurveyOptions{FS: vfs.Default, Dir: path})
		if err != nil || d.holder == 0 || !s.Damaged() {
			break
		}
	}
	return s, err
}

// dumper prints one kind of line each.
type dumper interface {
	file(dumpedFile) error
	group(dumpedGroup) error
	frame(dumpedFrame) error
	verdict(dumpedVerdict) error
}

type dumpedFile struct {
	Type        string `json:"type"` // file
	File        string `json:"file"`
	Bytes       int64  `json:"bytes"`
	FirstLSN    uint64 `json:"first_lsn"`
	Incarnation string `json:"incarnation,omitempty"`
	Salt        string `json:"salt"`
	Created     string `json:"created,omitempty"`
	Groups      int    `json:"groups"` // that verify
	Frames      uint64 `json:"frames"`
	Error       string `json:"error,omitempty"` // of the header
}

type dumpedGroup struct {
	Type     string `json:"type"` // group
	File     string `json:"file"`
	Position int64  `json:"position"`
	Bytes    int    `json:"bytes"`
	FirstLSN uint64 `json:"first_lsn"`
	NextLSN  uint64 `json:"next_lsn"`
	Durable  uint64 `json:"durable_lsn"` // when it was written
}

const (
	verdictClean   = "clean"
	verdictTorn    = "torn tail"
	verdictDamaged = "damaged"
)

type dumpedVerdict struct {
	Type     string       `json:"type"` // verdict
	Verdict  string       `json:"verdict"`
	FirstLSN uint64       `json:"first_lsn"`
	NextLSN  uint64       `json:"next_lsn"`
	Proven   uint64       `json:"proven_durable_lsn"`
	TornFile string       `json:"torn_file,omitempty"`
	TornAt   int64        `json:"torn_at,omitempty"`
	Damage   []dumpedHole `json:"damage,omitempty"`
	Holder   int          `json:"held_by_pid,omitempty"`
}

type dumpedHole struct {
	File     string `json:"file"`
	Position int64  `json:"position"`
	FromLSN  uint64 `json:"from_lsn"`
	NextLSN  uint64 `json:"next_lsn"`
	Open     bool   `json:"end_unknown,omitempty"` // nothing verifies behind it
	Why      string `json:"why"`
}

func (d *walDump) run(s *wal.Survey) error {
	for i := range s.Files {
		if err := d.out.file(fileOf(&s.Files[i])); err != nil {
			return err
		}
	}
	if !d.verdictOnly {
		if err := d.groups(s); err != nil && !errors.Is(err, errEnough) {
			return err
		}
	}
	return d.out.verdict(d.verdict(s))
}

// errEnough ends a walk over the log behind --to.
var errEnough = errors.New("enough")

func (d *walDump) groups(s *wal.Survey) error {
	return s.Each(func(at wal.Located) error {
		switch {
		case at.Group.Next() <= d.from:
			return nil
		case at.Group.First >= d.to:
			return errEnough
		}
		err := d.out.group(dumpedGroup{"group", at.File.Name, at.Position, len(at.Raw), at.Group.First, at.Group.Next(), at.Group.Durable})
		if err != nil {
			return err
		}
		return at.Group.Each(func(f wal.Frame) error {
			if f.LSN < d.from || f.LSN >= d.to {
				return nil
			}
			return d.out.frame(frameOf(f))
		})
	})
}

func fileOf(f *wal.SurveyedFile) dumpedFile {
	out := dumpedFile{
		Type: "file", File: f.Path, Bytes: f.Size, FirstLSN: f.First, Salt: fmt.Sprintf("%016x", f.Salt), Groups: f.Groups, Frames: f.Frames,
	}
	if f.HeaderErr != nil {
		out.Error = oneLine(f.HeaderErr.Error())
		return out
	}
	out.Incarnation, out.Created = fmt.Sprintf("%016x", f.Incarnation), when(time.UnixMilli(f.CreatedMs))
	return out
}

func (d *walDump) verdict(s *wal.Survey) dumpedVerdict {
	v := dumpedVerdict{
		Type: "verdict", Verdict: verdictClean, FirstLSN: s.First, NextLSN: s.Next, Proven: s.Proven,
		TornFile: s.TornFile, TornAt: s.TornAt, Holder: d.holder,
	}
	switch {
	case s.Damaged():
		v.Verdict = verdictDamaged
	case s.TornFile != "":
		v.Verdict = verdictTorn
	}
	for i := range s.Files {
		if f := &s.Files[i]; f.SaltGuessed {
			v.Damage = append(v.Damage, dumpedHole{File: f.Path, FromLSN: f.First, NextLSN: f.First, Why: oneLine(f.HeaderErr.Error()) + "; its groups verify all the same"})
		}
	}
	for _, h := range s.Holes {
		v.Damage = append(v.Damage, dumpedHole{h.File, h.Position, h.From, h.Next, h.Open, oneLine(h.Why)})
	}
	return v
}

// dumpJSON prints a line of JSON for each.
type dumpJSON struct{ enc *json.Encoder }

func (j *dumpJSON) file(f dumpedFile) error       { return j.enc.Encode(f) }
func (j *dumpJSON) group(g dumpedGroup) error     { return j.enc.Encode(g) }
func (j *dumpJSON) frame(f dumpedFrame) error     { return j.enc.Encode(f) }
func (j *dumpJSON) verdict(v dumpedVerdict) error { return j.enc.Encode(v) }

// dumpText prints for people.
type dumpText struct{ w *bufio.Writer }

func (t *dumpText) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(t.w, format, args...)
	return err
}

func (t *dumpText) file(f dumpedFile) error {
	if f.Error != "" {
		return t.printf("file %s  %s, header damaged: %s; %d groups verify\n", f.File, formatBytes(f.Bytes), f.Error, f.Groups)
	}
	return t.printf("file %s  %s, incarnation %s, salt %s, first LSN %d, created %s, %d groups, %d frames\n",
		f.File, formatBytes(f.Bytes), f.Incarnation, f.Salt, f.FirstLSN, f.Created, f.Groups, f.Frames)
}

func (t *dumpText) group(g dumpedGroup) error {
	return t.printf("group at %d of %s  LSN %d..%d, %d bytes, durable then %d\n", g.Position, g.File, g.FirstLSN, g.NextLSN-1, g.Bytes, g.Durable)
}

func (t *dumpText) frame(f dumpedFrame) error {
	return t.printf("  %d %s  %d bytes%s\n", f.LSN, f.Kind, f.Bytes, f.words())
}

func (t *dumpText) verdict(v dumpedVerdict) error {
	var b strings.Builder
	switch {
	case v.FirstLSN == 0:
		fmt.Fprintf(&b, "%s: no frame", v.Verdict)
	default:
		fmt.Fprintf(&b, "%s: LSN %d..%d, %d is proven durable", v.Verdict, v.FirstLSN, v.NextLSN-1, v.Proven)
	}
	if v.Verdict == verdictTorn {
		fmt.Fprintf(&b, "\n  %s is cut at position %d: a write that was never answered, as a crash leaves it", v.TornFile, v.TornAt)
	}
	for _, h := range v.Damage {
		lost := fmt.Sprintf("LSN %d..%d", h.FromLSN, h.NextLSN-1)
		switch {
		case h.FromLSN == h.NextLSN && h.Open:
			lost = fmt.Sprintf("LSN %d and an unknown number behind it", h.FromLSN)
		case h.FromLSN == h.NextLSN:
			lost = "no LSN lost"
		case h.Open:
			lost += " and perhaps more behind it"
		}
		fmt.Fprintf(&b, "\n  %s at position %d: %s: %s", h.File, h.Position, lost, h.Why)
	}
	if v.Holder != 0 {
		fmt.Fprintf(&b, "\n  process %d holds the directory: its end is a moment old, and a file may be in the middle of a write", v.Holder)
	}
	return t.printf("%s\n", b.String())
}
