package cold

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Config is what a Cache needs.
type Config struct {
	FS       vfs.FS
	Dir      string // of its own; created when missing
	Store    objstore.Store
	Logger   *slog.Logger          // nil: discarded
	Registry prometheus.Registerer // nil: not registered

	MaxBytes    int64         // of chunk files, 0 = 1 GiB
	IndexBytes  int64         // of indexes in memory, 0 = 64 MiB
	AheadBytes  int64         // of read-ahead of all readers, 0 = 128 MiB
	Concurrency int           // requests in flight, 0 = 16
	Timeout     time.Duration // of one request, 0 = 30 s

	// Latency returns how late work gets to run, as seen since the call before,
	// below zero when there was none; readers yield to that. One call at a time, at most ten a second, none while
	// nobody reads. nil: there is nothing to yield to.
	Latency func() time.Duration
}

// Validate checks the fields and sets defaults.
func (c *Config) Validate() error {
	if c.FS == nil || c.Store == nil || c.Dir == "" {
		return errcode.New(errcode.InvalidArgument, "cold cache: FS, Dir and Store are needed")
	}
	if c.MaxBytes < 0 || c.IndexBytes < 0 || c.AheadBytes < 0 || c.Concurrency < 0 || c.Timeout < 0 {
		return errcode.New(errcode.InvalidArgument, "cold cache: negative bounds: %d, %d, %d bytes, concurrency %d, timeout %s",
			c.MaxBytes, c.IndexBytes, c.AheadBytes, c.Concurrency, c.Timeout)
	}
	setDefault(&c.MaxBytes, 1<<30)
	setDefault(&c.IndexBytes, 64<<20)
	setDefault(&c.AheadBytes, 128<<20)
	setDefault(&c.Concurrency, 16)
	setDefault(&c.Timeout, 30*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

const (
	// maxWrites is how many downloads may be on their way to disk, and writeBytes
	// how many bytes of them that have arrived. Above that chunks are served and not
	// kept.
	maxWrites  = 32
	writeBytes = 80 << 20
)

// Cache reads archived segments. All methods are safe for concurrent use.
type Cache struct {
	cfg     Config
	store   objstore.Store
	disk    *disk
	indexes *indexes
	metrics *metrics
	blocks  blocks

	governor *governor

	ctx     context.Context // of downloads; ended by Close
	cancel  context.CancelFunc
	slots   chan struct{} // capacity Concurrency: a token for each request in flight
	writes  chan struct{} // capacity maxWrites: a token for each download on its way to disk
	failing atomic.Bool   // the last chunk could not be written
	ahead   atomic.Int64  // bytes of read-ahead
	unsaved atomic.Int64  // bytes that have arrived and are on their way to disk

	mu struct {
		sync.Mutex
		closed  bool
		flights map[chunkID]*flight
		running sync.WaitGroup // downloads and writes; Add only while not closed, or by one that runs
	}
}

// New opens the cache with what its directory holds.
func New(cfg Config) (*Cache, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	d, err := openDisk(cfg.FS, cfg.Dir, cfg.MaxBytes)
	if err != nil {
		return nil, err
	}
	c := &Cache{
		cfg: cfg, store: cfg.Store, disk: d, indexes: newIndexes(cfg.IndexBytes),
		slots: make(chan struct{}, cfg.Concurrency), writes: make(chan struct{}, maxWrites),
	}
	c.mu.flights = make(map[chunkID]*flight)
	c.ctx, c.cancel = context.WithCancel(objstore.WithCause(context.Background(), objstore.CauseRead))
	c.governor = newGovernor(cfg.Latency)
	c.metrics = newMetrics(c, cfg.Registry)
	c.governor.metrics = c.metrics
	return c, nil
}

// Close ends downloads, writes what has arrived whole and waits. Readers that are
// still in use get Closed.
func (c *Cache) Close() error {
	c.mu.Lock()
	closed := c.mu.closed
	c.mu.closed = true
	c.mu.Unlock()
	c.cancel()
	c.mu.running.Wait()
	if !closed {
		c.metrics.close()
	}
	return nil
}

// write brings a download to disk while it lands. From when its file is listed
// that answers for its chunks; until then the flights do, so that nobody downloads
// them in between.
func (c *Cache) write(s source, first uint32, flights []*flight) {
	size := int64(0)
	for i := range flights {
		size += int64(s.length(first + uint32(i)))
	}
	err := c.disk.put(idOf(s.key, first), size, flights)
	broken := errors.Is(err, errBroken)
	for i, f := range flights {
		if <-f.done; f.err != nil || f.unsaved {
			continue // the download lets it go
		}
		if err != nil && !f.bad.Load() {
			c.metrics.unkept.Inc()
		}
		c.unsaved.Add(-int64(len(f.data)))
		c.land(idOf(s.key, first+uint32(i)), f)
		f.release()
	}
	if broken {
		return
	}
	if failed := c.failing.Swap(err != nil); err != nil && !failed { // once for a disk that stays full
		c.cfg.Logger.Warn("archived chunks are not kept on disk", "error", err)
	}
}

// Stats are numbers of a cache: what it holds, and what it has answered since it
// was opened.
type Stats struct {
	Bytes, MaxBytes int64 // of chunk files
	Hits            int64 // chunks read from disk, or from a download that another reader had begun
	Misses          int64 // chunks that were downloaded
	Downloaded      int64 // bytes that were downloaded, also what is no chunk
}

// Stats returns the cache's numbers. It does not block on IO.
func (c *Cache) Stats() Stats {
	_, bytes := c.disk.usage()
	m := c.metrics
	return Stats{Bytes: bytes, MaxBytes: c.cfg.MaxBytes, Hits: m.hits.n.Load() + m.shared.n.Load(), Misses: m.misses.n.Load(), Downloaded: m.bytes.n.Load()}
}

// Usage returns the number of chunks on disk and the bytes of their files.
func (c *Cache) Usage() (chunks int, bytes int64) { return c.disk.usage() }

// Shrink removes chunk files until about so many bytes are free, those that were
// used last excepted to the end, and returns how many were freed. Files that a
// reader has open stay. The cache grows again as it is used.
func (c *Cache) Shrink(bytes int64) int64 { return c.disk.shrink(bytes) }

// Crowded says that scans hold all the read-ahead that there may be: until some
// of them go on or end, nobody reads further ahead.
func (c *Cache) Crowded() bool { return c.ahead.Load() >= c.cfg.AheadBytes }

// Open returns a reader of the segment. It fetches the index, with one request,
// unless that is in memory. Errors: Gone, ArchiveUnavailable, Corrupt,
// UnsupportedVersion, Closed, and ctx's.
func (c *Cache) Open(ctx context.Context, seg manifest.Segment) (*Reader, error) {
	x, err := c.index(ctx, seg)
	if err != nil {
		return nil, err
	}
	return &Reader{cache: c, seg: seg, key: seg.Key(), index: x}, nil
}
