package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// entryJSON is an entry's JSON. Field order is the order in which it is
// written; see docs/formats/manifest.md.
type entryJSON struct {
	Version           int            `json:"version"`
	Topic             broker.TopicID `json:"topic"`
	Partition         uint32         `json:"partition"`
	Seq               uint64         `json:"seq"`
	ClusterGeneration uint64         `json:"cluster_generation"`
	Generation        uint32         `json:"generation"`
	Incarnation       hex64          `json:"incarnation"`
	Node              string         `json:"node"`
	Nonce             hex64          `json:"nonce"`
	TimeMS            int64          `json:"time_ms"`
	Previous          Hash           `json:"previous"`
	Checkpoint        uint64         `json:"checkpoint"`
	Skips             uint64         `json:"skips,omitempty"`
	Ops               []opJSON       `json:"ops"`
}

type opJSON struct {
	Add        *segmentJSON    `json:"add,omitempty"`
	Replace    *replaceJSON    `json:"replace,omitempty"`
	Trim       *Trim           `json:"trim,omitempty"`
	Gap        *Gap            `json:"gap,omitempty"`
	Fence      *fenceJSON      `json:"fence,omitempty"`
	Checkpoint *checkpointJSON `json:"checkpoint,omitempty"`
}

type replaceJSON struct {
	Inputs []string    `json:"inputs"`
	Output segmentJSON `json:"output"`
}

type fenceJSON struct {
	ClusterGeneration uint64 `json:"cluster_generation"`
	Generation        uint32 `json:"generation"`
	Incarnation       hex64  `json:"incarnation"`
	PreviousEnd       int64  `json:"previous_end"`
	Start             int64  `json:"start"`
}

type checkpointJSON struct {
	Start    int64         `json:"start"`
	End      int64         `json:"end"`
	Totals   Totals        `json:"totals"`
	Pages    []PageRef     `json:"pages"`
	Segments []segmentJSON `json:"segments"`
	Gaps     []Gap         `json:"gaps"`
	Fences   []fenceJSON   `json:"fences"`
}

type pageJSON struct {
	Version   int            `json:"version"`
	Topic     broker.TopicID `json:"topic"`
	Partition uint32         `json:"partition"`
	Segments  []segmentJSON  `json:"segments"`
}

