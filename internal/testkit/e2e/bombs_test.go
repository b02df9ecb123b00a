package e2e

import (
	"bytes"
	"compress/gzip"
	bits "encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// zeros is a reader of n zero bytes.
func zeros(n int64) io.Reader { return io.LimitReader(zeroReader{}, n) }

type zeroReader struct{}

func (zeroReader) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// packed is n zero bytes through a compressor.
func packed(t *testing.T, n int64, compressor func(io.Writer) io.WriteCloser) []byte {
	t.Helper()
	var out bytes.Buffer
	w := compressor(&out)
	if _, err := io.Copy(w, zeros(n)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func toGzip(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }
func toLZ4(w io.Writer) io.WriteCloser  { return lz4.NewWriter(w) }

func toZstd(w io.Writer) io.WriteCloser {
	z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		panic(err) // the options are constants
	}
	return z
}

// kafkaBomb is a batch as a Kafka client frames it, with a checksum that fits.
func kafkaBomb(codec uint16, content []byte) string {
	be := bits.BigEndian
	b := be.AppendUint16(nil, codec)
	b = be.AppendUint32(b, 0) // one record
	now := uint64(time.Now().UnixMilli())
	b = be.AppendUint64(be.AppendUint64(b, now), now)
	b = append(b, bytes.Repeat([]byte{0xff}, 8+2+4)...) // no producer
	b = append(be.AppendUint32(b, 1), content...)
	out := be.AppendUint32(make([]byte, 8), uint32(len(b)+4+1+4))
	out = append(be.AppendUint32(out, 1<<32-1), 2)
	out = be.AppendUint32(out, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return string(append(out, b...))
}

// Bodies that are small and decode to hundreds of MiB are refused with a reason,
// many at a time, in each encoding of a body and each compression of a Kafka batch:
// the broker's memory stays what its bounds allow, nothing of them is stored, and a
// producer beside them is served all the while (B28, I12, I13).
func TestCompressedBombs(t *testing.T) {
	r := crowded(t, "--memory-budget", "32MiB") // the collector is told twice that and 320 MiB
	const (
		path    = "/v1/topics/" + topic + "/produce/batch?partition=0"
		body    = 256 << 20 // of a body, decoded
		batch   = 64 << 20  // of a Kafka batch, decoded
		senders = 16
		rounds  = 1
		// 256 MiB of bodies in flight, and what the collector has not found yet.
		mostPeak = 704 << 20
	)
	block := snappy.Encode(nil, make([]byte, batch))
	bombs := map[string]string{
		"body gzip":    post(path, string(packed(t, body, toGzip)), "Content-Type: application/x-ndjson", "Content-Encoding: gzip"),
		"body zstd":    post(path, string(packed(t, body, toZstd)), "Content-Type: application/json", "Content-Encoding: zstd"),
		"frames zstd":  post(path, string(packed(t, body, toZstd)), "Content-Type: application/vnd.tidemark.frames", "Content-Encoding: zstd"),
		"batch gzip":   post(path, kafkaBomb(1, packed(t, batch, toGzip)), "Content-Type: application/vnd.kafka.record-batch"),
		"batch snappy": post(path, kafkaBomb(2, block), "Content-Type: application/vnd.kafka.record-batch"),
		"batch lz4":    post(path, kafkaBomb(3, packed(t, batch, toLZ4)), "Content-Type: application/vnd.kafka.record-batch"),
		"batch zstd":   post(path, kafkaBomb(4, packed(t, batch, toZstd)), "Content-Type: application/vnd.kafka.record-batch"),
	}
	var stop atomic.Bool
	var stored atomic.Int64
	beside, err := r.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer beside.Close()
	served := make(chan error, 1)
	go func() {
		for !stop.Load() {
			status, text, err := beside.ask(post("/v1/topics/"+topic+"/produce?partition=1", "beside"))
			if err != nil || status != 202 {
				served <- fmt.Errorf("a producer beside the bombs: %d %s %w", status, text, err)
				return
			}
			stored.Add(1)
		}
		served <- nil
	}()
	for name, request := range bombs {
		began := stored.Load()
		var refused atomic.Int64
		c := r.gather(senders, func(*peer) error { return nil })
		c.all(func(p *peer) error {
			for range rounds {
				status, text, err := p.ask(request)
				switch {
				case err != nil:
					return fmt.Errorf("%s: %w", name, err)
				case status == 503 && strings.Contains(text, `"retry":"after"`): // as many bodies as fit are in flight
				case (status == 413 || status == 400) && strings.Contains(text, `"error":"`):
					refused.Add(1)
				default:
					return fmt.Errorf("%s: %d %s", name, status, text)
				}
			}
			return nil
		})
		c.leave()
		if refused.Load() == 0 || stored.Load() == began {
			t.Errorf("%s: %d were refused with a reason, %d records were stored meanwhile", name, refused.Load(), stored.Load()-began)
		}
	}
	stop.Store(true)
	if err := <-served; err != nil {
		t.Error(err)
	}
	peak := r.usage().peak
	t.Logf("at most %d MiB resident; %d records beside", peak>>20, stored.Load())
	if peak > mostPeak {
		t.Errorf("the broker had %d MiB", peak>>20)
	}
	info, err := r.node.Topic(limited(t), topic)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range info.PartitionStats {
		if want := map[int]int64{1: stored.Load()}[i]; s.HighWatermark != want {
			t.Errorf("partition %d has %d records, want %d", i, s.HighWatermark, want)
		}
	}
}
