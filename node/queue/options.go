package queue

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Bounds and defaults of the engine.
const (
	DefaultMaxWaiters        = 65_536           // parked consume calls of a node
	DefaultMaxInFlight       = 16_384           // leases of one group on one partition
	DefaultVisibilityTimeout = 30 * time.Second // length of a lease
	MaxLease                 = 365 * 24 * time.Hour
	MaxDelay                 = 365 * 24 * time.Hour // of a nack
	MaxReserve               = 16_384               // records of one Reserve
	MaxBatch                 = 16_384               // handles of one AckMany
	MaxGroups                = 1_024                // groups of one topic
	MaxRanges                = 1_000_000            // settled ranges ahead of a cursor, before only the hole is handed out
	MaxTracked               = 1_000_000            // leased, returned and delayed records of a cursor, before fresh ones wait
)

// Options configures an Engine. The zero value works, with handles that do not
// survive it: a node sets Secret.
type Options struct {
	Now        func() time.Time      // nil = time.Now; a monotonic reading is honoured
	Secret     []byte                // HMAC key of receipt handles, the same on every node of a cluster
	Journal    Journal               // nil = nothing is staged, every LSN is 0
	MaxWaiters int                   // parked consume calls; 0 = DefaultMaxWaiters
	MaxRanges  int                   // settled ranges ahead of a cursor; 0 = MaxRanges
	MaxTracked int                   // leased, returned and delayed records of a cursor; 0 = MaxTracked
	Logger     *slog.Logger          // nil = discarded
	Registerer prometheus.Registerer // nil = metrics are kept and not exported
}

// Journal makes group operations durable.
type Journal interface {
	// Stage appends the operations of one group of one partition to the log
	// and returns their LSN. It is called under the group's lock: it must not
	// block on a disk and must not call the engine. Calls for one partition
	// are staged in call order. The slice belongs to the engine and is reused
	// after the call returns. When it fails nothing was staged, and the
	// engine refuses the operation with that error.
	Stage(p broker.PartitionID, generation uint32, group string, ops []byte) (lsn uint64, err error)
}

// PartitionConfig says what the log of a partition holds and how its records
// are leased.
type PartitionConfig struct {
	Generation        uint32
	Start             int64         // first offset that is kept
	HighWatermark     int64         // exclusive end of what may be handed out
	VisibilityTimeout time.Duration // 0 = DefaultVisibilityTimeout
	MaxInFlight       int           // leases of a group; 0 = DefaultMaxInFlight
	Gaps              [][2]int64    // half-open ranges of offsets that never hold a record
	// Replay attaches the partition without serving it: Apply, Advance, Trim
	// and Gap work, nothing is handed out, and nothing is clamped until Serve.
	Replay bool
}

func (c *PartitionConfig) withDefaults() error {
	if c.VisibilityTimeout == 0 {
		c.VisibilityTimeout = DefaultVisibilityTimeout
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = DefaultMaxInFlight
	}
	switch {
	case c.VisibilityTimeout < time.Millisecond || c.VisibilityTimeout > MaxLease:
		return errcode.New(errcode.InvalidArgument, "visibility timeout %v is not between 1 ms and %v", c.VisibilityTimeout, MaxLease)
	case c.MaxInFlight < 0:
		return errcode.New(errcode.InvalidArgument, "max in flight %d is negative; 0 means %d", c.MaxInFlight, DefaultMaxInFlight)
	case c.Start < 0 || c.HighWatermark < 0:
		return errcode.New(errcode.InvalidArgument, "start %d or high watermark %d is negative", c.Start, c.HighWatermark)
	}
	for _, g := range c.Gaps {
		if g[0] < 0 || g[1] < g[0] {
			return errcode.New(errcode.InvalidArgument, "gap [%d, %d) is not a range of offsets", g[0], g[1])
		}
	}
	return nil
}

// AnyPartition in a Request takes from whichever partition has something.
const AnyPartition = -1

// Request asks for records of a group.
type Request struct {
	Topic     broker.TopicID
	Group     string        // "" = broker.DefaultGroup
	Partition int           // AnyPartition, or the one to take from
	Max       int           // records at most; 0 = 1
	Wait      time.Duration // how long to wait for the first record; 0 = do not wait
}

// Delivery is one record leased to the caller of Reserve.
type Delivery struct {
	Partition uint32
	Offset    int64
	Attempt   uint32    // deliveries of the record to its group, this one included
	Expiry    time.Time // when the record goes back, unless settled or extended
	Handle    string    // receipt handle; what Ack, Nack and Extend take

	g      *group // whose lease it is
	expiry int64  // Expiry in microseconds since the Unix epoch: the lease's identity
}
