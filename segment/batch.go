package segment

import (
	"encoding/binary"
	"hash/crc32"
	"math"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Bounds of a batch. A batch that exceeds one is refused, whoever wrote it.
const (
	HeaderSize = 61               // bytes before the records
	MaxBatch   = 16<<20 + 128<<10 // bytes of a whole batch
	MaxRecords = 1 << 20          // records in a batch
	MaxDecoded = 64 << 20         // bytes of a batch's records, decompressed
	minRecord  = 7                // bytes of a record without key, value and headers
	batchMagic = 2                // the only version of the format there is here
	crcFrom    = 21               // first byte under the checksum
)

// Bits of BatchHeader.Attributes.
const (
	attrCodec         = 0x07 // compression
	attrLogAppendTime = 0x08 // every record has the batch's MaxTimestamp
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// BatchHeader is the fixed part of a batch.
type BatchHeader struct {
	BaseOffset      int64
	Generation      uint32 // Kafka's partitionLeaderEpoch
	Attributes      uint16
	LastOffsetDelta int32
	BaseTimestamp   int64 // ms; deltas of the records count from here
	MaxTimestamp    int64 // ms
	ProducerID      int64 // -1 when there is none
	ProducerEpoch   int16
	BaseSequence    int32
	Records         int32
	Size            int // bytes of the whole batch, with the 12 bytes before Generation
}

// LastOffset is the offset of the batch's last record.
func (h BatchHeader) LastOffset() int64 { return h.BaseOffset + int64(h.LastOffsetDelta) }

// NextOffset is the exclusive end of the batch's offsets.
func (h BatchHeader) NextOffset() int64 { return h.LastOffset() + 1 }

// Codec is the compression of the records.
func (h BatchHeader) Codec() Codec { return Codec(h.Attributes & attrCodec) }

// ParseHeader reads the header at the front of b, which need not hold the
// whole batch. Every field is checked against its bounds, so the caller may
// size a buffer by Size. Errors: Corrupt, UnsupportedVersion.
func ParseHeader(b []byte) (BatchHeader, error) {
	if len(b) < HeaderSize {
		return BatchHeader{}, errcode.New(errcode.Corrupt, "batch header: %d bytes are left, a header has %d", len(b), HeaderSize)
	}
	be := binary.BigEndian
	h := BatchHeader{
		BaseOffset:      int64(be.Uint64(b)),
		Generation:      be.Uint32(b[12:]),
		Attributes:      be.Uint16(b[21:]),
		LastOffsetDelta: int32(be.Uint32(b[23:])),
		BaseTimestamp:   int64(be.Uint64(b[27:])),
		MaxTimestamp:    int64(be.Uint64(b[35:])),
		ProducerID:      int64(be.Uint64(b[43:])),
		ProducerEpoch:   int16(be.Uint16(b[51:])),
		BaseSequence:    int32(be.Uint32(b[53:])),
		Records:         int32(be.Uint32(b[57:])),
	}
	// The length is signed on the wire; summed as int64 no value of it wraps.
	size := int64(int32(be.Uint32(b[8:]))) + 12
	if size < HeaderSize || size > MaxBatch {
		return BatchHeader{}, errcode.New(errcode.Corrupt, "batch header: size %d is not between %d and %d", size, HeaderSize, MaxBatch)
	}
	if b[16] != batchMagic {
		return BatchHeader{}, errcode.New(errcode.UnsupportedVersion, "batch header: magic %d, this build reads %d", b[16], batchMagic)
	}
	h.Size = int(size)
	return h, h.check()
}

func (h BatchHeader) check() error {
	switch {
	case h.BaseOffset < 0 || h.LastOffsetDelta < 0 || h.BaseOffset > math.MaxInt64-1-int64(h.LastOffsetDelta):
		return errcode.New(errcode.Corrupt, "batch header: offsets %d + %d are not offsets", h.BaseOffset, h.LastOffsetDelta)
	case h.Records < 0 || h.Records > MaxRecords:
		return errcode.New(errcode.Corrupt, "batch header at offset %d: %d records, at most %d are allowed", h.BaseOffset, h.Records, MaxRecords)
	case h.LastOffsetDelta < h.Records-1:
		return errcode.New(errcode.Corrupt, "batch header at offset %d: %d records do not fit in %d offsets", h.BaseOffset, h.Records, h.LastOffsetDelta+1)
	case h.Codec() == CodecNone && int(h.Records) > (h.Size-HeaderSize)/minRecord:
		return errcode.New(errcode.Corrupt, "batch header at offset %d: %d records do not fit in %d bytes", h.BaseOffset, h.Records, h.Size-HeaderSize)
	}
	return nil
}

// VerifyBatch checks header and checksum of b, which is exactly one batch.
// It does not look into the records. Errors: Corrupt, UnsupportedVersion.
func VerifyBatch(b []byte) (BatchHeader, error) {
	h, err := ParseHeader(b)
	if err != nil {
		return h, err
	}
	if len(b) != h.Size {
		return h, errcode.New(errcode.Corrupt, "batch at offset %d: %d bytes, its header says %d", h.BaseOffset, len(b), h.Size)
	}
	want, got := binary.BigEndian.Uint32(b[17:]), crc32.Checksum(b[crcFrom:], castagnoli)
	if want != got {
		return h, errcode.New(errcode.Corrupt, "batch at offset %d: crc32c want %08x, got %08x", h.BaseOffset, want, got)
	}
	return h, nil
}

// Stamp places a batch: it writes base offset and generation into b, which
// holds at least the header. The checksum does not cover them and stays.
func Stamp(b []byte, baseOffset int64, generation uint32) {
	binary.BigEndian.PutUint64(b, uint64(baseOffset))
	binary.BigEndian.PutUint32(b[12:], generation)
}

// NextBatch splits the first whole batch off a run of batches. Both results
// alias b. A run that ends inside a batch gives no batch and no error: rest is
// then the beginning of that batch, and is empty when the run ends exactly
// there. The checksum is not checked. Errors: Corrupt, UnsupportedVersion.
func NextBatch(b []byte) (batch, rest []byte, err error) {
	if len(b) < HeaderSize {
		return nil, b, nil
	}
	h, err := ParseHeader(b)
	if err != nil {
		return nil, b, err
	}
	if len(b) < h.Size {
		return nil, b, nil
	}
	return b[:h.Size:h.Size], b[h.Size:], nil
}

// finishHeader writes every header field but base offset and generation's
// stamp of h into b, which is the whole batch, and the checksum last.
func finishHeader(b []byte, h *BatchHeader) {
	be := binary.BigEndian
	be.PutUint64(b, uint64(h.BaseOffset))
	be.PutUint32(b[8:], uint32(len(b)-12))
	be.PutUint32(b[12:], h.Generation)
	b[16] = batchMagic
	be.PutUint16(b[21:], h.Attributes)
	be.PutUint32(b[23:], uint32(h.LastOffsetDelta))
	be.PutUint64(b[27:], uint64(h.BaseTimestamp))
	be.PutUint64(b[35:], uint64(h.MaxTimestamp))
	be.PutUint64(b[43:], uint64(h.ProducerID))
	be.PutUint16(b[51:], uint16(h.ProducerEpoch))
	be.PutUint32(b[53:], uint32(h.BaseSequence))
	be.PutUint32(b[57:], uint32(h.Records))
	be.PutUint32(b[17:], crc32.Checksum(b[crcFrom:], castagnoli))
}
