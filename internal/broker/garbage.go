package broker

// GarbageReport says what the archive holds that nothing needs any more, and
// what was deleted since the process started.
type GarbageReport struct {
	Causes []GarbageCause `json:"causes"`
	// Paused is why nothing is deleted now, "" when nothing hinders it.
	Paused string `json:"paused,omitempty"`
	// RetryInMS is how long a pause after a failure lasts still.
	RetryInMS int64 `json:"retry_in_ms,omitempty"`
	// LastTurnAt is the time of the last turn in Unix seconds, 0 = none yet.
	LastTurnAt int64 `json:"last_turn_at,omitempty"`
	GraceMS    int64 `json:"grace_ms"`
	WindowMS   int64 `json:"window_ms"`
}

// GarbageCause is one reason for which objects go.
type GarbageCause struct {
	Cause   string `json:"cause"`
	Why     string `json:"why"`
	Waiting int64  `json:"waiting_objects"` // known to go, now or after their grace
	Bytes   int64  `json:"waiting_bytes"`
	// OldestMS is the age of the oldest of those, since it was found.
	OldestMS int64 `json:"oldest_ms,omitempty"`
	// Holds are what keeps some of them, at most 8.
	Holds        []string `json:"holds,omitempty"`
	Deleted      int64    `json:"deleted_objects"` // since the start of the process
	DeletedBytes int64    `json:"deleted_bytes"`
}
