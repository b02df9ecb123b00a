package repair

import (
	"io"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Options say which directory is repaired, and with what.
type Options struct {
	Dir   string
	Store objstore.Store // the archive, nil = it is not asked

	FS       vfs.FS // nil = the operating system's
	RaftAddr string // loopback host:port for the metadata plane meanwhile; "" = any port
	Now      func() time.Time
	Rand     io.Reader // nil = crypto/rand
	Logger   *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.RaftAddr == "" {
		o.RaftAddr = "127.0.0.1:0"
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Action is what a repair does.
type Action string

// Actions.
const (
	Nothing Action = "nothing" // recovery accepts the log as it is
	Refill  Action = "refill"  // the archive has all that is missing
	Rebuild Action = "rebuild" // frames are lost: new incarnation, new generations
	Resume  Action = "resume"  // an interrupted rebuild has only to be put in place
)

// Plan says what a repair would do.
type Plan struct {
	Dir         string      `json:"dir"`
	Node        string      `json:"node"`
	Incarnation string      `json:"incarnation"`
	Action      Action      `json:"action"`
	FirstLSN    uint64      `json:"first_lsn"` // of what is in the log
	NextLSN     uint64      `json:"next_lsn"`
	Frames      uint64      `json:"frames"` // that are there, filled ones included
	Damage      []Damage    `json:"damage"`
	Filled      []LSNs      `json:"filled"` // holes that the archive fills
	Lost        []LSNs      `json:"lost"`   // frames that are nowhere
	Partitions  []Partition `json:"partitions,omitempty"`
	Archive     string      `json:"archive,omitempty"` // that was asked
	// UsesArchive: the node ships into one, so asking it may fill holes.
	UsesArchive bool     `json:"uses_archive"`
	Advice      []string `json:"advice"`
}

// Damage is one place that does not verify.
type Damage struct {
	File     string `json:"file"`
	Position int64  `json:"position"`
	From     uint64 `json:"from_lsn"`
	Next     uint64 `json:"next_lsn"` // half-open; equal when no frame is known to be missing
	Open     bool   `json:"end_unknown,omitempty"`
	Why      string `json:"why"`
}

// LSNs is a half-open range. Open: it may have gone on behind its end.
type LSNs struct {
	From uint64 `json:"from_lsn"`
	Next uint64 `json:"next_lsn"`
	Open bool   `json:"end_unknown,omitempty"`
}

// Partition is what a rebuild means for one partition.
type Partition struct {
	Topic      string     `json:"topic"` // name
	ID         string     `json:"id"`
	Partition  uint32     `json:"partition"`
	End        int64      `json:"end"`             // exclusive end of the records that are there
	FromLog    int64      `json:"records_of_log"`  // records that only the log has, and that survive
	Lost       [][2]int64 `json:"lost,omitempty"`  // half-open ranges of offsets, known by their neighbours
	EndUnknown bool       `json:"end_unknown"`     // records above End may be lost too
	Generation uint32     `json:"generation"`      // that it gets
	Start      int64      `json:"start"`           // first offset that it gives out then
	AcksLost   bool       `json:"acks_maybe_lost"` // acks, too: some records may be delivered again
}

// Report says what a repair did.
type Report struct {
	Plan
	NewIncarnation string        `json:"new_incarnation,omitempty"`
	Kept           string        `json:"kept,omitempty"` // where the damaged files are now
	Took           time.Duration `json:"took_ns"`
}