// unmarshal decodes exactly one JSON value of a known version into v.
func unmarshal(raw []byte, what string, v any) error {
	var head struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(raw, &head); err != nil || head.Version == nil {
		return errcode.New(errcode.Corrupt, "%s is not a JSON object with a version", what)
	}
	if _, entry := v.(*entryJSON); *head.Version != Version && !(entry && *head.Version == skipVersion) {
		return errcode.New(errcode.UnsupportedVersion, "%s has format version %d, this build reads up to %d: use a newer build", what, *head.Version, skipVersion)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	// A field that this build does not know could change the meaning of the
	// others; a version that adds one gets a new number.
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return errcode.New(errcode.Corrupt, "%s does not decode: %w", what, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errcode.New(errcode.Corrupt, "%s has bytes after its end", what)
	}
	return nil
}

func (e *Entry) wire() entryJSON {
	w := entryJSON{
		Version: Version, Topic: e.Partition.Topic, Partition: e.Partition.Partition, Seq: e.Seq,
		ClusterGeneration: e.Owner.ClusterGeneration, Generation: e.Owner.Generation,
		Incarnation: hex64(e.Owner.Incarnation), Node: e.Owner.Node, Nonce: hex64(e.Nonce),
		TimeMS: e.TimeMS, Previous: e.Previous, Checkpoint: e.Checkpoint, Skips: e.Skips, Ops: make([]opJSON, len(e.Ops)),
	}
	if e.Skips > 0 {
		w.Version = skipVersion
	}
	for i, op := range e.Ops {
		w.Ops[i] = op.wire()
	}
	return w
}

func (op Op) wire() opJSON {
	w := opJSON{Trim: op.Trim, Gap: op.Gap}
	if op.Add != nil {
		s := op.Add.wire()
		w.Add = &s
	}
	if op.Replace != nil {
		w.Replace = &replaceJSON{Inputs: op.Replace.Inputs, Output: op.Replace.Output.wire()}
	}
	if op.Fence != nil {
		f := op.Fence.wire()
		w.Fence = &f
	}
	if op.Checkpoint != nil {
		w.Checkpoint = op.Checkpoint.wire()
	}
	return w
}

func (f Fence) wire() fenceJSON {
	return fenceJSON{f.ClusterGeneration, f.Generation, hex64(f.Incarnation), f.PreviousEnd, f.Start}
}

func (c *Checkpoint) wire() *checkpointJSON {
	w := &checkpointJSON{Start: c.Start, End: c.End, Totals: c.Totals,
		Pages: c.Pages, Segments: wireSegments(c.Segments), Gaps: c.Gaps, Fences: make([]fenceJSON, len(c.Fences))}
	if w.Pages == nil {
		w.Pages = []PageRef{}
	}
	if w.Gaps == nil {
		w.Gaps = []Gap{}
	}
	for i, f := range c.Fences {
		w.Fences[i] = f.wire()
	}
	return w
}

func wireSegments(segs []Segment) []segmentJSON {
	out := make([]segmentJSON, len(segs))
	for i, s := range segs {
		out[i] = s.wire()
	}
	return out
}

func (w *entryJSON) entry() (*Entry, error) {
	e := &Entry{
		Partition: broker.PartitionID{Topic: w.Topic, Partition: w.Partition}, Seq: w.Seq,
		Owner: Owner{w.ClusterGeneration, w.Generation, uint64(w.Incarnation), w.Node},
		Nonce: uint64(w.Nonce), TimeMS: w.TimeMS, Previous: w.Previous, Checkpoint: w.Checkpoint, Skips: w.Skips,
	}
	if err := e.Owner.validate(); err != nil {
		return nil, errcode.New(errcode.Corrupt, "entry %d: %s", w.Seq, err.Error())
	}
	if w.Seq == 0 || len(w.Ops) == 0 || len(w.Ops) > MaxOps {
		return nil, errcode.New(errcode.Corrupt, "entry %d has %d operations, want 1 to %d", w.Seq, len(w.Ops), MaxOps)
	}
	if (w.Version == skipVersion) != (w.Skips > 0) || w.Skips > maxTorn || w.Skips >= w.Seq {
		return nil, errcode.New(errcode.Corrupt, "entry %d of version %d skips %d objects, at most %d are skipped", w.Seq, w.Version, w.Skips, maxTorn)
	}
	e.Ops = make([]Op, len(w.Ops))
	for i := range w.Ops {
		op, err := w.Ops[i].op(e.Partition)
		if err != nil {
			return nil, errcode.Wrap(errcode.Corrupt, err, "entry %d, operation %d", w.Seq, i)
		}
		if op.Checkpoint != nil && i > 0 {
			return nil, errcode.New(errcode.Corrupt, "entry %d: the checkpoint is not its first operation", w.Seq)
		}
		e.Ops[i] = op
	}
	has := e.Ops[0].Checkpoint != nil
	if e.Checkpoint > e.Seq || has != (e.Checkpoint == e.Seq) {
		return nil, errcode.New(errcode.Corrupt, "entry %d names entry %d as the last checkpoint", w.Seq, e.Checkpoint)
	}
	return e, nil
}

func (w *opJSON) op(pid broker.PartitionID) (Op, error) {
	op := Op{Trim: w.Trim, Gap: w.Gap}
	set := 0
	for _, is := range []bool{w.Add != nil, w.Replace != nil, w.Trim != nil, w.Gap != nil, w.Fence != nil, w.Checkpoint != nil} {
		if is {
			set++
		}
	}
	if set != 1 {
		return Op{}, errcode.New(errcode.Corrupt, "%d of its fields are set, want exactly one", set)
	}
	switch {
	case w.Add != nil:
		s, err := w.Add.segment(pid)
		op.Add = &s
		return op, err
	case w.Replace != nil:
		if n := len(w.Replace.Inputs); n == 0 || n > maxInputs {
			return Op{}, errcode.New(errcode.Corrupt, "replace has %d inputs", n)
		}
		s, err := w.Replace.Output.segment(pid)
		op.Replace = &Replace{Inputs: w.Replace.Inputs, Output: s}
		return op, err
	case w.Trim != nil:
		if w.Trim.Start < 0 || w.Trim.Dropped.negative() {
			return Op{}, errcode.New(errcode.Corrupt, "trim to %d drops %+v", w.Trim.Start, w.Trim.Dropped)
		}
	case w.Gap != nil:
		return op, w.Gap.validate()
	case w.Fence != nil:
		f := w.Fence.fence()
		op.Fence = &f
		return op, f.validate()
	case w.Checkpoint != nil:
		c, err := w.Checkpoint.checkpoint(pid)
		op.Checkpoint = c
		return op, err
	}
	return op, nil
}

func (g Gap) validate() error {
	if g.From < 0 || g.Next <= g.From || g.Reason == "" || len(g.Reason) > MaxReason {
		return errcode.New(errcode.Corrupt, "gap %d to %d (%.40q): needs a range and a reason of 1 to %d bytes", g.From, g.Next, g.Reason, MaxReason)
	}
	return nil
}

func (w fenceJSON) fence() Fence {
	return Fence{w.ClusterGeneration, w.Generation, uint64(w.Incarnation), w.PreviousEnd, w.Start}
}

func (f Fence) validate() error {
	if f.ClusterGeneration == 0 || f.Generation == 0 || f.Incarnation == 0 || f.PreviousEnd < 0 || f.Start < f.PreviousEnd {
		return errcode.New(errcode.Corrupt, "fence of generation %d: previous end %d, start %d", f.Generation, f.PreviousEnd, f.Start)
	}
	return nil
}

func (w *checkpointJSON) checkpoint(pid broker.PartitionID) (*Checkpoint, error) {
	if len(w.Pages) > maxPages || len(w.Segments) > maxListed || len(w.Gaps) > maxListed || len(w.Fences) > maxListed {
		return nil, errcode.New(errcode.Corrupt, "checkpoint lists %d pages, %d segments, %d gaps, %d fences", len(w.Pages), len(w.Segments), len(w.Gaps), len(w.Fences))
	}
	c := &Checkpoint{Start: w.Start, End: w.End, Totals: w.Totals, Pages: w.Pages, Gaps: w.Gaps, Fences: make([]Fence, len(w.Fences))}
	segs, err := readSegments(pid, w.Segments)
	if err != nil {
		return nil, err
	}
	c.Segments = segs
	for i, f := range w.Fences {
		c.Fences[i] = f.fence()
	}
	return c, c.validate()
}

// readSegments checks that the list ascends without overlap.
func readSegments(pid broker.PartitionID, in []segmentJSON) ([]Segment, error) {
	out := make([]Segment, len(in))
	for i, w := range in {
		s, err := w.segment(pid)
		if err != nil {
			return nil, err
		}
		if i > 0 && s.Base < out[i-1].Next {
			return nil, errcode.New(errcode.Corrupt, "segment %d to %d begins before offset %d, the end of the one before", s.Base, s.Next, out[i-1].Next)
		}
		out[i] = s
	}
	return out, nil
}

func (c *Checkpoint) validate() error {
	if c.Start < 0 || c.End < c.Start || c.Totals.negative() {
		return errcode.New(errcode.Corrupt, "checkpoint from %d to %d holds %+v", c.Start, c.End, c.Totals)
	}
	at := int64(0)
	for _, p := range c.Pages {
		if p.Base < at || p.Next <= p.Base || p.Totals.Segments <= 0 || p.Totals.Segments > PageSegments || p.Totals.negative() {
			return errcode.New(errcode.Corrupt, "checkpoint page %d to %d with %d segments does not follow offset %d", p.Base, p.Next, p.Totals.Segments, at)
		}
		at = p.Next
	}
	if len(c.Segments) > 0 {
		if c.Segments[0].Base < at {
			return errcode.New(errcode.Corrupt, "checkpoint segment at %d begins inside a page that ends at %d", c.Segments[0].Base, at)
		}
		at = c.Segments[len(c.Segments)-1].Next
	}
	if at > c.End {
		return errcode.New(errcode.Corrupt, "checkpoint ends at %d and lists a segment up to %d", c.End, at)
	}
	for i, g := range c.Gaps {
		if err := g.validate(); err != nil {
			return err
		}
		if i > 0 && g.From < c.Gaps[i-1].Next {
			return errcode.New(errcode.Corrupt, "checkpoint gap at %d begins inside the one before", g.From)
		}
	}
	for i, f := range c.Fences {
		if err := f.validate(); err != nil {
			return err
		}
		if i > 0 && (f.Generation <= c.Fences[i-1].Generation || f.PreviousEnd < c.Fences[i-1].Start) {
			return errcode.New(errcode.Corrupt, "checkpoint fence of generation %d does not follow generation %d", f.Generation, c.Fences[i-1].Generation)
		}
	}
	return nil
}
