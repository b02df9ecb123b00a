package restore

import (
	"io"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/tier/objstore"
)

const (
	// An archive that got an object within aliveAge is watched for aliveWait:
	// when another one appears, its cluster is alive. The age compares two
	// machines' clocks, so it is long: a restore whose clock is ahead must not
	// take a living cluster for a dead one, and watching costs seconds.
	aliveAge  = 24 * time.Hour
	aliveWait = 3 * time.Second

	// parallel bounds the partitions whose chains are read or fenced at once.
	parallel = 32
)

// Options says what is restored and where to.
type Options struct {
	Store    objstore.Store
	Dir      string // data directory to create; must not exist, or be empty
	NodeID   string // of the restored node
	RaftAddr string // loopback host:port, port 0 = any; used while restoring only
	TakeOver bool   // continue in this archive and fence the cluster that wrote it
	Force    bool   // although the cluster seems alive

	FS     vfs.FS
	Now    func() time.Time
	Rand   io.Reader
	Logger *slog.Logger
	// Planned hears what Run is about to do, before it changes anything; an
	// error ends it. May be nil.
	Planned  func(Plan) error
	Progress func(stage string, done, total int64) // may be nil
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
	if o.Planned == nil {
		o.Planned = func(Plan) error { return nil }
	}
	if o.Progress == nil {
		o.Progress = func(string, int64, int64) {}
	}
	return o
}

// Plan says what a restore would do, before it does anything.
type Plan struct {
	Archive         string    `json:"archive"`
	ClusterID       string    `json:"cluster_id"`
	Generation      uint64    `json:"generation"`     // of the cluster that is there
	NewGeneration   uint64    `json:"new_generation"` // that the restored one will have
	Export          string    `json:"export"`         // key of the metadata that is used
	Topics          int       `json:"topics"`
	DeletedTopics   int       `json:"deleted_topics"` // that the export names and that were deleted since: not restored
	Partitions      int       `json:"partitions"`
	Segments        int       `json:"segments"`         // archived; they stay where they are
	ArchivedRecords int64     `json:"archived_records"` // in those segments
	ArchivedBytes   int64     `json:"archived_bytes"`
	WALObjects      int       `json:"wal_objects"` // shipped WAL to replay
	WALBytes        int64     `json:"wal_bytes"`
	NewestObject    time.Time `json:"newest_object"` // records accepted after this may be missing, by the store's clock
	// MayBeMissing is about how many those are: as many as the newest WAL
	// object of each node holds, which is what came in one shipping interval.
	MayBeMissing int64 `json:"may_be_missing"`
	Alive        bool  `json:"alive"` // the cluster was seen writing
	// TornEntries are the newest entries of chains that do not read and that are
	// passed: nothing rests on them, and what they would have listed is there.
	TornEntries []string `json:"torn_entries,omitempty"`
}

// Report says what a restore did.
type Report struct {
	Plan
	Dir         string `json:"dir"`
	Incarnation string `json:"incarnation"`
	Replayed
	Took time.Duration `json:"took_ns"`
}

// Replayed says what was found in shipped WAL.
type Replayed struct {
	TailRecords   int64     `json:"tail_records"` // written to local files
	TailBytes     int64     `json:"tail_bytes"`
	Frames        int64     `json:"frames"`            // that were read
	UnknownFrames int64     `json:"unknown_frames"`    // of topics that no export names; not restored
	Damaged       []string  `json:"damaged,omitempty"` // shipped WAL and state objects that do not read; what they hold stands elsewhere too
	NewestRecord  time.Time `json:"newest_record"`     // broker's time of the newest restored record; zero = none
}
