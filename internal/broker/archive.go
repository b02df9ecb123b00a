package broker

// ArchiveStatusRequest asks for one topic, or for a page of all of them.
type ArchiveStatusRequest struct {
	Topic string // "": all
	After string // of a page: only topics with greater names
	Limit int    // of a page: topics
}

// ArchiveStatus says how far the archive is behind the node, and what it costs.
// Counts are since the process started.
type ArchiveStatus struct {
	// Lag is that of all topics together, whichever of them are listed.
	Lag ArchiveLag `json:"lag"`
	// RPOSeconds is the age of the oldest durable write that is not in the
	// archive in any form: what a lost machine would cost now. 0: nothing.
	RPOSeconds float64        `json:"rpo_seconds"`
	Outage     *ArchiveOutage `json:"outage,omitempty"` // nil: there is none
	// AnsweredAt is when the archive last did what the shipping of the log asked
	// of it, in Unix ms; 0: not yet.
	AnsweredAt    int64          `json:"answered_at"`
	Cache         ArchiveCache   `json:"cache"`
	Cost          ArchiveCost    `json:"cost"`
	Topics        []ArchiveTopic `json:"topics"`
	NextPageToken string         `json:"next_page_token,omitempty"`
}

// ArchiveLag is what stands in no archived segment yet. It is in the shipped log,
// but for the RPO.
type ArchiveLag struct {
	Records int64   `json:"records"`
	Bytes   int64   `json:"bytes"`   // as they are stored
	Seconds float64 `json:"seconds"` // age of the oldest of them
}

// ArchiveOutage says that the archive does not do what it should.
type ArchiveOutage struct {
	Since     int64  `json:"since"` // in Unix ms
	LastError string `json:"last_error"`
}

// ArchiveCache are numbers of the cache of archived records on local disk.
type ArchiveCache struct {
	Bytes      int64   `json:"bytes"`
	MaxBytes   int64   `json:"max_bytes"`
	Hits       int64   `json:"hits"`      // chunks
	Misses     int64   `json:"misses"`    // chunks
	HitRatio   float64 `json:"hit_ratio"` // of both; 0 before the first
	Downloaded int64   `json:"downloaded_bytes"`
}

// ArchiveCost is what has been asked of the store.
type ArchiveCost struct {
	UptimeSeconds float64         `json:"uptime_seconds"` // what the counts are of
	Dollars       float64         `json:"dollars"`        // of requests, at list prices of S3; no storage, no traffic
	SentBytes     int64           `json:"sent_bytes"`
	ReceivedBytes int64           `json:"received_bytes"`
	Causes        []ArchiveDemand `json:"causes"`
}

// ArchiveDemand is the share of one cause.
type ArchiveDemand struct {
	Cause         string           `json:"cause"`
	Requests      map[string]int64 `json:"requests"` // by operation
	Dollars       float64          `json:"dollars"`
	SentBytes     int64            `json:"sent_bytes"`
	ReceivedBytes int64            `json:"received_bytes"`
}

// ArchiveTopic is one topic in the archive.
type ArchiveTopic struct {
	Topic         string     `json:"topic"`
	Lag           ArchiveLag `json:"lag"`
	ArchivedBytes int64      `json:"archived_bytes"` // of the chains that were loaded since the start
	// Partitions are listed when one topic was asked for.
	Partitions []ArchivePartition `json:"partitions,omitempty"`
}

// ArchivePartition is one partition in the archive.
type ArchivePartition struct {
	Partition      uint32     `json:"partition"`
	ArchivedOffset int64      `json:"archived_offset"` // exclusive end of what archived segments hold
	HighWatermark  int64      `json:"high_watermark"`
	Lag            ArchiveLag `json:"lag"`
	ArchivedBytes  int64      `json:"archived_bytes"`
}
