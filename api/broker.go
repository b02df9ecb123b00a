package api

import (
	"context"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// Broker is what the HTTP plane needs of a node. Methods are safe for
// concurrent use, end with ctx, and return errors that carry a code of
// package errcode; those errors' texts go to the client as they are.
type Broker interface {
	TopicAdmin
	Producer
	Consumer
	LogSource
	Operator
}

// TopicAdmin creates, describes, changes and deletes topics.
type TopicAdmin interface {
	// CreateTopic creates the topic durably. Code Exists when the name, or a
	// twin of it in another letter case, is taken; InvalidArgument names
	// every field that is out of bounds.
	CreateTopic(ctx context.Context, spec TopicSpec) (TopicInfo, error)
	// Topic describes one topic, with statistics of its partitions.
	Topic(ctx context.Context, name string) (TopicInfo, error)
	// Topics lists up to limit topics with names greater than after, by name,
	// without partition statistics.
	Topics(ctx context.Context, after string, limit int) (topics []TopicInfo, more bool, err error)
	// SetTopic changes the settings that change names, all of them or none,
	// durably, and returns the topic as Topic does. They hold when it returns.
	// InvalidArgument names every field that is out of bounds or fixed.
	SetTopic(ctx context.Context, name string, change TopicSpec) (TopicInfo, error)
	// DeleteTopic deletes the topic and everything in it. Without force a
	// topic that still has unsettled records is refused with Conflict.
	DeleteTopic(ctx context.Context, name string, force bool) error
	// Trim raises the start of a partition's log to before, durably, and
	// returns where it begins then; it never lowers it. InvalidArgument with
	// oldest_offset and high_watermark when before is below 0 or above the
	// high watermark.
	Trim(ctx context.Context, name string, partition uint32, before int64) (oldest int64, err error)
}

// Producer appends records.
type Producer interface {
	// TopicFor returns what the HTTP plane must know of a topic before it
	// reads a body. It does not block.
	TopicFor(name string) (TopicInfo, error)
	// Produce appends the records, all or none, and returns when req.Ack
	// holds or req.Wait is over (code NotConfirmed, with the placements that
	// were assigned in Produced). The records' bytes are not kept after it
	// returns. Record timestamps of zero are stamped. Code PreconditionFailed
	// with next_offset: the log ended elsewhere than req.ExpectedOffset, and
	// nothing was appended.
	Produce(ctx context.Context, req ProduceRequest) (Produced, error)
}

// Consumer leases and settles records.
type Consumer interface {
	// Consume leases up to req.Max records, waiting up to req.Wait for the
	// first one. No messages and no error: nothing came in time.
	Consume(ctx context.Context, req ConsumeRequest) ([]Message, error)
	// Release gives leases back at once, without counting the delivery: the
	// answer did not reach the client.
	Release(topic, group string, msgs []Message)
	// Settle applies one action to each receipt handle and returns one error
	// (or nil) per handle, in order. Code Gone: the lease is over;
	// InvalidArgument: it never was a handle. A call-level error means that
	// nothing was done.
	Settle(ctx context.Context, req SettleRequest) ([]error, error)
}

// LogSource reads partitions as logs.
type LogSource interface {
	// ReadLog opens a reader at req.From. Codes: Gone with oldest_offset (and
	// high_watermark) below the start, OutOfRange with both above the high
	// watermark, Conflict with the gap's bounds strictly inside a gap,
	// ArchiveUnavailable when the bytes are in the archive and it does not
	// answer.
	ReadLog(ctx context.Context, req ReadRequest) (LogReader, error)
	// OffsetForTime returns the first offset whose record has a timestamp at
	// or after ms, or the high watermark.
	OffsetForTime(ctx context.Context, topic string, partition uint32, ms int64) (int64, error)
}

// Operator answers about the node itself.
type Operator interface {
	// Readiness says whether the node serves data and metadata, and what is
	// degraded. It does not block.
	Readiness() Readiness
	// ArchiveStatus says how far the archive is behind and what it costs, for
	// one topic or a page of them; more says that topics follow. It does not
	// block. NotFound: there is no archive, or no such topic.
	ArchiveStatus(ctx context.Context, req ArchiveStatusRequest) (status ArchiveStatus, more bool, err error)
	// Garbage says what the archive holds that nothing needs any more, as far
	// as it is known. It does not block. NotFound: there is no archive.
	Garbage(ctx context.Context) (GarbageReport, error)
	// CollectGarbage deletes what is due now, bounded, and says what is left;
	// what hinders it is in the report.
	CollectGarbage(ctx context.Context) (GarbageReport, error)
	// Scrub says what of the stored segments was read again and verified, and
	// what was found damaged. It does not block.
	Scrub(ctx context.Context) (ScrubReport, error)
	// StartScrub has a topic, or everything when topic is "", verified now, and
	// answers as Scrub without waiting for the end. NotFound: no such topic.
	StartScrub(ctx context.Context, topic string) (ScrubReport, error)
}

// The values of the interfaces above, by the names this package uses. What
// each one means stands with its definition.

type (
	// Ack is the level at which a produce is answered.
	Ack = broker.Ack
	// TopicSpec are settings of a topic, new or changed.
	TopicSpec = broker.TopicSpec
	// TopicInfo describes a topic.
	TopicInfo = broker.TopicInfo
	// PartitionStats are the numbers of a partition.
	PartitionStats = broker.PartitionStats
	// NewRecord is a record to append.
	NewRecord = broker.NewRecord
	// ProduceRequest is one produce.
	ProduceRequest = broker.ProduceRequest
	// Produced says where its records stand.
	Produced = broker.Produced
	// Placement is the run of offsets in one partition.
	Placement = broker.Placement
	// ConsumeRequest asks for leases.
	ConsumeRequest = broker.ConsumeRequest
	// Message is a delivered record.
	Message = broker.Message
	// SettleAction says what happens to leased records.
	SettleAction = broker.SettleAction
	// SettleRequest settles leases.
	SettleRequest = broker.SettleRequest
	// ReadRequest asks for records of one partition.
	ReadRequest = broker.ReadRequest
	// LogReader yields records, or stored batches, in offset order.
	LogReader = broker.LogReader
	// StoredBatch is a batch of records as it is stored.
	StoredBatch = broker.StoredBatch
	// ArchiveStatusRequest asks for topics of the archive.
	ArchiveStatusRequest = broker.ArchiveStatusRequest
	// ArchiveStatus is the body of /v1/archive.
	ArchiveStatus = broker.ArchiveStatus
	// GarbageReport is the body of /v1/archive/garbage.
	GarbageReport = broker.GarbageReport
	// ScrubReport is the body of /v1/archive/scrub.
	ScrubReport = broker.ScrubReport
	// Readiness is the body of /readyz.
	Readiness = broker.Readiness
)

// The values of Ack and SettleAction.
const (
	AckDefault   = broker.AckDefault
	AckAccepted  = broker.AckAccepted
	AckCommitted = broker.AckCommitted
	AckArchived  = broker.AckArchived
	SettleAck    = broker.SettleAck
	SettleNack   = broker.SettleNack
	SettleExtend = broker.SettleExtend
)
