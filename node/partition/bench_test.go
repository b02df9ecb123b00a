package partition

import (
	"bytes"
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/segment"
)

// voidFS is a file system whose log and segment files take writes and syncs at
// once and keep nothing: what is left is the engine's own work.
type voidFS struct{ vfs.FS }

type voidFile struct{ vfs.File }

func (f voidFS) wrap(file vfs.File, err error, name string) (vfs.File, error) {
	if err == nil && !strings.Contains(name, "data/state") {
		file = voidFile{file}
	}
	return file, err
}

func (f voidFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	return f.wrap(file, err, name)
}

func (f voidFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.FS.OpenReadWrite(name, c, o...)
	return f.wrap(file, err, name)
}

func (voidFile) WriteAt(b []byte, _ int64) (int, error) { return len(b), nil }
func (voidFile) Sync() error                            { return nil }
func (voidFile) SyncData() error                        { return nil }

// benchRecords are n records with values of size bytes of text.
func benchRecords(n, size int) []broker.Record {
	recs := make([]broker.Record, n)
	words := strings.Fields("order paid shipped customer warehouse invoice 4711 pending late Berlin Hamburg euro")
	for i := range recs {
		var v bytes.Buffer
		for j := i; v.Len() < size; j = (j*7 + 3) % 1009 {
			v.WriteString(words[j%len(words)])
			v.WriteByte(' ')
		}
		recs[i] = broker.Record{Offset: int64(i), Timestamp: 1, Value: v.Bytes()[:size]}
	}
	return recs
}

func benchOptions(o *Options) {
	*o = Options{FS: o.FS, Dir: o.Dir, State: o.State, Incarnation: o.Incarnation, MemoryBudget: 256 << 20}
}

// Batches of 100 records of 256 bytes, from the append to the answer and the
// flush behind it, on one core and a disk that costs nothing: with and without
// the encoding of the records.
func BenchmarkAppend100x256(b *testing.B) {
	recs := benchRecords(100, 256)
	encoded, err := segment.AppendBatch(nil, recs, segment.BatchOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for _, bench := range []struct {
		name  string
		batch func() ([]byte, error)
	}{
		{"encoded", func() ([]byte, error) { return bytes.Clone(encoded), nil }},
		{"records", func() ([]byte, error) {
			return segment.AppendBatch(make([]byte, 0, len(encoded)), recs, segment.BatchOptions{})
		}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			r := open(b, voidFS{vfs.NewMem()}, benchOptions)
			r.create(0)
			p := r.engine.Get(pid(0))
			b.ReportAllocs()
			b.SetBytes(int64(len(encoded)))
			for b.Loop() {
				data, err := bench.batch()
				if err != nil {
					b.Fatal(err)
				}
				parts := []Part{{Partition: p, Batches: []Batch{{Data: data, Span: 100}}}}
				lsn, err := r.append(parts, 1) // compression is what holds it up
				if err != nil {
					b.Fatal(err)
				}
				if err := r.log.WaitDurable(context.Background(), lsn); err != nil {
					b.Fatal(err)
				}
				r.engine.Advance(parts)
			}
			b.StopTimer()
			b.ReportMetric(100*float64(b.N)/b.Elapsed().Seconds(), "records/s")
			r.close()
		})
	}
}

// A sequential replay of 48 MB from memory and from segment files, as stored
// batches and decoded.
func BenchmarkHotRead(b *testing.B) {
	r := open(b, vfs.NewMem(), func(o *Options) {
		benchOptions(o)
		o.Compress, o.CheckpointInterval = noCompression, time.Hour
		o.HotBytes = o.MemoryBudget
	})
	r.create(0)
	encoded, err := segment.AppendBatch(nil, benchRecords(100, 256), segment.BatchOptions{})
	if err != nil {
		b.Fatal(err)
	}
	p := r.engine.Get(pid(0))
	size := int64(0)
	for ; size < 48<<20; size += int64(len(encoded)) {
		parts := []Part{{Partition: p, Batches: []Batch{{Data: bytes.Clone(encoded), Span: 100}}}}
		lsn, err := r.engine.Append(parts, 1)
		if err == nil {
			err = r.log.WaitDurable(context.Background(), lsn)
		}
		if err != nil {
			b.Fatal(err)
		}
		r.engine.Advance(parts)
	}
	replay := func(b *testing.B, each func(batch []byte) int) {
		b.ReportAllocs()
		b.SetBytes(size)
		var buf Buffer
		records := 0
		for b.Loop() {
			for from, end := int64(0), p.HighWatermark(); from < end; {
				run, err := p.Read(context.Background(), from, 1<<20, &buf)
				if err != nil || len(run) == 0 {
					b.Fatalf("at %d: %d batches %v", from, len(run), err)
				}
				for _, batch := range run {
					records += each(batch)
				}
				h, err := segment.ParseHeader(run[len(run)-1])
				if err != nil {
					b.Fatal(err)
				}
				from = h.NextOffset()
			}
		}
		if records > 0 {
			b.ReportMetric(float64(records)/b.Elapsed().Seconds(), "records/s")
		}
	}
	var scratch segment.Scratch
	var recs []broker.Record
	raw := func([]byte) int { return 0 }
	decoded := func(batch []byte) int {
		if recs, err = segment.DecodeBatch(recs[:0], batch, &scratch); err != nil {
			b.Fatal(err)
		}
		return len(recs)
	}
	b.Run("tail/raw", func(b *testing.B) { replay(b, raw) })
	b.Run("tail/decoded", func(b *testing.B) { replay(b, decoded) })
	r.flush(0)
	r.checkpoint()
	p.evict(1 << 40)
	b.Run("files/raw", func(b *testing.B) { replay(b, raw) })
	b.Run("files/decoded", func(b *testing.B) { replay(b, decoded) })
	r.close()
}
