package bucket

import (
	"fmt"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// What is the kind of a finding.
type What string

// Kinds of findings. The first group are problems: data cannot be read, or a
// rule is broken. The second are notes: what a running or killed cluster leaves
// behind, or what nothing names.
const (
	ChainBroken   What = "chain broken"   // an entry is missing, damaged, or contradicts the ones before
	PageBroken    What = "page broken"    // a page that the chain names is missing or another one
	Hole          What = "hole"           // offsets that neither a segment nor a gap covers
	Overlap       What = "overlap"        // offsets that two segments cover
	ObjectMissing What = "object missing" // a segment that the chain names is not there
	ObjectSize    What = "object size"    // it has another size than the chain says
	ObjectCorrupt What = "object corrupt" // its content does not verify, or is not what the chain says
	WALHole       What = "WAL hole"       // LSNs between two shipped objects are missing
	WALConflict   What = "WAL conflict"   // two objects hold other frames under one LSN
	WALCorrupt    What = "WAL corrupt"
	StateCorrupt  What = "state corrupt"
	ClaimCorrupt  What = "claim corrupt"  // a cluster claim, OPEN or FENCE
	ExportCorrupt What = "export corrupt" // a metadata export
	NoExport      What = "no export"      // there are claims and topics, but no metadata
	Unreadable    What = "unreadable"     // the store did not answer; nothing is known

	Orphan     What = "orphan"      // a segment or page that the chain does not name
	Leftover   What = "leftover"    // an object of a deleted topic
	UnknownKey What = "unknown key" // not part of the layout
	VoidEntry  What = "void entry"  // written by a former owner, never read
	TornEntry  What = "torn entry"  // the store kept a part of it; the entry after it skips it
	NotOpened  What = "not opened"  // shipped WAL without the OPEN object
)

// Note says whether the finding is no problem.
func (w What) Note() bool {
	switch w {
	case Orphan, Leftover, UnknownKey, VoidEntry, TornEntry, NotOpened:
		return true
	}
	return false
}

// Finding is one thing that verify has to say.
type Finding struct {
	What      What
	Key       string             // the object that it is about, may be empty
	Partition broker.PartitionID // zero when it is about none
	From      int64              // offsets or LSNs, half open; 0, 0 when it is about none
	Next      int64
	Detail    string
}

// String is one line.
func (f Finding) String() string {
	s := string(f.What)
	if f.Key != "" {
		s += " " + f.Key
	}
	if f.Next > f.From {
		s += fmt.Sprintf(" [%d, %d)", f.From, f.Next)
	}
	if f.Detail != "" {
		s += ": " + f.Detail
	}
	return s
}

// Summary counts what verify has looked at.
type Summary struct {
	Topics     int
	Partitions int
	Entries    int
	Segments   manifest.Totals // that chains name
	Orphans    int             // objects that nothing names
	OrphanSize int64           // bytes of those
	WALObjects int
	WALBytes   int64
	States     int
	Exports    int
	Deep       int64 // bytes whose checksums were computed
	Problems   int
	Notes      int
}
