package broker

// ScrubReport says what the scrubber of a node has read again, and what it found.
type ScrubReport struct {
	Local   ScrubTier `json:"local"`   // sealed segment files on this node's disk
	Archive ScrubTier `json:"archive"` // segment objects that the chains name
	// Asked is what was asked for by hand and is not done yet.
	Asked []ScrubTopic `json:"asked"`
	// Findings are damaged copies that were not repaired: the newest hundred.
	Findings []ScrubFinding `json:"findings"`
	// Repaired are the newest that were, since the process began.
	Repaired []ScrubFinding `json:"repaired"`
	// Unrepaired counts what Findings lists, with what is left out there.
	Unrepaired int   `json:"unrepaired"`
	IntervalMS int64 `json:"interval_ms"` // in which everything is read once; 0: only what is asked for
}

// ScrubTier is one tier's present round and its last one.
type ScrubTier struct {
	Round ScrubRound `json:"round"`
	Last  ScrubRound `json:"last"` // the last complete one; started_at 0: none yet
	// LeftBytes is what the present round still has to read, as far as known.
	LeftBytes int64  `json:"left_bytes"`
	NextAt    int64  `json:"next_at"` // Unix ms of the next segment, 0: now
	Paused    string `json:"paused,omitempty"`
}

// ScrubRound counts what one round has read.
type ScrubRound struct {
	StartedAt int64 `json:"started_at"` // Unix ms, 0: it has not begun
	EndedAt   int64 `json:"ended_at,omitempty"`
	Segments  int64 `json:"segments"`
	Bytes     int64 `json:"bytes"`
	Damaged   int64 `json:"damaged"`
	Repaired  int64 `json:"repaired"`
	Unread    int64 `json:"unread"` // given up because the disk or the store did not answer; not damage
}

// ScrubTopic is a topic that was asked for.
type ScrubTopic struct {
	Topic      string `json:"topic"`
	Partitions int    `json:"partitions"` // that are left
}

// ScrubFinding is one damaged copy of a segment.
type ScrubFinding struct {
	At        int64  `json:"at"`   // Unix ms
	Tier      string `json:"tier"` // local or archive
	TopicID   string `json:"topic_id"`
	Partition uint32 `json:"partition"`
	From      int64  `json:"from"` // offsets, half open
	Next      int64  `json:"next"`
	File      string `json:"file,omitempty"` // local copy
	Key       string `json:"key,omitempty"`  // object
	What      string `json:"what"`           // what is wrong with the copy
	Done      string `json:"done"`           // what was done about it, or what to do
}
