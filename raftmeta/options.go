package raftmeta

import (
	"crypto/rand"
	"io"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Options configure Open. Dir, NodeID and BindAddr are required.
type Options struct {
	Dir      string // created when missing; its parent has to exist or be creatable
	NodeID   string // who this node is; fixed for the life of Dir
	BindAddr string // loopback host:port for Raft; port 0 takes a free one

	// Bootstrap says what to put into an empty Dir; nil creates a cluster with
	// a random id and salt. A Dir that holds a cluster is opened as it is.
	Bootstrap *Bootstrap

	FS         vfs.FS                // Pebble uses it: vfs.Default (nil) or a wrapper of it; snapshots are on the OS anyway
	Logger     *slog.Logger          // nil: nothing is logged
	Registerer prometheus.Registerer // nil: no metrics
	Now        func() time.Time      // nil: time.Now
	Rand       io.Reader             // nil: crypto/rand

	// OnFatal hears, once, of the error after which the plane takes no changes
	// until a restart. It must return soon and must not call Close. nil: only logged.
	OnFatal func(error)

	SnapshotThreshold uint64        // entries after which a snapshot is taken; 0: 4096
	SnapshotInterval  time.Duration // and the time after which, if anything came; 0: 120 s
	TrailingLogs      uint64        // entries kept for followers below the snapshot; 0 keeps none
}

// Bootstrap is the first content of an empty directory.
type Bootstrap struct {
	// Adopt is an export (see ParseExport) to begin with: a restored cluster.
	// nil begins with nothing.
	Adopt []byte
	// Generation is the cluster generation of the takeover, above that of the
	// export. It is used with Adopt only; a new cluster has generation 1.
	Generation uint64
}

const (
	defaultSnapshotThreshold = 4096
	defaultSnapshotInterval  = 120 * time.Second
)

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Logger = o.Logger.With("plane", "metadata")
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	if o.SnapshotThreshold == 0 {
		o.SnapshotThreshold = defaultSnapshotThreshold
	}
	if o.SnapshotInterval == 0 {
		o.SnapshotInterval = defaultSnapshotInterval
	}
	return o
}

// Validate reports every bad option at once.
func (o Options) Validate() error {
	var p broker.Problems
	if o.Dir == "" {
		p.Add("dir", "is empty")
	}
	if err := broker.ValidateName("node", o.NodeID); err != nil {
		p.Add("node_id", "%s", err)
	}
	if o.BindAddr == "" {
		p.Add("bind_addr", "is empty; 127.0.0.1:0 takes a free port")
	}
	if o.SnapshotInterval < 0 {
		p.Add("snapshot_interval", "%s is negative", o.SnapshotInterval)
	}
	if o.TrailingLogs > 1<<20 {
		p.Add("trailing_logs", "%d is above %d", o.TrailingLogs, 1<<20)
	}
	if b := o.Bootstrap; b != nil && b.Adopt != nil {
		if s, err := ParseExport(b.Adopt); err != nil {
			p.Add("bootstrap", "%s", err)
		} else if b.Generation <= s.cluster.Generation {
			p.Add("bootstrap", "cluster generation %d is not above %d, the generation of the export", b.Generation, s.cluster.Generation)
		}
	}
	return p.Err("metadata options")
}

// random returns a random u64 that is not zero.
func random(r io.Reader) (uint64, error) {
	var b [8]byte
	for {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return 0, errcode.Wrap(errcode.Internal, err, "read random bytes")
		}
		v := uint64(0)
		for _, x := range b {
			v = v<<8 | uint64(x)
		}
		if v != 0 {
			return v, nil
		}
	}
}
