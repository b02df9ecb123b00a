package broker

// Readiness is the body of /readyz.
type Readiness struct {
	Ready    bool             `json:"ready"`
	Data     bool             `json:"data"`
	Control  bool             `json:"control"`
	Degraded []string         `json:"degraded,omitempty"` // the reasons of Causes, in words
	Causes   []ReadinessCause `json:"causes,omitempty"`
}

// ReadinessCause is one thing that is not as it should be.
type ReadinessCause struct {
	Cause  string `json:"cause"`            // one of the words below
	Blocks string `json:"blocks,omitempty"` // BlocksData, BlocksControl; "": the node serves all the same
	Reason string `json:"reason"`
}

// What a cause may block.
const (
	BlocksData    = "data"
	BlocksControl = "control"
)

// The causes. Words are for programs and never change their meaning.
const (
	CauseStarting  = "starting"  // the node starts
	CauseStopping  = "stopping"  // the node stops
	CauseFenced    = "fenced"    // somebody else is this cluster or this node now
	CauseWAL       = "wal"       // the log does not take writes
	CauseDisk      = "disk"      // the disk's reserve is used
	CauseState     = "state"     // the local state does not take writes
	CauseMetadata  = "metadata"  // the metadata log does not take changes
	CausePartition = "partition" // one partition is out of service
	CauseArchive   = "archive"   // shipping or uploading fails
	CauseGarbage   = "garbage"   // nothing is deleted from the archive
	CauseRetention = "retention" // nothing is trimmed
	CauseScrub     = "scrub"     // damage that was not repaired
)

// ReadinessCauses are all of them.
func ReadinessCauses() []string {
	return []string{
		CauseStarting, CauseStopping, CauseFenced, CauseWAL, CauseDisk, CauseState, CauseMetadata,
		CausePartition, CauseArchive, CauseGarbage, CauseRetention, CauseScrub,
	}
}

// Degrade adds a cause. blocks is what does not work because of it.
func (r *Readiness) Degrade(cause, blocks, reason string) {
	switch blocks {
	case BlocksData:
		r.Data = false
	case BlocksControl:
		r.Control = false
	}
	r.Ready = r.Data && r.Control
	// Full slices: what is added never lands in somebody else's array.
	r.Degraded = append(r.Degraded[:len(r.Degraded):len(r.Degraded)], reason)
	r.Causes = append(r.Causes[:len(r.Causes):len(r.Causes)], ReadinessCause{Cause: cause, Blocks: blocks, Reason: reason})
}
