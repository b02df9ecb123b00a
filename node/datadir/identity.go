package datadir

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	iofs "io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/segment"
)

const (
	identityFile    = "identity.json"
	identityFormat  = "tidemark-data"
	identityVersion = 1
)

// Identity says whose a data directory is.
type Identity struct {
	Format      string               `json:"format"`
	Version     int                  `json:"version"`
	NodeID      string               `json:"node_id"`
	Incarnation raftmeta.Incarnation `json:"incarnation"` // of this directory's content; random
	// Begun: it has metadata, local state and a log, so from now on a missing
	// one was lost. See Begin.
	Begun bool `json:"begun,omitempty"`
}

// New returns an identity with a fresh incarnation. random nil means
// crypto/rand.
func New(nodeID string, random io.Reader) (Identity, error) {
	if random == nil {
		random = rand.Reader
	}
	var b [8]byte
	for {
		if _, err := io.ReadFull(random, b[:]); err != nil {
			return Identity{}, errcode.Wrap(errcode.Internal, err, "read random bytes")
		}
		if inc := binary.BigEndian.Uint64(b[:]); inc != 0 {
			return Identity{Format: identityFormat, Version: identityVersion, NodeID: nodeID, Incarnation: raftmeta.Incarnation(inc)}, nil
		}
	}
}

// Read reads the identity of a data directory. NotFound: it has none.
func Read(fs vfs.FS, dir string) (Identity, error) {
	path := fs.PathJoin(dir, identityFile)
	f, err := fs.Open(path)
	if errors.Is(err, iofs.ErrNotExist) {
		return Identity{}, errcode.New(errcode.NotFound, "%s does not exist", path)
	}
	if err != nil {
		return Identity{}, errcode.Wrap(errcode.Storage, err, "open %s", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err = errors.Join(err, f.Close()); err != nil {
		return Identity{}, errcode.Wrap(errcode.Storage, err, "read %s", path)
	}
	return parse(path, data)
}

// parse looks at format and version before the fields, whose form a later
// version may change.
func parse(path string, data []byte) (id Identity, err error) {
	var head struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
	}
	const remedy = "restore the file, or restore the node from the archive"
	if err := json.Unmarshal(data, &head); err != nil || head.Format != identityFormat {
		return Identity{}, errcode.New(errcode.Corrupt, "%s is not the identity of a Tidemark data directory: %s", path, remedy)
	}
	if head.Version != identityVersion {
		return Identity{}, errcode.New(errcode.UnsupportedVersion, "%s has format version %d, this build knows %d: run the build that wrote it", path, head.Version, identityVersion)
	}
	if err := json.Unmarshal(data, &id); err != nil {
		return Identity{}, errcode.New(errcode.Corrupt, "%s: %w: %s", path, err, remedy)
	}
	if id.NodeID == "" || id.Incarnation == 0 {
		return Identity{}, errcode.New(errcode.Corrupt, "%s names no node or no incarnation: %s", path, remedy)
	}
	return id, nil
}

// Write makes the identity durable in dir, which exists.
func Write(fs vfs.FS, dir string, id Identity) error {
	data, err := json.Marshal(id)
	if err != nil {
		return errcode.Wrap(errcode.Internal, err, "encode identity")
	}
	path := fs.PathJoin(dir, identityFile)
	tmp := path + ".tmp"
	f, err := fs.Create(tmp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "create %s", tmp)
	}
	_, err = f.Write(append(data, '\n'))
	// The file is complete on disk before it gets its name, and the name is
	// durable before anything is written under this incarnation.
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = fs.Rename(tmp, path)
	}
	if err == nil {
		err = SyncDir(fs, dir)
	}
	return errcode.Wrap(errcode.Storage, err, "write %s", path)
}

// SyncDir makes the names in dir durable.
func SyncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Open reads the directory's identity, or gives a new directory one. Conflict:
// it is another node's, or no data directory at all.
func Open(fs vfs.FS, dir, nodeID string, random io.Reader) (Identity, error) {
	if err := noRepair(fs, dir); err != nil {
		return Identity{}, err
	}
	id, err := Read(fs, dir)
	switch {
	case errcode.Is(err, errcode.NotFound):
		if err := MustBeEmpty(fs, dir); err != nil {
			return Identity{}, err
		}
		if id, err = New(nodeID, random); err != nil {
			return Identity{}, err
		}
		return id, Write(fs, dir, id)
	case err != nil:
		return Identity{}, err
	case id.NodeID != nodeID:
		return Identity{}, errcode.New(errcode.Conflict, "data directory %s belongs to node %q, this is node %q: give the right --node-id or another --data-dir", dir, id.NodeID, nodeID)
	}
	// The process that wrote it may have died before the name was durable. A
	// directory with records and without an identity is nobody's.
	return id, errcode.Wrap(errcode.Storage, SyncDir(fs, dir), "sync data directory %s", dir)
}

// MustBeEmpty refuses a directory that holds something else: a mistyped path,
// or a data directory whose identity was lost.
func MustBeEmpty(fs vfs.FS, dir string) error {
	names, err := fs.List(dir)
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "list %s", dir)
	}
	for _, name := range names {
		if name != LockFile && name != identityFile+".tmp" && name != "lost+found" {
			return errcode.New(errcode.Conflict, "data directory %s has no %s but holds %q: it is not a Tidemark data directory; choose an empty one", dir, identityFile, name)
		}
	}
	return nil
}

// RepairDir is where a repair builds what the directory is to hold, and
// RepairReady the file in it that says that it has begun to put it in place.
const (
	RepairDir   = "repair"
	RepairReady = "READY"
)

// noRepair refuses a directory whose repair was interrupted while it put its
// parts in place: they are of two incarnations until it is run again.
func noRepair(fs vfs.FS, dir string) error {
	path := fs.PathJoin(dir, RepairDir, RepairReady)
	switch _, err := fs.Stat(path); {
	case err == nil:
		return errcode.New(errcode.Conflict, "data directory %s is in the middle of a repair (%s exists): run `tidemark wal repair %s --apply` again, which ends it", dir, path, dir)
	case !errors.Is(err, iofs.ErrNotExist):
		return errcode.Wrap(errcode.Storage, err, "look at %s", path)
	}
	return nil
}

// LockFile is the name of the file that Lock locks.
const LockFile = "LOCK"

// Lock takes the data directory for this process; the lock ends with it.
func Lock(fs vfs.FS, dir string) (io.Closer, error) {
	if err := segment.MakeDir(fs, nearest(fs, fs.PathDir(dir)), dir); err != nil {
		return nil, errcode.Wrap(errcode.Storage, err, "data directory %s", dir)
	}
	l, err := fs.Lock(fs.PathJoin(dir, LockFile))
	if err != nil {
		return nil, errcode.New(errcode.Conflict, "data directory %s is in use by another process, or cannot be written: %w", dir, err)
	}
	return l, nil
}

// nearest returns dir, or the nearest directory above it that exists: what is
// missing below is about to be made, and every name on the way down has to
// survive a power loss, or all the records below go with it.
func nearest(fs vfs.FS, dir string) string {
	for {
		parent := fs.PathDir(dir)
		if _, err := fs.Stat(dir); !errors.Is(err, iofs.ErrNotExist) || parent == dir {
			return dir
		}
		dir = parent
	}
}
