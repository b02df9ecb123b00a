package broker

import (
	"context"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// The values that the HTTP plane and a node exchange. They stand here, below
// both, so that neither knows the other.

// Ack levels of a produce, weakest first.
type Ack string

// The ack levels.
const (
	AckDefault   Ack = ""          // the topic's default_ack
	AckAccepted  Ack = "accepted"  // on stable storage of this node
	AckCommitted Ack = "committed" // durable and visible at the owner
	AckArchived  Ack = "archived"  // in the object store, with all that a restore needs
)

// TopicInfo describes one topic.
type TopicInfo struct {
	Name                    string           `json:"name"`
	ID                      TopicID          `json:"id"`
	Partitions              uint32           `json:"partitions"`
	CreatedAt               int64            `json:"created_at"` // seconds since the Unix epoch
	RetentionMS             int64            `json:"retention_ms"`
	RetentionBytes          int64            `json:"retention_bytes"`
	LocalRetentionMS        int64            `json:"local_retention_ms"`
	LocalRetentionBytes     int64            `json:"local_retention_bytes"`
	VisibilityTimeoutMS     int64            `json:"visibility_timeout_ms"`
	MaxInFlightPerPartition int64            `json:"max_in_flight_per_partition"`
	MaxRecordBytes          int64            `json:"max_record_bytes"`
	DefaultAck              Ack              `json:"default_ack"`
	Failover                string           `json:"failover"`
	Compression             string           `json:"compression"`
	PartitionStats          []PartitionStats `json:"partition_stats,omitempty"`
}

// PartitionStats are the numbers of one partition. Sizes are stored bytes.
type PartitionStats struct {
	Index           uint32 `json:"index"`
	OwnerNode       string `json:"owner_node"`
	Generation      uint32 `json:"generation"`
	OldestOffset    int64  `json:"oldest_offset"`
	NextOffset      int64  `json:"next_offset"` // of the next record to be assigned
	HighWatermark   int64  `json:"high_watermark"`
	ArchivedOffset  int64  `json:"archived_offset"` // exclusive end of what the chain holds
	SizeBytes       int64  `json:"size_bytes"`
	LocalBytes      int64  `json:"local_bytes"`
	ArchivedBytes   int64  `json:"archived_bytes"`
	Segments        int    `json:"segments"`
	OldestSegmentAt int64  `json:"oldest_segment_at,omitempty"` // seconds since the Unix epoch
	Status          string `json:"status"`                      // "serving", or why not
}

// NewRecord is one record to append. Partition -1 lets the broker choose: by
// key, else sticky round-robin.
type NewRecord struct {
	Partition int32
	Key       []byte // nil: no key
	Value     []byte
	Headers   []Header
}

// ProduceRequest is one produce call.
type ProduceRequest struct {
	Topic   string
	Records []NewRecord
	Ack     Ack
	Wait    time.Duration // for committed and archived; 0 = the broker's default
	// Encoded is a batch that a client encoded, in place of Records.
	Encoded *EncodedBatch
	// ExpectedOffset is where the records, which all name the same partition, have
	// to begin: else nothing is appended. Nil: wherever the log ends.
	ExpectedOffset *int64
}

// CheckExpected refuses an expected offset of records that do not all name one
// partition: each counts offsets of its own, so it would be a question of luck.
func (r *ProduceRequest) CheckExpected() error {
	if r.ExpectedOffset == nil || r.Encoded != nil {
		return nil
	}
	for i := range r.Records {
		at := r.Records[i].Partition
		switch {
		case at < 0:
			return errcode.New(errcode.InvalidArgument, "message %d: it names no partition, and an expected offset is one of the partition that all messages name; nothing was stored", i).With("message", i)
		case at != r.Records[0].Partition:
			return errcode.New(errcode.InvalidArgument, "message %d: it goes to partition %d, message 0 to partition %d, and an expected offset is one of a single partition; nothing was stored", i, at, r.Records[0].Partition).With("message", i)
		}
	}
	return nil
}

// EncodedBatch is one batch of records as a Kafka client encodes them, to be
// stored as it is.
type EncodedBatch struct {
	Data      []byte
	Partition uint32
	Bounds    RecordBounds
}

// RecordBounds are the bounds of a batch and of each record in it. Value, Key,
// HeaderBytes (of one record) and Decoded (of all records, with lengths and offsets) are bytes.
type RecordBounds struct {
	Records, Value, Key, Headers, HeaderBytes, Decoded int
}

// Produced says where the records stand, by partition.
type Produced struct {
	Topic      string
	Placements []Placement
	Archived   bool
	Ack        Ack // the level that was asked for, or the topic's default
}

// Placement is the run of offsets that a produce got in one partition.
type Placement struct {
	Partition   uint32 `json:"partition"`
	FirstOffset int64  `json:"first_offset"` // -1: not assigned yet, another node owns the partition
	LastOffset  int64  `json:"last_offset"`
	Count       int    `json:"count"`
	TimestampMS int64  `json:"-"`
	Generation  uint32 `json:"-"`
}

// ConsumeRequest asks for leases.
type ConsumeRequest struct {
	Topic     string
	Group     string
	Partition int32 // -1: any
	Max       int
	MaxBytes  int64 // of keys and values together; the first record always comes; 0: no bound
	Wait      time.Duration
}

// Message is one delivered record.
type Message struct {
	Record
	Partition uint32
	Attempt   uint32
	Handle    string
}

// SettleAction says what happens to leased records.
type SettleAction string

// The settle actions.
const (
	SettleAck    SettleAction = "ack"
	SettleNack   SettleAction = "nack"
	SettleExtend SettleAction = "extend"
)

// SettleRequest settles leases of one group.
type SettleRequest struct {
	Topic   string
	Group   string
	Action  SettleAction
	Handles []string
	For     time.Duration // extend: from now; 0 = the topic's visibility timeout
	Delay   time.Duration // nack: hidden this long
}

// ReadRequest asks for records of one partition from From on.
type ReadRequest struct {
	Topic     string
	Partition uint32
	From      int64 // -1: the oldest offset
	To        int64 // exclusive; -1: the high watermark when the reader opens
	Follow    bool  // do not end at the high watermark, only at To
}

// LogReader yields a log in offset order, decoded or as it is stored. It is
// not safe for concurrent use.
type LogReader interface {
	// Next returns the next run of records, at least one, valid until the
	// next call of a method. io.EOF: the end that the request named is
	// reached. A reader that follows and stands at the high watermark returns
	// no records and no error: call Wait.
	Next(ctx context.Context) ([]Record, error)
	// NextBatches is Next for whole batches as they are stored. The first one
	// holds the offset at which the reader stands, or is the first one after
	// it. So batches may begin below that and end above To; they are below the
	// high watermark.
	NextBatches(ctx context.Context) ([]StoredBatch, error)
	// Wait waits at the high watermark until there is a record at or after
	// ResumeOffset, for at most so long; 0 stands for no bound. more is false
	// when that time was over first. A reader that does not follow and has no
	// To then reads up to the high watermark of that moment; one with To does
	// not wait. While it waits a reader holds little memory.
	Wait(ctx context.Context, most time.Duration) (more bool, err error)
	// ResumeOffset is the offset to read from to go on after the last record
	// that was returned, or where the reader begins; never a gap's start.
	ResumeOffset() int64
	// Bounds are the partition's oldest offset and high watermark now.
	Bounds() (oldest, highWatermark int64)
	Close() error
}

// StoredBatch is one batch of records as it is stored: a Kafka RecordBatch v2
// whose checksum has been verified.
type StoredBatch struct {
	Bytes   []byte
	Records int
	Resume  int64 // where to read on: behind it, or at To when that is lower; never a gap's start
}
