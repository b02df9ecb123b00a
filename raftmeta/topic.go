package raftmeta

import (
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Values of the enumerated topic settings.
const (
	AckAccepted  = string(broker.AckAccepted)
	AckCommitted = string(broker.AckCommitted)
	AckArchived  = string(broker.AckArchived)

	FailoverAutomatic = broker.FailoverAutomatic
	FailoverWait      = broker.FailoverWait

	CompressionZstd = broker.CompressionZstd
	CompressionNone = broker.CompressionNone
)

// Bounds and defaults of topic settings. Durations are milliseconds.
const (
	MinVisibilityMs = broker.MinVisibilityMS
	MaxVisibilityMs = broker.MaxVisibilityMS
	MaxInFlight     = broker.MaxInFlight
	MaxRecordBytes  = broker.MaxRecordBytes
	MaxRetentionMs  = broker.MaxRetentionMS

	defaultRetentionMs      = 7 * 24 * 60 * 60 * 1000
	defaultLocalRetentionMs = 24 * 60 * 60 * 1000
	defaultVisibilityMs     = 30_000
	defaultMaxRecordBytes   = 1 << 20
)

// TopicSettings is the part of a topic that can be changed. JSON names are
// those of the HTTP API.
type TopicSettings struct {
	RetentionMs             int64  `json:"retention_ms"`                // total, by append time; 0 = for ever
	RetentionBytes          int64  `json:"retention_bytes"`             // total per partition; 0 = no bound
	LocalRetentionMs        int64  `json:"local_retention_ms"`          // after upload; 0 = no bound by age
	LocalRetentionBytes     int64  `json:"local_retention_bytes"`       // after upload, per partition; 0 = no bound by size
	VisibilityTimeoutMs     int64  `json:"visibility_timeout_ms"`       // length of a lease
	MaxInFlightPerPartition uint32 `json:"max_in_flight_per_partition"` // leases of one group; 0 = the node's own bound
	MaxRecordBytes          int64  `json:"max_record_bytes"`
	DefaultAck              string `json:"default_ack"` // accepted, committed, archived
	Failover                string `json:"failover"`    // automatic, wait
	Compression             string `json:"compression"` // zstd, none
}

// Topic is a named set of partitions and its settings.
type Topic struct {
	Name       string         `json:"name"`
	ID         broker.TopicID `json:"id"`
	Partitions uint32         `json:"partitions"`
	TopicSettings
	CreatedMs int64 `json:"created_ms"`

	// ChangedIndex is the raft index of the last change of the topic or of one
	// of its assignments. An export of that index or above includes it.
	ChangedIndex uint64 `json:"changed_index"`
}

// DefaultTopic returns a topic of that name with every setting at its default:
// what a create request starts from before its own fields are laid over it.
// Failover is left empty: CreateTopic derives it from DefaultAck.
func DefaultTopic(name string) Topic {
	return Topic{Name: name, Partitions: broker.DefaultPartition, TopicSettings: TopicSettings{
		RetentionMs:         defaultRetentionMs,
		LocalRetentionMs:    defaultLocalRetentionMs,
		VisibilityTimeoutMs: defaultVisibilityMs,
		MaxRecordBytes:      defaultMaxRecordBytes,
		DefaultAck:          AckAccepted,
		Compression:         CompressionZstd,
	}}
}

// resolve fills the one setting whose default depends on another: a topic that
// answers only when archived loses nothing by failing over on its own.
func (s *TopicSettings) resolve() {
	if s.Failover != "" {
		return
	}
	s.Failover = FailoverWait
	if s.DefaultAck == AckArchived {
		s.Failover = FailoverAutomatic
	}
}

// Validate checks name, partition count and settings, and reports every bad
// field at once: the error has code invalid_argument and a fact "fields", a
// map from field to what is wrong with it. An empty Failover is accepted.
func (t Topic) Validate() error {
	var p broker.Problems
	spec := t.TopicSettings.spec()
	spec.Name, spec.Partitions = t.Name, &t.Partitions
	spec.CheckNew(&p)
	return p.Err("topic")
}

// Validate checks the settings as Topic.Validate does.
func (s TopicSettings) Validate() error {
	var p broker.Problems
	spec := s.spec()
	spec.Check(&p)
	return p.Err("topic settings")
}

// spec is what a client would say to get the settings. An empty Failover is
// left out.
func (s *TopicSettings) spec() broker.TopicSpec {
	ack, inFlight := broker.Ack(s.DefaultAck), int64(s.MaxInFlightPerPartition)
	spec := broker.TopicSpec{
		RetentionMS: &s.RetentionMs, RetentionBytes: &s.RetentionBytes,
		LocalRetentionMS: &s.LocalRetentionMs, LocalRetentionBytes: &s.LocalRetentionBytes,
		VisibilityTimeoutMS: &s.VisibilityTimeoutMs, MaxInFlightPerPartition: &inFlight, MaxRecordBytes: &s.MaxRecordBytes,
		DefaultAck: &ack, Compression: &s.Compression,
	}
	if s.Failover != "" {
		spec.Failover = &s.Failover
	}
	return spec
}

// With returns the settings with those of a client laid over them. The client's
// are within their bounds.
func (s TopicSettings) With(spec *broker.TopicSpec) TopicSettings {
	lay(&s.RetentionMs, spec.RetentionMS)
	lay(&s.RetentionBytes, spec.RetentionBytes)
	lay(&s.LocalRetentionMs, spec.LocalRetentionMS)
	lay(&s.LocalRetentionBytes, spec.LocalRetentionBytes)
	lay(&s.VisibilityTimeoutMs, spec.VisibilityTimeoutMS)
	lay(&s.MaxRecordBytes, spec.MaxRecordBytes)
	lay(&s.DefaultAck, (*string)(spec.DefaultAck))
	lay(&s.Failover, spec.Failover)
	lay(&s.Compression, spec.Compression)
	if v := spec.MaxInFlightPerPartition; v != nil {
		s.MaxInFlightPerPartition = uint32(*v)
	}
	return s
}

// lay gives a field the value that was given, if one was.
func lay[T any](field *T, value *T) {
	if value != nil {
		*field = *value
	}
}

// validate checks a topic that stands in a state.
func (t Topic) validate() error {
	if t.ID == 0 {
		return errcode.New(errcode.InvalidArgument, "topic %.40q has id 0; ids are random and not zero", t.Name)
	}
	if t.Failover == "" {
		return errcode.New(errcode.InvalidArgument, "topic %.40q has no failover setting", t.Name)
	}
	return t.Validate()
}
