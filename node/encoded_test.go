package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/pierrec/lz4/v4"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/restore"
	"github.com/tidemark-mq/tidemark/segment"
)

// kafkaBounds are those of the HTTP plane.
var kafkaBounds = broker.RecordBounds{Records: 1000, Value: 1 << 20, Key: 64 << 10, Headers: 128, HeaderBytes: 64 << 10, Decoded: 16 << 20}

// kafkaBatch encodes records as a Kafka client does: offsets from 0, a compression,
// no producer.
func kafkaBatch(t testing.TB, codec segment.Codec, recs []broker.Record) []byte {
	t.Helper()
	b, err := segment.AppendBatch(nil, recs, segment.BatchOptions{Generation: 1<<32 - 1})
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	plain := b[segment.HeaderSize:]
	switch codec {
	case segment.CodecNone:
		packed.Write(plain)
	case segment.CodecGzip:
		w := gzip.NewWriter(&packed)
		_, _ = w.Write(plain)
		_ = w.Close()
	case segment.CodecSnappy: // in the framing of the Java clients
		packed.Write([]byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0, 0, 0, 0, 1, 0, 0, 0, 1})
		block := snappy.Encode(nil, plain)
		_ = binary.Write(&packed, binary.BigEndian, uint32(len(block)))
		packed.Write(block)
	case segment.CodecLZ4:
		w := lz4.NewWriter(&packed)
		_, _ = w.Write(plain)
		_ = w.Close()
	case segment.CodecZstd:
		if b, err = segment.AppendBatch(nil, recs, segment.BatchOptions{Codec: codec}); err != nil {
			t.Fatal(err)
		}
		return b
	}
	b = append(b[:segment.HeaderSize:segment.HeaderSize], packed.Bytes()...)
	b[22] |= byte(codec)
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// kafkaRecords are n records of the time ms and the milliseconds behind it.
func kafkaRecords(ms int64, name string, n int) (out []broker.Record) {
	for i := range n {
		out = append(out, broker.Record{
			Offset: int64(i), Timestamp: ms + int64(i), Key: []byte(name), Value: []byte(strings.Repeat(fmt.Sprintf("%s %d ", name, i), 20)),
			Headers: []broker.Header{{Name: "codec", Value: []byte(name)}},
		})
	}
	return out
}

func produceEncoded(n *Node, topic string, partition uint32, ack broker.Ack, data []byte) (broker.Produced, error) {
	return n.Produce(context.Background(), broker.ProduceRequest{
		Topic: topic, Ack: ack, Encoded: &broker.EncodedBatch{Data: data, Partition: partition, Bounds: kafkaBounds},
	})
}

var codecs = []segment.Codec{segment.CodecNone, segment.CodecGzip, segment.CodecSnappy, segment.CodecLZ4, segment.CodecZstd}

