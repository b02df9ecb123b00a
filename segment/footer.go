package segment

import (
	"encoding/binary"
	"hash/crc32"
	"math"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

const (
	// FooterSize is the length of the footer, which ends a sealed segment.
	FooterSize = 160
	// MaxData bounds a segment's data: positions have 32 bits.
	MaxData = math.MaxUint32

	footerMagic   = "TMSEG\x00\x00"
	footerVersion = 1
	footerCRCAt   = 152
)

// Footer is the last 160 bytes of a sealed segment.
type Footer struct {
	Topic           broker.TopicID
	Partition       uint32
	Flags           uint32 // none are defined
	Base            int64  // first offset
	Next            int64  // exclusive end of offsets
	Records         int64
	MinTimestamp    int64 // ms; lowest base timestamp of a batch
	MaxTimestamp    int64 // ms
	FirstGeneration uint32
	LastGeneration  uint32
	DataLength      int64 // bytes; the index follows the data
	IndexLength     int64 // bytes
	IndexCRC32C     uint32
	DataSHA256      [32]byte
	MinAppend       int64 // ms; leader's time of the first commit, 0 when not known
	MaxAppend       int64
}

// Size is the length of the whole segment in bytes.
func (f *Footer) Size() int64 { return f.DataLength + f.IndexLength + FooterSize }

func appendFooter(b []byte, f *Footer) []byte {
	be, start := binary.BigEndian, len(b)
	b = append(b, footerMagic...)
	b = append(b, footerVersion)
	b = be.AppendUint64(b, uint64(f.Topic))
	b = be.AppendUint32(b, f.Partition)
	b = be.AppendUint32(b, f.Flags)
	b = be.AppendUint64(b, uint64(f.Base))
	b = be.AppendUint64(b, uint64(f.Next))
	b = be.AppendUint64(b, uint64(f.Records))
	b = be.AppendUint64(b, uint64(f.MinTimestamp))
	b = be.AppendUint64(b, uint64(f.MaxTimestamp))
	b = be.AppendUint32(b, f.FirstGeneration)
	b = be.AppendUint32(b, f.LastGeneration)
	b = be.AppendUint64(b, uint64(f.DataLength))
	b = be.AppendUint32(b, uint32(f.IndexLength))
	b = be.AppendUint32(b, f.IndexCRC32C)
	b = append(b, f.DataSHA256[:]...)
	b = be.AppendUint64(b, uint64(f.MinAppend))
	b = be.AppendUint64(b, uint64(f.MaxAppend))
	b = append(b, make([]byte, footerCRCAt-(len(b)-start))...)
	b = be.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
	return be.AppendUint32(b, FooterSize)
}

// ParseFooter reads a footer; b is exactly its 160 bytes. Every field is
// checked, so the caller may size a read of the index by IndexLength, which is
// in proportion to DataLength; the caller compares Size with the length that
// the file or object really has. Errors: Corrupt, UnsupportedVersion.
func ParseFooter(b []byte) (Footer, error) {
	if len(b) != FooterSize {
		return Footer{}, errcode.New(errcode.Corrupt, "segment footer: %d bytes, want %d", len(b), FooterSize)
	}
	if string(b[:7]) != footerMagic {
		return Footer{}, errcode.New(errcode.Corrupt, "segment footer: magic %x is not a segment's", b[:8])
	}
	if b[7] != footerVersion {
		return Footer{}, errcode.New(errcode.UnsupportedVersion, "segment footer: version %d, this build reads %d", b[7], footerVersion)
	}
	be := binary.BigEndian
	if want, got := be.Uint32(b[footerCRCAt:]), crc32.Checksum(b[:footerCRCAt], castagnoli); want != got {
		return Footer{}, errcode.New(errcode.Corrupt, "segment footer: crc32c want %08x, got %08x", want, got)
	}
	if n := be.Uint32(b[156:]); n != FooterSize {
		return Footer{}, errcode.New(errcode.Corrupt, "segment footer: length %d, want %d", n, FooterSize)
	}
	f := Footer{
		Topic:           broker.TopicID(be.Uint64(b[8:])),
		Partition:       be.Uint32(b[16:]),
		Flags:           be.Uint32(b[20:]),
		Base:            int64(be.Uint64(b[24:])),
		Next:            int64(be.Uint64(b[32:])),
		Records:         int64(be.Uint64(b[40:])),
		MinTimestamp:    int64(be.Uint64(b[48:])),
		MaxTimestamp:    int64(be.Uint64(b[56:])),
		FirstGeneration: be.Uint32(b[64:]),
		LastGeneration:  be.Uint32(b[68:]),
		DataLength:      int64(be.Uint64(b[72:])),
		IndexLength:     int64(be.Uint32(b[80:])),
		IndexCRC32C:     be.Uint32(b[84:]),
		DataSHA256:      [32]byte(b[88:120]),
		MinAppend:       int64(be.Uint64(b[120:])),
		MaxAppend:       int64(be.Uint64(b[128:])),
	}
	if be.Uint64(b[136:]) != 0 || be.Uint64(b[144:]) != 0 {
		return Footer{}, errcode.New(errcode.Corrupt, "segment footer: reserved bytes are %x, want zeros", b[136:footerCRCAt])
	}
	return f, f.check()
}

func (f *Footer) check() error {
	batches := f.IndexLength / IndexEntrySize
	switch {
	case f.Flags != 0:
		return errcode.New(errcode.UnsupportedVersion, "segment footer: flags %08x are not known to this build", f.Flags)
	case f.Base < 0 || f.Next <= f.Base || f.Records < 0 || f.Records > f.Next-f.Base:
		return errcode.New(errcode.Corrupt, "segment footer: %d records in offsets %d to %d", f.Records, f.Base, f.Next)
	case f.MinTimestamp > f.MaxTimestamp || f.MinAppend > f.MaxAppend || f.FirstGeneration > f.LastGeneration:
		return errcode.New(errcode.Corrupt, "segment footer: times %d to %d, append times %d to %d, generations %d to %d: one does not ascend",
			f.MinTimestamp, f.MaxTimestamp, f.MinAppend, f.MaxAppend, f.FirstGeneration, f.LastGeneration)
	case f.DataLength < HeaderSize || f.DataLength > MaxData:
		return errcode.New(errcode.Corrupt, "segment footer: data length %d is not between %d and %d", f.DataLength, HeaderSize, int64(MaxData))
	case f.IndexLength%IndexEntrySize != 0 || batches < 1 || batches > f.DataLength/HeaderSize || batches > f.Next-f.Base:
		return errcode.New(errcode.Corrupt, "segment footer: index length %d for %d bytes of data", f.IndexLength, f.DataLength)
	}
	return nil
}
