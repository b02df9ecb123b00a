package raftmeta

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math"
	"path"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Pebble ends its manifest, and the last 32 KiB of its newest write-ahead log,
// silently at the first record that does not verify, as if a crash had torn
// it. A flipped bit there takes everything after it along, fsynced and answered
// or not. checkPebble tells the two apart before Pebble opens: what stands
// after a torn record was never fsynced, so a later record that proves that an
// fsync had covered the bad place proves damage (I4).
//
// The formats are those of Pebble's record package: blocks of 32 KiB, and in
// them chunks, little-endian:
//
//	manifest: crc u32 | length u16 | type u8 (1-4) | data
//	log:      crc u32 | length u16 | type u8 (5-8)  | log number u32 | data
//	          crc u32 | length u16 | type u8 (9-12) | log number u32 | synced offset u64 | data
//
// The crc covers everything from the type on; of each four types the first two
// begin a record.
//
// exists is false when there is no Pebble in dir yet.
func checkPebble(fs vfs.FS, dir string) (exists bool, err error) {
	desc, err := pebble.Peek(dir, fs)
	if err != nil || !desc.Exists {
		return false, errcode.Wrap(errcode.Storage, err, "look at the metadata log in %s", dir)
	}
	if err := checkRecords(fs, desc.ManifestFilename, nil); err != nil {
		return true, err
	}
	names, err := fs.List(dir)
	if err != nil {
		return true, errcode.Wrap(errcode.Storage, err, "list the metadata log in %s", dir)
	}
	newest, file := uint64(0), ""
	for _, name := range names {
		if n, err := strconv.ParseUint(strings.TrimSuffix(name, ".log"), 10, 64); err == nil && strings.HasSuffix(name, ".log") && n >= newest {
			newest, file = n, fs.PathJoin(dir, name)
		}
	}
	if file == "" {
		return true, nil
	}
	number := uint32(newest) // Pebble writes its low half
	return true, checkRecords(fs, file, &number)
}

// checkRecords reads one file; log is its number if it is a write-ahead log.
func checkRecords(fs vfs.FS, file string, log *uint32) (err error) {
	f, err := fs.Open(file, vfs.SequentialReadsOption)
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "check %s", file)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	at, err := findDamage(f, log)
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "check %s", file)
	}
	if at >= 0 {
		return errcode.New(errcode.Corrupt, "the metadata log is damaged: %s does not verify at byte %d, and later records had been written on top of it; "+
			"restore the directory from a copy, or the cluster from its archive into an empty directory", path.Base(file), at)
	}
	return nil
}

const (
	recordBlock     = 32 << 10
	chunkHeader     = 4 + 2 + 1
	maxChunkHeader  = chunkHeader + 4 + 8
	noDamage        = -1
	typesPerFormat  = 4
	formatManifest  = 0
	formatLog       = 1
	formatSyncedLog = 2
)

// findDamage returns the offset of the first chunk that does not verify if a
// later one proves that it once did; noDamage otherwise.
func findDamage(r io.Reader, log *uint32) (int64, error) {
	buf := make([]byte, recordBlock)
	bad := int64(noDamage)
	for block := int64(0); ; block++ {
		n, err := io.ReadFull(r, buf)
		if err == io.EOF {
			return noDamage, nil
		}
		if err != nil && err != io.ErrUnexpectedEOF {
			return noDamage, err
		}
		for at := 0; at+chunkHeader <= n; {
			c, ok := parseChunk(buf[at:n], log)
			switch {
			case ok && bad >= 0 && c.proves(bad):
				return bad, nil
			case ok:
				at += c.size
			case bad < 0 && n == recordBlock && n-at < maxChunkHeader && zero(buf[at:n]):
				at = n // no header fits any more: padding
			case bad < 0:
				bad = block*recordBlock + int64(at)
				at++
			default:
				at++ // a damaged length hides where the next chunk begins
			}
		}
	}
}

type chunk struct {
	size   int
	synced int64 // everything below it was fsynced when the chunk was written; 0 = it does not say
}

// proves reports whether the bytes at offset bad were on stable storage before
// this chunk was written.
func (c chunk) proves(bad int64) bool { return c.synced > bad }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// parseChunk reads the chunk at the beginning of b.
func parseChunk(b []byte, log *uint32) (chunk, bool) {
	kind := int(b[6]) - 1
	if kind < 0 || kind >= 3*typesPerFormat {
		return chunk{}, false
	}
	format, header := kind/typesPerFormat, chunkHeader
	switch format {
	case formatLog:
		header += 4
	case formatSyncedLog:
		header = maxChunkHeader
	}
	c := chunk{size: header + int(binary.LittleEndian.Uint16(b[4:]))}
	if (format == formatManifest) != (log == nil) || c.size > len(b) {
		return chunk{}, false
	}
	if log != nil && binary.LittleEndian.Uint32(b[7:]) != *log {
		return chunk{}, false // of the file's earlier life
	}
	sum := crc32.Checksum(b[6:c.size], castagnoli)
	if binary.LittleEndian.Uint32(b) != (sum>>15|sum<<17)+0xa282ead8 {
		return chunk{}, false
	}
	switch format {
	case formatManifest:
		// Each record is fsynced before the next is written: one that begins
		// here proves all before it.
		if kind%typesPerFormat < 2 {
			c.synced = math.MaxInt64
		}
	case formatSyncedLog:
		c.synced = int64(min(binary.LittleEndian.Uint64(b[11:]), math.MaxInt64))
	}
	return c, true
}

func zero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}
