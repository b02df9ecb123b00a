package manifest

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"hash/crc32"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// castagnoli is the CRC-32C table that stores check uploads with.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// coders returns the compressor and the decompressor, made at first use: both
// are safe for concurrent EncodeAll and DecodeAll and hold no goroutine.
var coders = sync.OnceValues(func() (*zstd.Encoder, *zstd.Decoder) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(2), zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderCRC(true))
	if err != nil {
		panic("manifest: zstd encoder options: " + err.Error()) // the options are constants
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxMemory(maxDecoded))
	if err != nil {
		panic("manifest: zstd decoder options: " + err.Error())
	}
	return enc, dec
})

// object is an encoded entry or page: what is stored, and the hash of its
// JSON, which is what links and page references name. The hash is over the
// JSON and not over the stored bytes, so that another compressor, or a store
// that recompresses, changes no link.
type object struct {
	stored []byte
	size   int // of the JSON
	sum    Hash
}

func encode(v any) (object, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return object{}, errcode.New(errcode.Internal, "encode manifest object: %w", err)
	}
	if len(raw) > maxDecoded {
		return object{}, errcode.New(errcode.TooLarge, "manifest object has %d bytes, the bound is %d", len(raw), maxDecoded)
	}
	enc, _ := coders()
	o := object{stored: enc.EncodeAll(raw, nil), size: len(raw), sum: sha256.Sum256(raw)}
	if len(o.stored) > maxStored {
		return object{}, errcode.New(errcode.TooLarge, "manifest object has %d bytes compressed, the bound is %d", len(o.stored), maxStored)
	}
	return o, nil
}

// decompress returns the JSON of a stored object. The size that the frame
// declares is believed only as far as the stored bytes can carry it: JSON does
// not compress a thousandfold.
func decompress(stored []byte, what string) ([]byte, error) {
	var h zstd.Header
	if err := h.Decode(stored); err != nil || h.Skippable {
		return nil, errcode.New(errcode.Corrupt, "%s is not a zstd frame", what)
	}
	limit := min(uint64(maxDecoded), 64<<10+1000*uint64(len(stored)))
	if !h.HasFCS || h.FrameContentSize > limit {
		return nil, errcode.New(errcode.Corrupt, "%s: %d stored bytes declare a size of %d (said: %v), over the bound of %d", what, len(stored), h.FrameContentSize, h.HasFCS, limit)
	}
	_, dec := coders()
	raw, err := dec.DecodeAll(stored, make([]byte, 0, h.FrameContentSize))
	if err != nil {
		return nil, errcode.New(errcode.Corrupt, "%s does not decompress: %w", what, err)
	}
	if uint64(len(raw)) != h.FrameContentSize {
		return nil, errcode.New(errcode.Corrupt, "%s has %d bytes, its first frame says %d", what, len(raw), h.FrameContentSize)
	}
	return raw, nil
}

// EncodeEntry returns the bytes to store for e and the SHA-256 of its JSON, to
// which the next entry links.
func EncodeEntry(e *Entry) (stored []byte, sum Hash, err error) {
	o, err := encode(e.wire())
	return o.stored, o.sum, err
}

// DecodeEntry reads a stored entry and returns the SHA-256 of its JSON. The
// error is Corrupt, or UnsupportedVersion for a format of a newer build.
func DecodeEntry(stored []byte) (*Entry, Hash, error) {
	e, o, err := decodeEntry(stored, "manifest entry")
	return e, o.sum, err
}

func decodeEntry(stored []byte, what string) (*Entry, object, error) {
	raw, err := decompress(stored, what)
	if err != nil {
		return nil, object{}, err
	}
	var w entryJSON
	if err := unmarshal(raw, what, &w); err != nil {
		return nil, object{}, err
	}
	e, err := w.entry()
	if err != nil {
		return nil, object{}, errcode.Wrap(errcode.Corrupt, err, "%s", what)
	}
	return e, object{size: len(raw), sum: sha256.Sum256(raw)}, nil
}

// EncodePage returns the bytes to store for p and the reference that names it.
func EncodePage(p *Page) (stored []byte, ref PageRef, err error) {
	o, err := encode(pageJSON{Version, p.Partition.Topic, p.Partition.Partition, wireSegments(p.Segments)})
	return o.stored, pageRef(p.Segments, o.sum), err
}

// DecodePage reads a stored page; errors as DecodeEntry.
func DecodePage(stored []byte) (*Page, PageRef, error) {
	return decodePage(stored, "manifest page")
}

func decodePage(stored []byte, what string) (*Page, PageRef, error) {
	raw, err := decompress(stored, what)
	if err != nil {
		return nil, PageRef{}, err
	}
	var w pageJSON
	if err := unmarshal(raw, what, &w); err != nil {
		return nil, PageRef{}, err
	}
	if n := len(w.Segments); n == 0 || n > PageSegments {
		return nil, PageRef{}, errcode.New(errcode.Corrupt, "%s lists %d segments, want 1 to %d", what, n, PageSegments)
	}
	p := &Page{Partition: broker.PartitionID{Topic: w.Topic, Partition: w.Partition}}
	if p.Segments, err = readSegments(p.Partition, w.Segments); err != nil {
		return nil, PageRef{}, errcode.Wrap(errcode.Corrupt, err, "%s", what)
	}
	return p, pageRef(p.Segments, sha256.Sum256(raw)), nil
}

func pageRef(segs []Segment, sum Hash) PageRef {
	if len(segs) == 0 {
		return PageRef{SHA256: sum}
	}
	r := PageRef{Base: segs[0].Base, Next: segs[len(segs)-1].Next, SHA256: sum, MaxTimestamp: segs[0].MaxTimestamp, MaxAppend: segs[0].MaxAppend}
	for _, s := range segs {
		r.Totals = r.Totals.plus(s)
		r.MaxTimestamp = max(r.MaxTimestamp, s.MaxTimestamp)
		r.MaxAppend = max(r.MaxAppend, s.MaxAppend)
	}
	return r
}

// JSON returns the decompressed JSON of a stored entry or page, for tools that
// print it.
func JSON(stored []byte) ([]byte, error) {
	raw, err := decompress(stored, "manifest object")
	return bytes.TrimSpace(raw), err
}
