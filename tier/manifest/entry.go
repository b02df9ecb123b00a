package manifest

import (
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Version is the format version of entries and pages that this build writes.
// An entry that skips others has skipVersion: a build that does not know the
// field has to refuse it.
const (
	Version     = 1
	skipVersion = 2
)

// Bounds of one entry. A decoder refuses what is over them.
const (
	MaxOps        = 1024    // operations in one entry
	MaxReason     = 200     // bytes of a gap's reason
	PageSegments  = 2048    // segments of a full page, the most that one holds
	maxStored     = 8 << 20 // bytes of a stored entry or page
	maxDecoded    = 32 << 20
	maxInputs     = 1024    // inputs of one replace
	maxListed     = 1 << 17 // unpaged segments, gaps or fences in one checkpoint
	maxPages      = 1 << 16
	checkpointAge = 256      // entries between two checkpoints
	checkpointGap = 64 << 10 // bytes of entries between two checkpoints
	maxTorn       = 1024     // objects that do not read between two entries
	tears         = 4        // of them that one append leaves behind before it fails
)

// Owner is who writes: one incarnation of a node that holds one generation of
// a partition.
type Owner struct {
	ClusterGeneration uint64
	Generation        uint32
	Incarnation       uint64
	Node              string
}

// compare orders owners by (cluster generation, generation); equal generations
// of different incarnations compare as 0.
func (o Owner) compare(p Owner) int {
	switch {
	case o.ClusterGeneration != p.ClusterGeneration:
		if o.ClusterGeneration < p.ClusterGeneration {
			return -1
		}
		return 1
	case o.Generation != p.Generation:
		if o.Generation < p.Generation {
			return -1
		}
		return 1
	default:
		return 0
	}
}

// same reports whether o and p are one writer.
func (o Owner) same(p Owner) bool { return o.compare(p) == 0 && o.Incarnation == p.Incarnation }

func (o Owner) validate() error {
	if o.ClusterGeneration == 0 || o.Generation == 0 || o.Incarnation == 0 {
		return errcode.New(errcode.InvalidArgument, "owner needs a cluster generation, a generation and an incarnation, has %d, %d, %016x",
			o.ClusterGeneration, o.Generation, o.Incarnation)
	}
	return ValidateNode(o.Node)
}

// Entry is one object of a chain.
type Entry struct {
	Partition  broker.PartitionID
	Seq        uint64 // 1 for the first
	Owner      Owner
	Nonce      uint64 // random for each attempt
	TimeMS     int64  // the writer's clock, for people
	Previous   Hash   // of the JSON of the entry before; zero for the first
	Checkpoint uint64 // seq of the last entry with a checkpoint, this one included; 0 = none
	Skips      uint64 // how many objects before this one are void because they do not read; see torn.go
	Ops        []Op   // a checkpoint, where there is one, comes first
}

// Op is one operation: exactly one field is set.
type Op struct {
	Add        *Segment
	Replace    *Replace
	Trim       *Trim
	Gap        *Gap
	Fence      *Fence
	Checkpoint *Checkpoint
}

// Name returns the operation's name as entries spell it, "" when none is set.
func (op Op) Name() string {
	switch {
	case op.Add != nil:
		return "add"
	case op.Replace != nil:
		return "replace"
	case op.Trim != nil:
		return "trim"
	case op.Gap != nil:
		return "gap"
	case op.Fence != nil:
		return "fence"
	case op.Checkpoint != nil:
		return "checkpoint"
	default:
		return ""
	}
}

// Replace puts one segment in the place of several: the keys of Inputs are
// exactly a run of the chain's segments, none of them in a page.
type Replace struct {
	Inputs []string
	Output Segment
}

// Trim raises the chain's start. Dropped counts the segments that end at or
// below the new start and were listed before; a loader that has not read the
// page in which the new start lies needs it to count right.
type Trim struct {
	Start   int64  `json:"start"`
	Dropped Totals `json:"dropped"`
}

// Gap is a range of offsets that no segment will ever cover.
type Gap struct {
	From   int64  `json:"from"`
	Next   int64  `json:"next"`
	Reason string `json:"reason"`
}

// Fence says that a generation began: records of the generation before count
// below PreviousEnd only, its own from Start on.
type Fence struct {
	ClusterGeneration uint64
	Generation        uint32
	Incarnation       uint64
	PreviousEnd       int64
	Start             int64
}

// Totals are counts over listed segments.
type Totals struct {
	Segments int64 `json:"segments"`
	Records  int64 `json:"records"`
	Bytes    int64 `json:"bytes"`
}

func (t Totals) plus(s Segment) Totals {
	return Totals{t.Segments + 1, t.Records + s.Records, t.Bytes + s.Bytes}
}

func (t Totals) minus(u Totals) Totals {
	return Totals{t.Segments - u.Segments, t.Records - u.Records, t.Bytes - u.Bytes}
}

func (t Totals) negative() bool { return t.Segments < 0 || t.Records < 0 || t.Bytes < 0 }

// Checkpoint is the whole chain before the other operations of its entry.
type Checkpoint struct {
	Start, End int64
	Totals     Totals
	Pages      []PageRef
	Segments   []Segment // after the last page
	Gaps       []Gap
	Fences     []Fence
}

// PageRef names a page and sums up what it lists.
type PageRef struct {
	Base         int64  `json:"base"` // of the first segment
	Next         int64  `json:"next"` // of the last segment
	Totals       Totals `json:"totals"`
	MaxTimestamp int64  `json:"max_timestamp"`
	MaxAppend    int64  `json:"max_append"`
	SHA256       Hash   `json:"sha256"` // of the page's JSON
}

// Page is a run of older segments, written once.
type Page struct {
	Partition broker.PartitionID
	Segments  []Segment
}
