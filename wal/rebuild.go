package wal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// FileWriter writes one file of a log anew, out of groups that survived in it
// or elsewhere. It is a tool of repairs: a [Log] writes its files itself.
type FileWriter struct {
	file vfs.File
	path string
	salt uint64
	next uint64
	pos  int64
	buf  []byte
}

// CreateFile begins a log file at path, whose name does not matter yet, with a
// header of its own salt. First is the LSN of its first frame.
func CreateFile(fs vfs.FS, path string, incarnation, first uint64, now time.Time) (*FileWriter, error) {
	f, err := fs.Create(path, writeCategory)
	if err != nil {
		return nil, errcode.Wrap(errcode.Storage, err, "create %s", path)
	}
	var salt [8]byte
	rand.Read(salt[:])
	h := fileHeader{Incarnation: incarnation, First: first, Salt: binary.BigEndian.Uint64(salt[:]), CreatedMs: now.UnixMilli()}
	block := make([]byte, blockSize)
	h.encode(block)
	if err := writeAll(f, block, 0); err != nil {
		return nil, errors.Join(errcode.Wrap(errcode.Storage, err, "write header of %s", path), f.Close())
	}
	return &FileWriter{file: f, path: path, salt: h.Salt, next: first, pos: blockSize}, nil
}

// Add writes the next group: raw is its header and frames, verified, as
// [ParseGroup] was given them. Errors: InvalidArgument when it does not follow,
// Storage.
func (w *FileWriter) Add(g Group, raw []byte) error {
	if g.First != w.next {
		return errcode.New(errcode.InvalidArgument, "%s: group of LSN %d cannot follow LSN %d", w.path, g.First, w.next-1)
	}
	size := roundUp(int64(len(raw)))
	w.buf = append(append(w.buf[:0], raw...), make([]byte, size-int64(len(raw)))...)
	sealGroup(w.buf[:len(raw)], w.salt, g.First, uint32(g.Frames), g.Durable)
	if err := writeAll(w.file, w.buf, w.pos); err != nil {
		return errcode.Wrap(errcode.Storage, err, "write LSN %d into %s", g.First, w.path)
	}
	w.next, w.pos = g.Next(), w.pos+size
	return nil
}

// Next returns the LSN that the next group has to begin with.
func (w *FileWriter) Next() uint64 { return w.next }

// Close makes the file durable; its name is the caller's to make durable.
func (w *FileWriter) Close() error {
	err := w.file.Sync() // its length too, so not only the data
	return errcode.Wrap(errcode.Storage, errors.Join(err, w.file.Close()), "close %s", w.path)
}

// FileName returns the name of the log file whose first frame is first.
func FileName(first uint64) string { return fileName(first) }
