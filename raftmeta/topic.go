package raftmeta

import (
	"fmt"
	"strings"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Values of the enumerated topic settings.
const (
	AckAccepted  = "accepted"
	AckCommitted = "committed"
	AckArchived  = "archived"

	FailoverAutomatic = "automatic"
	FailoverWait      = "wait"

	CompressionZstd = "zstd"
	CompressionNone = "none"
)

// Bounds and defaults of topic settings. Durations are milliseconds.
const (
	MinVisibilityMs = 1000
	MaxVisibilityMs = 12 * 60 * 60 * 1000
	MaxInFlight     = 1_000_000
	MaxRecordBytes  = 16 << 20
	MaxRetentionMs  = 100 * 366 * 24 * 60 * 60 * 1000 // 100 years: sums with a clock stay far from overflow

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
	var p problems
	if err := broker.ValidateName("topic", t.Name); err != nil {
		p.add("name", "%s", err)
	}
	p.between("partitions", int64(t.Partitions), 1, broker.MaxPartitions)
	t.TopicSettings.check(&p)
	return p.err("topic")
}

// Validate checks the settings as Topic.Validate does.
func (s TopicSettings) Validate() error {
	var p problems
	s.check(&p)
	return p.err("topic settings")
}

func (s TopicSettings) check(p *problems) {
	const anyBytes = 1 << 62
	p.between("retention_ms", s.RetentionMs, 0, MaxRetentionMs)
	p.between("retention_bytes", s.RetentionBytes, 0, anyBytes)
	p.between("local_retention_ms", s.LocalRetentionMs, 0, MaxRetentionMs)
	p.between("local_retention_bytes", s.LocalRetentionBytes, 0, anyBytes)
	p.between("visibility_timeout_ms", s.VisibilityTimeoutMs, MinVisibilityMs, MaxVisibilityMs)
	p.between("max_in_flight_per_partition", int64(s.MaxInFlightPerPartition), 0, MaxInFlight)
	p.between("max_record_bytes", s.MaxRecordBytes, 1, MaxRecordBytes)
	p.oneOf("default_ack", s.DefaultAck, AckAccepted, AckCommitted, AckArchived)
	if s.Failover != "" {
		p.oneOf("failover", s.Failover, FailoverAutomatic, FailoverWait)
	}
	p.oneOf("compression", s.Compression, CompressionZstd, CompressionNone)
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

// problems collects what is wrong, in the order of the checks.
type problems struct {
	list   []string
	fields map[string]string
}

func (p *problems) add(field, format string, args ...any) {
	msg := fmt.Sprintf(format, args...)
	if p.fields == nil {
		p.fields = make(map[string]string)
	}
	p.fields[field] = msg
	p.list = append(p.list, field+": "+msg)
}

func (p *problems) between(field string, v, low, high int64) {
	if v < low || v > high {
		p.add(field, "%d is not in %d..%d", v, low, high)
	}
}

func (p *problems) oneOf(field, v string, allowed ...string) {
	for _, a := range allowed {
		if v == a {
			return
		}
	}
	p.add(field, "%.40q is not one of %s", v, strings.Join(allowed, ", "))
}

func (p *problems) err(what string) error {
	if len(p.list) == 0 {
		return nil
	}
	return errcode.New(errcode.InvalidArgument, "%s not accepted: %s", what, strings.Join(p.list, "; ")).With("fields", p.fields)
}
