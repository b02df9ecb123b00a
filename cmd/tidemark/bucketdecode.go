package main

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/queue"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/bucket"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/wal"
)

// decoders read the objects that nodes write beside segments and chains, and
// check all of what they read.
var decoders = bucket.Decoders{
	WAL: decodeWAL, State: decodeState, Small: decodeSmall, Export: decodeExport, Frames: hashFrames, Needs: neededFrames, Retired: retiredIncarnations, Batches: shippedBatches,
}

// shippedWAL is what is shown of a shipped WAL object.
type shippedWAL struct {
	Incarnation string         `json:"incarnation"`
	First       uint64         `json:"first_lsn"`
	Next        uint64         `json:"next_lsn"`
	Frames      map[string]int `json:"frames"` // by kind
	Ranges      []walRange     `json:"ranges"`
}

type walRange struct {
	Partition string `json:"partition"`
	First     int64  `json:"first_offset"`
	Next      int64  `json:"next_offset"`
}

// openWAL decodes a shipped WAL object and holds it against its key.
func openWAL(key manifest.Key, stored []byte) (*archive.WAL, error) {
	w, err := archive.DecodeWAL(stored)
	if err == nil && (w.Incarnation != key.Incarnation || w.First != key.First || w.Next != key.End) {
		err = errcode.New(errcode.Corrupt, "its content is LSNs %d to %d of incarnation %016x, its key says %d to %d of %016x",
			w.First, w.Next, w.Incarnation, key.First, key.End, key.Incarnation)
	}
	return w, err
}

func decodeWAL(key manifest.Key, stored []byte) (any, error) {
	w, err := openWAL(key, stored)
	if err != nil {
		return nil, err
	}
	out := shippedWAL{Incarnation: fmt.Sprintf("%016x", w.Incarnation), First: w.First, Next: w.Next, Frames: map[string]int{}, Ranges: []walRange{}}
	for _, r := range w.Ranges {
		out.Ranges = append(out.Ranges, walRange{r.Partition.String(), r.First, r.Next})
	}
	err = w.Each(func(f wal.Frame) error {
		out.Frames[f.Kind.String()]++
		if bad := frameOf(f); bad.Error != "" || slices.ContainsFunc(bad.Sections, func(s dumpedSection) bool { return s.Error != "" }) {
			return errcode.New(errcode.Corrupt, "frame %d of kind %s does not decode%s", f.LSN, f.Kind, bad.words())
		}
		return nil
	})
	return out, err
}

// hashFrames gives each frame's hash, to compare those of several objects.
func hashFrames(key manifest.Key, stored []byte, fn func(lsn uint64, sum [32]byte)) error {
	w, err := openWAL(key, stored)
	if err != nil {
		return err
	}
	return w.Each(func(f wal.Frame) error {
		h := sha256.New()
		h.Write([]byte{byte(f.Kind)})
		h.Write(f.Body)
		fn(f.LSN, [32]byte(h.Sum(nil)))
		return nil
	})
}

// shippedBatches gives the batches of one partition.
func shippedBatches(key manifest.Key, stored []byte, partition broker.PartitionID, fn func(generation uint32, batch []byte) error) error {
	w, err := openWAL(key, stored)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(w.Ranges, func(r archive.Range) bool { return r.Partition == partition }) {
		return nil
	}
	return w.Each(func(f wal.Frame) error {
		if f.Kind != wal.KindCommit && f.Kind != wal.KindCarry {
			return nil
		}
		_, sections, err := frame.ParseCommit(f.Body)
		if err != nil {
			return err
		}
		for s := range sections {
			if s.Partition != partition {
				continue
			}
			for rest := s.Batches; len(rest) > 0; {
				batch, after, err := segment.NextBatch(rest)
				if err == nil {
					_, err = segment.VerifyBatch(batch)
				}
				if err == nil {
					err = fn(s.Generation, batch)
				}
				if err != nil {
					return err
				}
				rest = after
			}
		}
		return nil
	})
}

func decodeState(key manifest.Key, stored []byte) (any, error) {
	s, err := openState(key, stored)
	if err != nil {
		return nil, err
	}
	for i := range s.Partitions {
		for _, g := range s.Partitions[i].Groups {
			if _, err := queue.DecodeState(g); err != nil {
				return nil, errcode.Wrap(errcode.Corrupt, err, "a group of partition %s", s.Partitions[i].ID())
			}
		}
	}
	return s, nil
}

func openState(key manifest.Key, stored []byte) (*archive.State, error) {
	s, err := archive.DecodeState(stored)
	if err == nil && manifest.StateKey(s.Node, s.Incarnation, s.LSN) != key.String() {
		err = errcode.New(errcode.Corrupt, "its content is of node %s, incarnation %016x, LSN %d", s.Node, s.Incarnation, s.LSN)
	}
	return s, err
}

func neededFrames(key manifest.Key, stored []byte) (from, upTo uint64, err error) {
	s, err := openState(key, stored)
	if err != nil {
		return 0, 0, err
	}
	return s.ReplayFrom, s.LSN, nil
}

// retiredIncarnations says which incarnations an export calls retired.
func retiredIncarnations(key manifest.Key, stored []byte) (func(node string, incarnation uint64) bool, error) {
	st, err := openExport(key, stored)
	if err != nil {
		return nil, err
	}
	return func(node string, incarnation uint64) bool {
		f, ok := st.Fenced(raftmeta.Incarnation(incarnation))
		return ok && f.RetiredMs > 0 && f.Node == node
	}, nil
}

// decodeSmall reads a claim, OPEN or FENCE.
func decodeSmall(key manifest.Key, stored []byte) error {
	switch key.Kind {
	case manifest.KindCluster:
		c, err := archive.DecodeClaim(stored)
		if err == nil && c.Generation != key.Cluster {
			err = errcode.New(errcode.Corrupt, "it says generation %d", c.Generation)
		}
		return err
	case manifest.KindWALOpen:
		o, err := archive.DecodeOpen(stored)
		if err == nil && (o.Node != key.Node || o.Incarnation != key.Incarnation) {
			err = errcode.New(errcode.Corrupt, "it says incarnation %016x of node %s", o.Incarnation, o.Node)
		}
		return err
	case manifest.KindWALFence:
		_, err := archive.DecodeFence(stored)
		return err
	}
	return nil
}

// decodeExport reads a metadata export as a restore does: a field that today's
// checks refuse is named.
func decodeExport(key manifest.Key, stored []byte) error {
	_, err := openExport(key, stored)
	return err
}

func openExport(key manifest.Key, stored []byte) (*raftmeta.State, error) {
	plain, err := archive.Unpack(stored)
	if err != nil {
		return nil, err
	}
	st, err := raftmeta.ParseExport(plain)
	if err == nil && (st.Cluster().Generation != key.Cluster || st.Index() != key.Index) {
		err = errcode.New(errcode.Corrupt, "it is of generation %d, index %d", st.Cluster().Generation, st.Index())
	}
	return st, err
}
