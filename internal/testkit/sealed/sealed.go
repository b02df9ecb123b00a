package sealed

import (
	"errors"
	"io"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// Batch is one batch of a segment: its records, and when the broker appended the
// first and the last of them, in ms.
type Batch struct {
	Records     []broker.Record
	Options     segment.BatchOptions
	First, Last int64
}

// File writes a sealed segment file of one partition below dir, which it makes,
// and returns its path. The segment begins at base, which need not be the first
// record's offset.
func File(t testing.TB, fs vfs.FS, dir string, id broker.PartitionID, base int64, batches ...Batch) (path string, info segment.Info) {
	t.Helper()
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w, err := segment.Create(fs, dir, segment.Options{Topic: id.Topic, Partition: id.Partition, Base: base})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range batches {
		data, err := segment.AppendBatch(nil, b.Records, b.Options)
		if err == nil {
			err = w.Append(data, b.First, b.Last)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	info, err = w.Seal()
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return w.Path(), info
}

// Object is File for a segment that is in the archive alone: it returns the
// bytes, and what the chain says of them as the attempt of that generation and
// nonce.
func Object(t testing.TB, id broker.PartitionID, base int64, generation, nonce uint32, batches ...Batch) (manifest.Segment, []byte) {
	t.Helper()
	fs := crash.NewFS()
	path, in := File(t, fs, "d", id, base, batches...)
	f, err := fs.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, in.Bytes)
	_, err = io.ReadFull(f, data)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return manifest.Segment{
		Partition: id, Base: in.Base, Next: in.Next, Records: in.Records, Bytes: in.Bytes,
		MinTimestamp: in.MinTimestamp, MaxTimestamp: in.MaxTimestamp, MinAppend: in.MinAppend, MaxAppend: in.MaxAppend,
		FirstGeneration: in.FirstGeneration, LastGeneration: in.LastGeneration, Generation: generation, Nonce: nonce,
		DataSHA256: in.DataSHA256, DataLength: in.DataLength, FooterPosition: in.FooterPosition, FooterLength: in.FooterLength, OriginTopic: id.Topic,
	}, data
}
