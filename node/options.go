package node

import (
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Options configures a node. Zero values take the defaults of the packages
// that they configure.
type Options struct {
	Dir      string // data directory; required
	NodeID   string // fixed for the life of the directory; required
	RaftAddr string // loopback host:port, port 0 = any; required
	HTTPAddr string // as others reach it; stands in the metadata

	// Archive is the object store, nil = none: then nothing is archived and
	// ack=archived is refused. The node does not close it.
	Archive objstore.Store

	WALInterval   time.Duration // between shipped objects
	StateInterval time.Duration // between state objects
	WALMaxBytes   int64
	WALFileSize   int64
	SegmentBytes  int64
	SealAge       time.Duration
	SealMinBytes  int64
	UploadQueue   int   // segments that may wait for upload at once, others wait unqueued; 0 = 65,536
	SealLogBytes  int64 // shipped log that an early seal must let go of; 0 = 256 MiB
	FlushBytes    int64
	MemoryBudget  int64
	CacheBytes    int64 // of archived chunks on local disk
	// What leaves the archive: the time between the end of an object's use and
	// its deletion, between two turns of the collector, how far back the shipped
	// log stays beyond what a restore of the newest needs, and between two looks
	// for orphans of one partition. 0 = 1 h, 5 min, 1 h, 24 h.
	GarbageGrace    time.Duration
	GarbageInterval time.Duration
	PITRWindow      time.Duration
	OrphanInterval  time.Duration
	// MergeInterval is the time between two looks for small archived segments to
	// merge, 0 = 5 min, negative = they are not merged. MergeMinSegments is how many
	// adjacent ones it takes at least, 0 = 8.
	MergeInterval    time.Duration
	MergeMinSegments int
	// RetentionInterval is the time between two looks at what may go.
	RetentionInterval time.Duration
	// ScrubInterval is the time in which everything that is stored, here and in
	// the archive, is read again once and verified. 0 = only what is asked for.
	ScrubInterval time.Duration
	// DiskReserve is the free space below which produce is refused until it
	// is there again. 0 = 5 % of the disk, at least 1 GiB.
	DiskReserve int64
	// StartTimeout bounds how long a start waits for the archive to say whose
	// it is. When it does not answer the node starts without it. 0 = 5 s.
	StartTimeout time.Duration

	// OnProgress hears, during Open, what it does now, in words. It must not
	// block. nil = nobody listens.
	OnProgress func(text string)

	FS         vfs.FS // nil = the operating system's
	Now        func() time.Time
	Elapsed    func() time.Duration // a monotonic clock, nil = the system's
	Rand       io.Reader            // nil = crypto/rand
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Validate reports every bad option at once.
func (o *Options) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, errcode.New(errcode.InvalidArgument, format, args...))
		}
	}
	check(o.Dir != "", "data directory is not given: set --data-dir")
	if o.NodeID == "" {
		check(false, "node id is empty: set --node-id")
	} else if err := manifest.ValidateNode(o.NodeID); err != nil {
		errs = append(errs, err)
	}
	check(o.RaftAddr != "", "raft address is empty: set --raft-addr")
	check(o.SegmentBytes == 0 || o.SegmentBytes >= 64<<10 && o.SegmentBytes <= 1<<30, "segment size %d is not between 64 KiB and 1 GiB", o.SegmentBytes)
	check(o.WALInterval >= 0, "WAL interval %s is negative", o.WALInterval)
	check(o.GarbageGrace >= 0 && o.GarbageInterval >= 0 && o.PITRWindow >= 0 && o.OrphanInterval >= 0, "a time of the collection of garbage is negative: grace %s, interval %s, window %s, orphan interval %s",
		o.GarbageGrace, o.GarbageInterval, o.PITRWindow, o.OrphanInterval)
	check(o.RetentionInterval >= 0, "retention interval %s is negative", o.RetentionInterval)
	check(o.ScrubInterval >= 0, "scrub interval %s is negative", o.ScrubInterval)
	check(o.DiskReserve >= 0, "disk reserve %d is negative", o.DiskReserve)
	return errors.Join(errs...)
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.OnProgress == nil {
		o.OnProgress = func(string) {}
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = 5 * time.Second
	}
	if o.MemoryBudget == 0 {
		o.MemoryBudget = DefaultMemoryBudget()
	}
	return o
}
