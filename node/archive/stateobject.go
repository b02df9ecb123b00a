package archive

import (
	"bytes"
	"encoding/json"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

const (
	stateFormat    = "tidemark-state"
	stateVersion   = 1
	maxStateObject = 512 << 20 // decoded bytes
)

// State is what one incarnation of a node knew at an LSN. A restore begins
// with it and reads shipped WAL from ReplayFrom on.
type State struct {
	Node        string           `json:"node"`
	Incarnation uint64           `json:"incarnation"`
	LSN         uint64           `json:"lsn"`         // every frame at or below it is in here, or in a chain, or at or above ReplayFrom
	ReplayFrom  uint64           `json:"replay_from"` // first frame that a restore still needs
	TimeMS      int64            `json:"time_ms"`
	Partitions  []PartitionState `json:"partitions"`
}

// PartitionState is one partition in a State.
type PartitionState struct {
	Topic       broker.TopicID `json:"topic"`
	Partition   uint32         `json:"partition"`
	Generation  uint32         `json:"generation"`
	PreviousEnd int64          `json:"previous_end"`
	Start       int64          `json:"start"`
	Next        int64          `json:"next"` // high watermark at the capture
	Gaps        [][2]int64     `json:"gaps,omitempty"`
	GroupLSN    uint64         `json:"group_lsn"`        // group entries up to here are in Groups
	Groups      [][]byte       `json:"groups"`           // states in the encoding of package queue
	Doubts      [][3]int64     `json:"doubts,omitempty"` // append times that cannot be right, as in the local state
}

// ID is the partition's id.
func (p *PartitionState) ID() broker.PartitionID {
	return broker.PartitionID{Topic: p.Topic, Partition: p.Partition}
}

type stateEnvelope struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	*State
}

// EncodeState returns the stored form of s: JSON in zstd.
func EncodeState(s *State) ([]byte, error) {
	return pack(stateEnvelope{stateFormat, stateVersion, s})
}

// DecodeState reads the stored form. Errors: Corrupt, UnsupportedVersion.
func DecodeState(b []byte) (*State, error) {
	plain, err := unpack(b, maxStateObject)
	if err != nil {
		return nil, errcode.Wrap(errcode.Corrupt, err, "state object")
	}
	env := stateEnvelope{State: new(State)}
	if err := unmarshalVersioned(plain, &env, "state object", stateFormat, stateVersion); err != nil {
		return nil, err
	}
	if env.ReplayFrom == 0 || env.ReplayFrom > env.LSN+1 {
		return nil, errcode.New(errcode.Corrupt, "state object at LSN %d says replay from %d", env.LSN, env.ReplayFrom)
	}
	return env.State, nil
}

func pack(v any) ([]byte, error) {
	plain, err := json.Marshal(v)
	if err != nil {
		return nil, errcode.Wrap(errcode.Internal, err, "encode")
	}
	return Pack(plain)
}

// maxWindow bounds what a zstd frame may ask for before it has shown anything.
const maxWindow = 32 << 20

// unpack reads at most limit bytes. It grows with what is there, not with what
// the frame says will come.
func unpack(b []byte, limit int64) ([]byte, error) {
	b, err := openZstd(b)
	if err != nil {
		return nil, err
	}
	z, err := zstd.NewReader(bytes.NewReader(b), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, errcode.New(errcode.Corrupt, "zstd: %w", err)
	}
	defer z.Close()
	plain, err := io.ReadAll(io.LimitReader(z, limit+1))
	switch {
	case err != nil:
		return nil, errcode.New(errcode.Corrupt, "zstd: %w", err)
	case int64(len(plain)) > limit:
		return nil, errcode.New(errcode.Corrupt, "more than %d bytes", limit)
	case len(plain) == 0:
		return nil, errcode.New(errcode.Corrupt, "it is empty")
	}
	return plain, nil
}

// unmarshalVersioned looks at format and version before it reads the rest.
func unmarshalVersioned(plain []byte, into any, what, format string, version int) error {
	var head struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(plain, &head); err != nil || head.Format != format {
		return errcode.New(errcode.Corrupt, "%s: this is no %s (format %q)", what, format, head.Format)
	}
	if head.Version != version {
		return errcode.New(errcode.UnsupportedVersion, "%s: %s version %d, this build reads %d: use the build that wrote it, or a newer one", what, format, head.Version, version)
	}
	if err := json.Unmarshal(plain, into); err != nil {
		return errcode.New(errcode.Corrupt, "%s: %w", what, err)
	}
	return nil
}

const maxExport = 256 << 20 // decoded bytes of a metadata export

// Pack returns the stored form of a metadata export: the same bytes in zstd, and
// a checksum.
func Pack(export []byte) ([]byte, error) {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, errcode.Wrap(errcode.Internal, err, "zstd")
	}
	return sealZstd(z.EncodeAll(export, nil)), nil
}

// Unpack reads what Pack wrote.
func Unpack(stored []byte) ([]byte, error) { return unpack(stored, maxExport) }
