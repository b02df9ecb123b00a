package scenario

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

const (
	batchHead  = 61       // bytes of a batch before its records
	batchLead  = 12       // bytes before and with its length
	maxStored  = 64 << 20 // of one stored batch
	streamRead = 1 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// storedBatches reads a stream of stored batches to its end and verifies each:
// magic, checksum, and that it goes on where the last one ended. It returns how many
// records and bytes there were.
func storedBatches(src io.Reader) (records, size int64, err error) {
	r := bufio.NewReaderSize(src, streamRead)
	var buf []byte
	next := int64(-1)
	for {
		head, err := r.Peek(batchHead)
		if errors.Is(err, io.EOF) && len(head) == 0 {
			return records, size, nil
		}
		if err != nil {
			return records, size, fmt.Errorf("a batch of the stream breaks off: %w", whole(err))
		}
		length := int64(batchLead) + int64(int32(binary.BigEndian.Uint32(head[8:])))
		if length < batchHead || length > maxStored || head[16] != 2 {
			return records, size, fmt.Errorf("the stream holds what is no batch: %d bytes, magic %d", length, head[16])
		}
		base := int64(binary.BigEndian.Uint64(head))
		last, n := int32(binary.BigEndian.Uint32(head[23:])), int32(binary.BigEndian.Uint32(head[57:]))
		if next >= 0 && base != next || last < 0 || n < 1 {
			return records, size, fmt.Errorf("a batch begins at offset %d where %d is next, and has %d records up to offset %d", base, next, n, base+int64(last))
		}
		want := binary.BigEndian.Uint32(head[17:])
		if int64(cap(buf)) < length {
			buf = make([]byte, length)
		}
		if _, err := io.ReadFull(r, buf[:length]); err != nil {
			return records, size, fmt.Errorf("a batch of the stream breaks off: %w", whole(err))
		}
		if crc32.Checksum(buf[21:length], castagnoli) != want {
			return records, size, fmt.Errorf("the batch at offset %d is not what was stored: its checksum differs", base)
		}
		next = base + int64(last) + 1
		records += int64(n)
		size += length
	}
}

func whole(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
