package broker

// Values of the enumerated topic settings, beside the levels of Ack.
const (
	FailoverAutomatic = "automatic"
	FailoverWait      = "wait"

	CompressionZstd = "zstd"
	CompressionNone = "none"
)

// Bounds of topic settings. Durations are milliseconds.
const (
	MinVisibilityMS = 1000
	MaxVisibilityMS = 12 * 60 * 60 * 1000
	MaxInFlight     = 1_000_000
	MaxRecordBytes  = 16 << 20
	MaxRetentionMS  = 100 * 366 * 24 * 60 * 60 * 1000 // 100 years: sums with a clock stay far from overflow
	MaxTopicBytes   = 1 << 62
)

// TopicSpec are the settings a client gives for a topic. Nil means the default
// for a new topic, and "as it is" for one that is changed.
type TopicSpec struct {
	Name                    string  `json:"name,omitempty"`
	Partitions              *uint32 `json:"partitions,omitempty"`
	RetentionMS             *int64  `json:"retention_ms,omitempty"`
	RetentionBytes          *int64  `json:"retention_bytes,omitempty"`
	LocalRetentionMS        *int64  `json:"local_retention_ms,omitempty"`
	LocalRetentionBytes     *int64  `json:"local_retention_bytes,omitempty"`
	VisibilityTimeoutMS     *int64  `json:"visibility_timeout_ms,omitempty"`
	MaxInFlightPerPartition *int64  `json:"max_in_flight_per_partition,omitempty"`
	MaxRecordBytes          *int64  `json:"max_record_bytes,omitempty"`
	DefaultAck              *Ack    `json:"default_ack,omitempty"`
	Failover                *string `json:"failover,omitempty"`    // "automatic" or "wait"
	Compression             *string `json:"compression,omitempty"` // "zstd" or "none"
}

// Check notes every setting that is given and out of its bounds. The name and
// the number of partitions are the business of who creates.
func (s *TopicSpec) Check(p *Problems) {
	p.between("retention_ms", s.RetentionMS, 0, MaxRetentionMS)
	p.between("retention_bytes", s.RetentionBytes, 0, MaxTopicBytes)
	p.between("local_retention_ms", s.LocalRetentionMS, 0, MaxRetentionMS)
	p.between("local_retention_bytes", s.LocalRetentionBytes, 0, MaxTopicBytes)
	p.between("visibility_timeout_ms", s.VisibilityTimeoutMS, MinVisibilityMS, MaxVisibilityMS)
	p.between("max_in_flight_per_partition", s.MaxInFlightPerPartition, 0, MaxInFlight)
	p.between("max_record_bytes", s.MaxRecordBytes, 1, MaxRecordBytes)
	p.oneOf("default_ack", (*string)(s.DefaultAck), string(AckAccepted), string(AckCommitted), string(AckArchived))
	p.oneOf("failover", s.Failover, FailoverAutomatic, FailoverWait)
	p.oneOf("compression", s.Compression, CompressionZstd, CompressionNone)
}

// CheckNew notes what Check does, and what is wrong with name and partitions.
func (s *TopicSpec) CheckNew(p *Problems) {
	if err := ValidateName("topic", s.Name); err != nil {
		p.Add("name", "%s", err)
	}
	if n := s.Partitions; n != nil && (*n < 1 || *n > MaxPartitions) {
		p.Add("partitions", "%d is not in 1..%d", *n, MaxPartitions)
	}
	s.Check(p)
}

// CheckChange notes what Check does, and that name and partitions cannot be
// changed.
func (s *TopicSpec) CheckChange(p *Problems) {
	if s.Name != "" {
		p.Add("name", FixedName)
	}
	if s.Partitions != nil {
		p.Add("partitions", FixedPartitions)
	}
	s.Check(p)
}

// Why a topic keeps its name and its number of partitions.
const (
	FixedName       = "a topic keeps its name, which its archive and its clients know it by; create another topic"
	FixedPartitions = "the number of partitions is fixed for ever, because the partition of a key follows from it; create another topic"
)
