package wal

import (
	"errors"
	"log/slog"
	"maps"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Defaults of [Options].
const (
	DefaultFileSize        = 64 << 20
	DefaultMaxGroup        = 32 << 20
	DefaultMaxBytes        = 2 << 30
	DefaultPoolFiles       = 4
	DefaultAckSyncInterval = time.Second
)

// Options configures a [Log]. Zero values take the defaults named here.
type Options struct {
	// FS is the file system; it must not be wrapped in disk-health checks,
	// which forbid a write during a sync. Required.
	FS vfs.FS
	// Dir is the directory that belongs to the log alone. Required.
	Dir string
	// Incarnation is that of the data directory; a file of another one is
	// refused. Required, not 0.
	Incarnation uint64
	// FileSize is the size of one file, a multiple of 4096, at least 64 KiB.
	// 0 = 64 MiB.
	FileSize int64
	// MaxGroup bounds one group in bytes, and so one frame. 0 = the smaller of
	// 32 MiB and what fits in a file.
	MaxGroup int
	// MaxBytes is the size of all log files above which OnPressure is called.
	// 0 = 2 GiB.
	MaxBytes int64
	// PoolFiles is how many prewritten spares are kept at most. 0 = 4,
	// negative = none.
	PoolFiles int
	// TailBytes is how many of the bytes that were written last stay in memory, for
	// those who follow the log by ReadGroups and EachGroup. 0 = none.
	TailBytes int
	// AckSyncInterval bounds how long something stays written but not durable,
	// and is the distance of marks under traffic. 0 = 1 s.
	AckSyncInterval time.Duration
	// KnownDurable is the highest LSN that any checkpoint, flush or ship mark
	// proves durable. A log that ends below it is damaged.
	KnownDurable uint64
	// NextNeeded is the lowest LSN that somebody's state still needs replayed
	// (lowest applied LSN + 1). The first file must start at or below it, else
	// the log is damaged. 0 = nothing is needed.
	NextNeeded uint64
	// Holds are the readers known before the log opens and the LSN that each
	// needs next, so that nothing is recycled before they have spoken.
	Holds map[string]uint64
	// Now is the clock of marks and headers. nil = time.Now.
	Now func() time.Time
	// Logger takes what an operator should see. nil = discard.
	Logger *slog.Logger
	// Registerer takes the metrics; nil = none are registered.
	Registerer prometheus.Registerer
	// OnPressure asks the owner to make every frame up to upTo unneeded (flush,
	// checkpoint, carry) and to raise its holds. It is called from a goroutine
	// of the log, one call at a time; Close waits for a running call, so it
	// must return when the owner stops. While the log stays over its size it is
	// called again, after a second and then ever more rarely. nil = nobody is asked.
	OnPressure func(upTo uint64)
	// DiskOK says why the disk has no room for that many more bytes of spares,
	// which the log can do without. An error for 0 bytes means that spares are
	// to be given back; see Log.Reconsider. It does not block. nil = there is
	// always room.
	DiskOK func(bytes int64) error
}

// withDefaults returns a copy with every zero value replaced.
func (o Options) withDefaults() Options {
	if o.FileSize == 0 {
		o.FileSize = DefaultFileSize
	}
	if o.MaxGroup == 0 {
		o.MaxGroup = int(min(DefaultMaxGroup, max(o.FileSize-blockSize, 0)))
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.PoolFiles == 0 {
		o.PoolFiles = DefaultPoolFiles
	}
	o.PoolFiles = max(o.PoolFiles, 0)
	if o.AckSyncInterval == 0 {
		o.AckSyncInterval = DefaultAckSyncInterval
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.DiskOK == nil {
		o.DiskOK = func(int64) error { return nil }
	}
	o.Holds = maps.Clone(o.Holds)
	return o
}

// Validate reports everything that is wrong with o at once.
func (o Options) Validate() error {
	d := o.withDefaults()
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, errcode.New(errcode.InvalidArgument, format, args...))
	}
	if d.FS == nil {
		bad("wal: FS is missing")
	}
	if d.Dir == "" {
		bad("wal: Dir is empty")
	}
	if d.Incarnation == 0 {
		bad("wal: Incarnation is 0")
	}
	if d.FileSize < minFileSize || d.FileSize > maxFileSize || d.FileSize%blockSize != 0 {
		bad("wal: FileSize %d is not a multiple of %d between %d and %d", d.FileSize, blockSize, minFileSize, int64(maxFileSize))
	}
	if d.MaxGroup < blockSize || d.MaxGroup > maxGroupBytes || int64(d.MaxGroup) > d.FileSize-blockSize {
		bad("wal: MaxGroup %d is not between %d and %d, or does not fit in a file of %d", d.MaxGroup, blockSize, maxGroupBytes, d.FileSize)
	}
	if d.MaxBytes < d.FileSize {
		bad("wal: MaxBytes %d is below FileSize %d", d.MaxBytes, d.FileSize)
	}
	if d.TailBytes < 0 {
		bad("wal: TailBytes %d is negative", d.TailBytes)
	}
	if d.AckSyncInterval < 0 {
		bad("wal: AckSyncInterval %v is negative", d.AckSyncInterval)
	}
	return errors.Join(errs...)
}
