package raftmeta

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// snapshots is Raft's file snapshot store with two additions. The state file
// repeats, under its checksum, what the unchecked meta.json says about index,
// term and members. And the newest index is known without reading a directory.
//
//	state.bin: magic "TMRSNAP\x01" | length u32 | JSON snapshotHeader | export
//
// The file store syncs state and meta file and, after the rename that makes a
// snapshot visible, the directory: a snapshot is durable when Raft cuts the log.
type snapshots struct {
	*raft.FileSnapshotStore
	dir     string
	newest  atomic.Uint64 // raft index of the newest snapshot, 0 when there is none
	damaged []string      // found by openSnapshots, until setAside
}

const (
	retainSnapshots   = 2
	snapshotMagic     = "TMRSNAP\x01"
	maxSnapshotHeader = 1 << 20
	snapshotsDir      = "snapshots" // the file store's name for it
	damagedDir        = "damaged"
)

// snapshotHeader stands in the state file.
type snapshotHeader struct {
	Index         uint64             `json:"index"`
	Term          uint64             `json:"term"`
	Configuration raft.Configuration `json:"configuration"`
	ConfigIndex   uint64             `json:"configuration_index"`
}

func headerOf(m *raft.SnapshotMeta) snapshotHeader {
	return snapshotHeader{m.Index, m.Term, m.Configuration, m.ConfigurationIndex}
}

// openSnapshots opens the store in dir and verifies every snapshot. It returns
// the newest index of all of them, damaged ones included: an honest log reaches
// at least that far.
func openSnapshots(dir string, logger *slog.Logger) (_ *snapshots, reached uint64, err error) {
	if err := removeUnfinished(filepath.Join(dir, snapshotsDir)); err != nil {
		return nil, 0, err
	}
	store, err := raft.NewFileSnapshotStoreWithLogger(dir, retainSnapshots, raftLogger{logger: logger.With("component", "raft")})
	if err != nil {
		return nil, 0, errcode.Wrap(errcode.Storage, err, "open the metadata snapshots in %s", dir)
	}
	s := &snapshots{FileSnapshotStore: store, dir: dir}
	entries, err := os.ReadDir(filepath.Join(dir, snapshotsDir))
	if err != nil {
		return nil, 0, errcode.Wrap(errcode.Storage, err, "list the metadata snapshots in %s", dir)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		named, err := s.verify(e.Name())
		if errcode.Is(err, errcode.UnsupportedVersion) {
			return nil, 0, err // whole, but not ours to read: an older one would be another state
		}
		reached = max(reached, named)
		if err == nil {
			s.newest.Store(max(s.newest.Load(), named))
			continue
		}
		logger.Warn("metadata snapshot does not verify; an older one and the log are used instead, if they suffice",
			"snapshot", filepath.Join(dir, snapshotsDir, e.Name()), "error", err)
		s.damaged = append(s.damaged, e.Name())
	}
	return s, reached, nil
}

// removeUnfinished removes snapshots that a crash left without their final name.
func removeUnfinished(dir string) error {
	stale, err := filepath.Glob(filepath.Join(dir, "*.tmp"))
	for _, path := range stale {
		if err == nil {
			err = os.RemoveAll(path)
		}
	}
	return errcode.Wrap(errcode.Storage, err, "remove unfinished metadata snapshots from %s", dir)
}

// verify reads one snapshot to its end: checksum, header, state. The index is
// that of the directory's name, which the file system keeps.
func (s *snapshots) verify(id string) (index uint64, err error) {
	var term, ms uint64
	if n, err := fmt.Sscanf(id, "%d-%d-%d", &term, &index, &ms); err != nil || n != 3 {
		return 0, errcode.New(errcode.Corrupt, "snapshot directory %.80q is not named term-index-time", id)
	}
	meta, r, err := s.Open(id)
	if err != nil {
		return index, errcode.Wrap(errcode.Corrupt, err, "snapshot %s", id)
	}
	defer r.Close()
	if meta.ID != id || meta.Index != index || meta.Term != term || meta.Version != 1 {
		return index, errcode.New(errcode.Corrupt, "snapshot %s says it is %.80q of term %d, index %d", id, meta.ID, meta.Term, meta.Index)
	}
	data, err := io.ReadAll(io.LimitReader(r, MaxExportBytes+1))
	if err != nil {
		return index, errcode.Wrap(errcode.Storage, err, "read snapshot %s", id)
	}
	state, err := ParseExport(data)
	if err != nil {
		return index, errcode.Wrap(errcode.Corrupt, err, "snapshot %s", id)
	}
	if state.index > index {
		return index, errcode.New(errcode.Corrupt, "snapshot %s of index %d holds the state of index %d", id, index, state.index)
	}
	return index, nil
}

