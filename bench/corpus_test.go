package bench

import (
	"context"
	"io"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

const (
	recordBytes  = 1 << 10
	batchRecords = 256 // 256 KiB before compression, as the flusher makes them
)

// archived is one segment in the store and its local file, same bytes.
type archived struct {
	seg  manifest.Segment
	path string
}

// makeSegments fills local segment files of the given sizes with one partition's
// records and puts them into the store. Sizes are bytes on disk, compressed; ratio
// is how much that saved.
func makeSegments(b *testing.B, st objstore.Store, dir string, sizes []int64) (segs []archived, ratio float64) {
	b.Helper()
	src := newTexts(1)
	// Nothing compresses across batches, so a few dozen under changing offsets
	// are as good as thousands.
	var batches [][]byte
	for range 64 {
		batches = append(batches, src.batch(b))
	}
	id := broker.PartitionID{Topic: 0xbe9c, Partition: 0}
	var out []archived
	next := int64(0)
	for _, size := range sizes {
		w, err := segment.Create(vfs.Default, dir, segment.Options{Topic: id.Topic, Partition: id.Partition, Base: next})
		if err != nil {
			b.Fatal(err)
		}
		for n := int64(0); n < size; {
			batch := batches[int(next/batchRecords)%len(batches)]
			segment.Stamp(batch, next, 1)
			if err := w.Append(batch, 1, 1); err != nil {
				b.Fatal(err)
			}
			n += int64(len(batch))
			next += batchRecords
		}
		in, err := w.Seal()
		if err != nil {
			b.Fatal(err)
		}
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
		seg := manifest.Segment{
			Partition: id, Base: in.Base, Next: in.Next, Records: in.Records, Bytes: in.Bytes,
			MinTimestamp: in.MinTimestamp, MaxTimestamp: in.MaxTimestamp, MinAppend: in.MinAppend, MaxAppend: in.MaxAppend,
			FirstGeneration: in.FirstGeneration, LastGeneration: in.LastGeneration, Generation: 1,
			DataSHA256: in.DataSHA256, DataLength: in.DataLength,
			FooterPosition: in.FooterPosition, FooterLength: in.FooterLength, OriginTopic: id.Topic,
		}
		put(b, st, seg, w.Path())
		out = append(out, archived{seg, w.Path()})
	}
	return out, float64(src.raw) / float64(src.packed)
}

func put(b *testing.B, st objstore.Store, seg manifest.Segment, path string) {
	b.Helper()
	f, err := vfs.Default.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := st.Put(ctx, seg.Key(), io.NewSectionReader(f, 0, seg.Bytes), seg.Bytes, objstore.PutOptions{}); err != nil {
		b.Fatal(err)
	}
}

// texts makes records that compress about as well as text does: words of a
// vocabulary, the frequent ones much more often than the rare ones, between
// numbers that do not repeat.
type texts struct {
	rng         *rand.Rand
	words       []string // as they come in a long text
	value       [batchRecords][recordBytes]byte
	records     []broker.Record
	raw, packed int64
}

func newTexts(seed uint64) *texts {
	t := &texts{rng: rand.New(rand.NewPCG(seed, 1)), records: make([]broker.Record, batchRecords), words: make([]string, 1<<20)}
	vocabulary := make([]string, 2000)
	for i := range vocabulary {
		w := make([]byte, 3+t.rng.IntN(8))
		for k := range w {
			w[k] = byte('a' + t.rng.IntN(26))
		}
		vocabulary[i] = string(w) + " "
	}
	pick := rand.NewZipf(t.rng, 1.3, 2, uint64(len(vocabulary)-1))
	for i := range t.words {
		t.words[i] = vocabulary[pick.Uint64()]
	}
	return t
}

// batch returns one compressed batch of records from offset 0 on.
func (t *texts) batch(b *testing.B) []byte {
	b.Helper()
	for i := range t.records {
		// Each record is a passage from anywhere: 7 MiB of text do not repeat
		// within a batch.
		v := t.value[i][:]
		n := copy(v, strconv.AppendUint(v[:0], uint64(t.rng.Uint32()), 10))
		for at := t.rng.IntN(len(t.words)); n < len(v); at++ {
			n += copy(v[n:], t.words[at%len(t.words)])
		}
		t.records[i] = broker.Record{Offset: int64(i), Timestamp: 1_700_000_000_000 + int64(i), Value: v}
	}
	raw, err := segment.AppendBatch(nil, t.records, segment.BatchOptions{Codec: segment.CodecZstd, Generation: 1})
	if err != nil {
		b.Fatal(err)
	}
	t.raw += batchRecords * recordBytes
	t.packed += int64(len(raw))
	return raw
}
