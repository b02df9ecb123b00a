package wal

import (
	"context"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Log is an open write-ahead log. All methods are safe for concurrent use.
type Log struct{}

// RecoveryInfo says what Open found and did.
type RecoveryInfo struct {
	Files      int    // log files found
	Frames     uint64 // frames replayed, marks included
	Bytes      int64  // bytes of their groups
	Durable    uint64 // highest LSN proven durable before anything was rewritten
	Rewritten  uint64 // frames above it that were made durable again
	Next       uint64 // LSN of the next frame
	TornFile   string // file whose tail was cut, "" = none
	TornAt     int64  // position of the cut
	LastMarkMs uint64 // time of the last mark, 0 = none
}

// Stats is a snapshot of the log's state.
type Stats struct {
	Files      int   // log files, the current one included
	Bytes      int64 // their size on disk
	Spares     int   // prewritten files waiting for use
	SpareBytes int64
	Oldest     uint64 // LSN of the oldest frame on disk
	Next       uint64 // LSN of the next frame
	Written    uint64
	Durable    uint64
	LowWater   uint64 // lowest hold, 0 = nobody holds
	LastMark   uint64 // LSN of the last mark
}

// Slot is a reserved place in the log.
type Slot struct {
	LSN  uint64
	Body []byte // to be filled before Done; it belongs to the caller until then
}

// Want is one frame of a [Log.ReserveAll].
type Want struct {
	Kind Kind
	Size int
}

// GroupRun is a run of durable groups of one file.
type GroupRun struct {
	Incarnation, Salt uint64
	First, Next       uint64   // LSNs, half-open; equal when nothing is there yet
	Groups            [][]byte // header and frames, without padding; owned by the caller
}

var errUnbuilt = errcode.New(errcode.Unavailable, "wal: not usable in this build")

// Open recovers the log.
func Open(o Options, replay func(Frame) error) (*Log, RecoveryInfo, error) {
	return nil, RecoveryInfo{}, errUnbuilt
}
func (l *Log) Reserve(kind Kind, n int) (Slot, error)                 { return Slot{}, errUnbuilt }
func (l *Log) ReserveAll(slots []Slot, want []Want) error             { return errUnbuilt }
func (s Slot) Done()                                                  {}
func (l *Log) WaitWritten(ctx context.Context, lsn uint64) error      { return errUnbuilt }
func (l *Log) WaitDurable(ctx context.Context, lsn uint64) error      { return errUnbuilt }
func (l *Log) Written() uint64                                        { return 0 }
func (l *Log) Durable() uint64                                        { return 0 }
func (l *Log) NextLSN() uint64                                        { return 0 }
func (l *Log) DurableChanged() <-chan struct{}                        { return nil }
func (l *Log) Hold(reader string, next uint64)                        {}
func (l *Log) ReadGroups(from uint64, maxBytes int) (GroupRun, error) { return GroupRun{}, errUnbuilt }
func (l *Log) Err() error                                             { return errUnbuilt }
func (l *Log) Stats() Stats                                           { return Stats{} }
func (l *Log) Close() error                                           { return errUnbuilt }