// A batch of a Kafka client is stored with the bytes that it came with, in every
// compression, and read everywhere: out of memory, by consumers, out of files, out of the
// archive, after a crash out of the log, after a restore, and by verification, with the
// times that the client gave, by which they are found.
func TestKafkaBatchesAreReadEverywhere(t *testing.T) {
	r := newRetaining(t, func(o *Options) { o.SegmentBytes = 1 << 20 }, broker.TopicSpec{RetentionMS: ptr(int64(0))})
	defer func() { closeNode(t, r.Node) }()
	created := time.Now().Add(-48 * time.Hour).UnixMilli()
	var sent [][]byte
	var want []string
	for round := range 2 { // the second one stays in the log
		if round == 1 {
			r.archived()
		}
		for _, c := range codecs {
			// Large enough that none is merged with its neighbours.
			recs := kafkaRecords(created+int64(len(want)), c.String(), 300)
			data := kafkaBatch(t, c, recs)
			if c == segment.CodecNone && len(data) < 32<<10 {
				t.Fatalf("%d bytes may be merged", len(data))
			}
			was := bytes.Clone(data)
			got, err := produceEncoded(r.Node, "logs", 0, broker.AckCommitted, data)
			if err != nil {
				t.Fatalf("%s: %v", c, err)
			}
			if p := got.Placements[0]; p.FirstOffset != int64(len(want)) || p.Count != 300 || !bytes.Equal(was, data) {
				t.Fatalf("%s: %+v, or the caller's bytes were changed", c, p)
			}
			sent = append(sent, was)
			for _, rec := range recs {
				want = append(want, fmt.Sprintf("%d %s=%s", len(want), rec.Key, rec.Value))
			}
		}
	}
	check := func(where string) {
		t.Helper()
		if got := readAll(t, r.Node, "logs", 0); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%s: %d records are not the %d that were sent", where, len(got), len(want))
		}
		p := r.part()
		for i, from := 0, int64(0); i < len(sent); i++ {
			run, err := p.Read(context.Background(), from, 1, nil)
			if err != nil || len(run) == 0 {
				t.Fatalf("%s: batch %d: %v", where, i, err)
			}
			h, err := segment.VerifyBatch(run[0])
			// Offset and generation are the broker's; everything else is as it came.
			if err != nil || h.BaseOffset != from || h.Generation == 0 || h.Generation > p.Generation() || !bytes.Equal(run[0][16:], sent[i][16:]) || !bytes.Equal(run[0][8:12], sent[i][8:12]) {
				t.Fatalf("%s: batch %d is not what was sent: %+v %v", where, i, h, err)
			}
			from = h.NextOffset()
		}
		for _, at := range []int64{0, 7, 299, 300, 1499, 1500, 2999} {
			if got, err := r.OffsetForTime(context.Background(), "logs", 0, created+at); err != nil || got != at {
				t.Errorf("%s: the time of offset %d is found at %d: %v", where, at, got, err)
			}
		}
	}
	check("memory")
	msgs, err := r.Consume(context.Background(), broker.ConsumeRequest{Topic: "logs", Partition: -1, Max: 3000})
	if err != nil || len(msgs) != 3000 || msgs[650].Timestamp != created+650 || string(msgs[650].Headers[0].Value) != "snappy" {
		t.Fatalf("%d messages consumed: %v", len(msgs), err)
	}
	closeNode(t, r.Node)
	r.Node = openNode(t, r.o)
	check("files and log after a restart")
	r.archived()
	check("files")
	setTopic(t, r.Node, "logs", broker.TopicSpec{LocalRetentionMS: ptr(int64(0)), LocalRetentionBytes: ptr(int64(1))})
	within(t, "the older segment leaves the disk", func() bool { return len(r.part().Local().Pieces) <= 1 })
	check("archive")
	if _, err := r.StartScrub(context.Background(), "logs"); err != nil {
		t.Fatal(err)
	}
	within(t, "everything is verified", func() bool {
		s, err := r.Scrub(context.Background())
		return err == nil && len(s.Asked) == 0
	})
	if s, err := r.Scrub(context.Background()); err != nil || len(s.Findings)+len(s.Repaired) > 0 {
		t.Errorf("%+v %v", s, err)
	}
	// What a client says of the time plays no part in age: two days old by its own
	// word, the records stay; an hour of the broker's clock is what counts (B111).
	setTopic(t, r.Node, "logs", broker.TopicSpec{RetentionMS: ms(time.Hour)})
	r.sweeper.Turn(context.Background())
	if oldest := r.part().Oldest(); oldest != 0 {
		t.Errorf("the log begins at %d", oldest)
	}
	closeNode(t, r.Node)
	r.o.Dir = filepath.Join(t.TempDir(), "restored")
	if _, err := restore.Run(context.Background(), restore.Options{
		Store: r.store, Dir: r.o.Dir, NodeID: "node-1", RaftAddr: "127.0.0.1:0", TakeOver: true, Force: true,
		Now: func() time.Time { return time.Now().Add(48 * time.Hour) },
	}); err != nil {
		t.Fatal(err)
	}
	r.Node = openNode(t, r.o)
	check("restored")
}

