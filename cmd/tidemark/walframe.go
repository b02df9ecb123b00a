package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/queue"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/wal"
)

// dumpedFrame is a frame with what its body says.
type dumpedFrame struct {
	Type  string `json:"type"` // frame
	LSN   uint64 `json:"lsn"`
	Kind  string `json:"kind"`
	Bytes int    `json:"bytes"` // of the body
	// Commit and carry.
	Appended string          `json:"appended,omitempty"`
	Origin   string          `json:"origin,omitempty"` // incarnation and LSN where it was first accepted, when that is another place
	Sections []dumpedSection `json:"sections,omitempty"`
	// Group.
	Partition  string            `json:"partition,omitempty"`
	Generation uint32            `json:"generation,omitempty"`
	Group      string            `json:"group,omitempty"`
	Operations []queue.Described `json:"operations,omitempty"`
	// Base.
	Base *dumpedBase `json:"base,omitempty"`
	// Mark.
	Time     string `json:"time,omitempty"`
	LowWater uint64 `json:"low_water_lsn,omitempty"`

	Error string `json:"error,omitempty"` // why the body does not decode
}

type dumpedSection struct {
	Partition  string `json:"partition"`
	Generation uint32 `json:"generation"`
	First      int64  `json:"first_offset"`
	Next       int64  `json:"next_offset"`
	Batches    int    `json:"batches"`
	Records    int64  `json:"records"`
	Bytes      int    `json:"bytes"`
	Error      string `json:"error,omitempty"`
}

type dumpedBase struct {
	PreviousEnd int64      `json:"previous_end"`
	Start       int64      `json:"start"`
	End         int64      `json:"end"`
	ChainEnd    int64      `json:"chain_end"`
	Gaps        [][2]int64 `json:"gaps,omitempty"`
	Groups      []string   `json:"groups,omitempty"` // with their positions
}

// frameOf decodes a frame. What does not decode is said in it, and is no
// reason to stop: the frame's own checksum has verified.
func frameOf(f wal.Frame) dumpedFrame {
	d := dumpedFrame{Type: "frame", LSN: f.LSN, Kind: f.Kind.String(), Bytes: len(f.Body)}
	var err error
	switch f.Kind {
	case wal.KindCommit, wal.KindCarry:
		err = d.commit(f.Body)
	case wal.KindGroup:
		err = d.groupChange(f.Body)
	case wal.KindBase:
		err = d.base(f.Body)
	case wal.KindMark:
		var m wal.Mark
		if m, err = wal.ParseMark(f.Body); err == nil {
			d.Time, d.LowWater = stamp(int64(m.TimeMs)), m.LowWater
		}
	default:
		err = fmt.Errorf("this build does not know what kind %d holds", f.Kind)
	}
	if err != nil {
		d.Error = oneLine(err.Error())
	}
	return d
}

// stamp is a time in milliseconds for people.
func stamp(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z") }

func (d *dumpedFrame) commit(body []byte) error {
	h, sections, err := frame.ParseCommit(body)
	if err != nil {
		return err
	}
	d.Appended = stamp(h.AppendMS)
	if h.OriginLSN != 0 {
		d.Origin = fmt.Sprintf("%016x/%d", h.OriginIncarnation, h.OriginLSN)
	}
	for s := range sections {
		d.Sections = append(d.Sections, sectionOf(s))
	}
	return nil
}

func sectionOf(s frame.Section) dumpedSection {
	out := dumpedSection{Partition: s.Partition.String(), Generation: s.Generation, First: -1, Next: -1, Bytes: len(s.Batches)}
	for rest := s.Batches; len(rest) > 0; {
		batch, after, err := segment.NextBatch(rest)
		if err == nil && batch == nil {
			err = fmt.Errorf("%d bytes at its end are no batch", len(rest))
		}
		var h segment.BatchHeader
		if err == nil {
			h, err = segment.VerifyBatch(batch)
		}
		if err != nil {
			out.Error = oneLine(err.Error())
			return out
		}
		if out.Batches == 0 {
			out.First = h.BaseOffset
		}
		out.Next = h.NextOffset()
		out.Batches++
		out.Records += int64(h.Records)
		rest = after
	}
	return out
}

func (d *dumpedFrame) groupChange(body []byte) error {
	g, err := frame.ParseGroup(body)
	if err != nil {
		return err
	}
	d.Partition, d.Generation, d.Group = g.Partition.String(), g.Generation, g.Name
	d.Operations, err = queue.Describe(g.Ops)
	return err
}

func (d *dumpedFrame) base(body []byte) error {
	b, err := frame.ParseBase(body)
	if err != nil {
		return err
	}
	d.Partition, d.Generation = b.Partition.String(), b.Generation
	d.Base = &dumpedBase{PreviousEnd: b.PreviousEnd, Start: b.Start, End: b.End, ChainEnd: b.ChainEnd, Gaps: b.Gaps}
	for _, g := range b.Groups {
		s, err := queue.DecodeState(g)
		if err != nil {
			return err
		}
		d.Base.Groups = append(d.Base.Groups, fmt.Sprintf("%s at %d", s.Group, s.Committed))
	}
	return nil
}

// words says what the body says, beginning with the separator.
func (d *dumpedFrame) words() string {
	var parts []string
	say := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	for _, s := range d.Sections {
		if s.Records == 1 {
			say("%s generation %d offset %d", s.Partition, s.Generation, s.First)
		} else {
			say("%s generation %d offsets %d..%d (%d records, %d batches)", s.Partition, s.Generation, s.First, s.Next-1, s.Records, s.Batches)
		}
		if s.Error != "" {
			say("BAD: %s", s.Error)
		}
	}
	if d.Group != "" {
		say("%s generation %d group %s", d.Partition, d.Generation, d.Group)
	}
	for _, o := range d.Operations {
		say("%s", o)
	}
	if b := d.Base; b != nil {
		say("%s generation %d from offset %d, records up to %d, earlier generations up to %d", d.Partition, d.Generation, b.Start, b.End, b.PreviousEnd)
		for _, g := range b.Groups {
			say("group %s", g)
		}
	}
	if d.Appended != "" {
		say("at %s", d.Appended)
	}
	if d.Origin != "" {
		say("from %s", d.Origin)
	}
	if d.Time != "" {
		say("at %s, low water %d", d.Time, d.LowWater)
	}
	if d.Error != "" {
		say("BAD: %s", d.Error)
	}
	if len(parts) == 0 {
		return ""
	}
	return ", " + strings.Join(parts, ", ")
}