// setAside moves the damaged snapshots out of the store's sight, once it is
// clear that the state does not depend on them. Those of the last time go.
func (s *snapshots) setAside() error {
	if len(s.damaged) == 0 {
		return nil
	}
	aside := filepath.Join(s.dir, damagedDir)
	err := os.RemoveAll(aside)
	if err == nil {
		err = os.Mkdir(aside, 0o700)
	}
	for _, id := range s.damaged {
		if err == nil {
			err = os.Rename(filepath.Join(s.dir, snapshotsDir, id), filepath.Join(aside, id))
		}
	}
	s.damaged = nil
	return errcode.Wrap(errcode.Storage, err, "move damaged metadata snapshots to %s", aside)
}

// keepFrom returns the first log index that has to stay so that the older of
// the two newest snapshots can still be rolled forward.
func (s *snapshots) keepFrom() (uint64, error) {
	list, err := s.List()
	if err != nil {
		return 0, err
	}
	if len(list) < retainSnapshots {
		return 1, nil
	}
	return list[len(list)-1].Index + 1, nil
}

// Create implements raft.SnapshotStore.
func (s *snapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, configIndex uint64, t raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.FileSnapshotStore.Create(version, index, term, c, configIndex, t)
	if err != nil {
		return nil, err
	}
	head, err := json.Marshal(snapshotHeader{index, term, c, configIndex})
	if err == nil {
		_, err = sink.Write(append(binary.BigEndian.AppendUint32([]byte(snapshotMagic), uint32(len(head))), head...))
	}
	if err != nil {
		_ = sink.Cancel() // the write's error is the one to report
		return nil, errcode.Wrap(errcode.Storage, err, "write the header of metadata snapshot %s", sink.ID())
	}
	return &snapshotSink{SnapshotSink: sink, store: s, index: index}, nil
}

type snapshotSink struct {
	raft.SnapshotSink
	store *snapshots
	index uint64
}

// Close makes the snapshot durable and visible. The file store syncs the files
// and the directory that holds all snapshots; the snapshot's own directory,
// which names the files, is synced here, before Raft cuts the log.
func (s *snapshotSink) Close() error {
	if err := s.SnapshotSink.Close(); err != nil {
		return err
	}
	if err := syncDir(filepath.Join(s.store.dir, snapshotsDir, s.ID())); err != nil {
		return err
	}
	s.store.newest.Store(s.index)
	return nil
}

// Open implements raft.SnapshotStore: the reader starts at the export.
func (s *snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, r, err := s.FileSnapshotStore.Open(id)
	if err != nil {
		return nil, nil, err
	}
	head, err := readSnapshotHeader(r)
	if err == nil && !reflect.DeepEqual(head, headerOf(meta)) {
		err = errcode.New(errcode.Corrupt, "snapshot %s: its meta.json names other members, term or index than its state file", id)
	}
	if err != nil {
		_ = r.Close() // read only: nothing can be lost
		return nil, nil, err
	}
	return meta, r, nil
}

func readSnapshotHeader(r io.Reader) (snapshotHeader, error) {
	var head snapshotHeader
	fixed := make([]byte, len(snapshotMagic)+4)
	if _, err := io.ReadFull(r, fixed); err != nil {
		return head, errcode.New(errcode.Corrupt, "snapshot has no header: %w", err)
	}
	magic, size := fixed[:len(snapshotMagic)], binary.BigEndian.Uint32(fixed[len(snapshotMagic):])
	if name := []byte(snapshotMagic[:len(snapshotMagic)-1]); bytes.HasPrefix(magic, name) && string(magic) != snapshotMagic {
		return head, errcode.New(errcode.UnsupportedVersion, "metadata snapshot has version %d; this build reads %d: use the tidemark version that wrote it, or a newer one", magic[len(name)], snapshotMagic[len(name)])
	}
	if string(magic) != snapshotMagic || size > maxSnapshotHeader {
		return head, errcode.New(errcode.Corrupt, "snapshot begins with %x instead of a header", fixed)
	}
	raw := make([]byte, size)
	if _, err := io.ReadFull(r, raw); err != nil {
		return head, errcode.New(errcode.Corrupt, "snapshot header is cut short: %w", err)
	}
	if err := decodeStrict(raw, &head); err != nil {
		return head, errcode.New(errcode.Corrupt, "snapshot header does not decode: %w", err)
	}
	return head, nil
}