// What a record of a client's batch has is bounded as in every other body, and a batch
// with one that is not is refused whole, by the number of the record. So is a time that
// is in another unit (B111).
func TestKafkaBatchIsRefusedWhole(t *testing.T) {
	m := newMemNode(t, nil)
	defer func() { m.close() }()
	createTopic(t, m.Node, "t", 2)
	now := time.Now().UnixMilli()
	for name, c := range map[string]struct {
		change func(r *broker.Record)
		code   errcode.Code
		says   string
	}{
		"value":        {func(r *broker.Record) { r.Value = make([]byte, 1<<20+1) }, errcode.TooLarge, "payload has 1048577"},
		"key":          {func(r *broker.Record) { r.Key = make([]byte, 64<<10+1) }, errcode.TooLarge, "key has 65537"},
		"headers":      {func(r *broker.Record) { r.Headers = make([]broker.Header, 129) }, errcode.InvalidArgument, "129 headers"},
		"header bytes": {func(r *broker.Record) { r.Headers[0].Value = make([]byte, 64<<10) }, errcode.TooLarge, "headers has 65541"},
		"no name":      {func(r *broker.Record) { r.Headers[0].Name = "" }, errcode.InvalidArgument, "no name"},
		"no text":      {func(r *broker.Record) { r.Headers[0].Name = "a\xff" }, errcode.InvalidArgument, "not UTF-8"},
		"own name":     {func(r *broker.Record) { r.Headers[0].Name = "tm-attempt" }, errcode.InvalidArgument, "the broker's own"},
		"seconds":      {func(r *broker.Record) { r.Timestamp /= 1000 }, errcode.InvalidArgument, "timestamp"},
		"microseconds": {func(r *broker.Record) { r.Timestamp *= 1000 }, errcode.InvalidArgument, "timestamp"},
		"none":         {func(r *broker.Record) { r.Timestamp = -1 }, errcode.InvalidArgument, "timestamp"},
		"ahead":        {func(r *broker.Record) { r.Timestamp += 2 * 3600 * 1000 }, errcode.InvalidArgument, "timestamp"},
	} {
		recs := kafkaRecords(now, "k", 20)
		c.change(&recs[13])
		_, err := produceEncoded(m.Node, "t", 1, broker.AckAccepted, kafkaBatch(t, segment.CodecLZ4, recs))
		var e *errcode.Error
		if !errors.As(err, &e) || e.Code != c.code || !strings.Contains(e.Msg, c.says) || !strings.HasPrefix(e.Msg, "message 13: ") || e.Facts["message"] != 13 {
			t.Errorf("%s: %v", name, err)
		}
	}
	good := kafkaBatch(t, segment.CodecNone, kafkaRecords(now, "k", 3))
	if _, err := produceEncoded(m.Node, "t", 2, broker.AckAccepted, good); !errcode.Is(err, errcode.NotFound) {
		t.Errorf("no such partition: %v", err)
	}
	for at := range good {
		bad := bytes.Clone(good)
		bad[at] ^= 0x11
		if _, err := produceEncoded(m.Node, "t", 1, broker.AckAccepted, bad); err == nil && (at >= 8 && at < 12 || at >= 16) {
			t.Errorf("byte %d may be anything", at)
		}
	}
	all := len(readAll(t, m.Node, "t", 1)) // of those with another base offset or generation
	if all%3 != 0 || all > 12*3 {
		t.Errorf("%d records are stored", all)
	}
	// Small ones of different clients at the same time, and a crash.
	var wg sync.WaitGroup
	for c := range codecs {
		wg.Go(func() {
			for i := range 20 {
				data := kafkaBatch(t, codecs[c], kafkaRecords(now, fmt.Sprint(c, ".", i), 5))
				if _, err := produceEncoded(m.Node, "t", 0, broker.AckAccepted, data); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	before := readAll(t, m.Node, "t", 0)
	m.crash(0, 1)
	if after := readAll(t, m.Node, "t", 0); len(after) != len(codecs)*20*5 || fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("%d records after the crash, %d before", len(after), len(before))
	}
}
