package bench

import (
	"bytes"
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node"
)

const (
	hotHTTPRounds = 9
	hotBytes      = 512 << 20 // of values in the node's files
)

// BenchmarkHotHTTP is one reader of records that are in local files, and in the
// page cache, over HTTP; client and server are in this process. Each round does
//
//	tcp     as many bytes as are stored through a connection of the loopback, 256 KiB
//	        a write and a read
//	raw     a node's stream of stored batches (GET .../records), every one verified
//	ndjson  a node's stream of decoded records
//
// and reports raw/tcp by stored bytes, and ndjson by bytes of values (S8).
func BenchmarkHotHTTP(b *testing.B) {
	url := hotNode(b, sized(hotBytes))
	var tcp, raw, ndjson, rawX series
	stored := int64(0)
	for b.Loop() {
		for round := range rounds(hotHTTPRounds) {
			r := seconds(func() { stored = replayRaw(b, url) })
			t := seconds(func() { loopback(b, stored) })
			n := seconds(func() { replayAll(b, url, sized(hotBytes)) })
			if round == 0 {
				continue // warms
			}
			mb := float64(stored) / 1e6
			raw.add(mb / r)
			tcp.add(mb / t)
			ndjson.add(float64(sized(hotBytes)) / 1e6 / n)
			rawX.add(t / r)
		}
	}
	tcp.report(b, "tcp-MB/s", false)
	raw.report(b, "raw-MB/s", true)
	ndjson.report(b, "ndjson-MB/s", true)
	b.ReportMetric(float64(sized(hotBytes))/float64(stored), "zstd-ratio")
	rawX.report(b, "raw/tcp", true)
}

// bareNode is a node without archive.
func bareNode(b *testing.B) *node.Node {
	n, err := node.Open(b.Context(), node.Options{Dir: filepath.Join(b.TempDir(), "data"), NodeID: "node-1", RaftAddr: "127.0.0.1:0", DiskReserve: 1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := n.Close(); err != nil {
			b.Error(err)
		}
	})
	return n
}

// hotNode is a node without archive whose topic has text of so many bytes, and the
// URL of its records.
func hotNode(b *testing.B, size int) string {
	n := bareNode(b)
	one := uint32(1)
	if _, err := n.CreateTopic(b.Context(), broker.TopicSpec{Name: "hot", Partitions: &one}); err != nil {
		b.Fatal(err)
	}
	src := newTexts(2)
	src.batch(b)
	var recs []broker.NewRecord
	for i := range src.records {
		recs = append(recs, broker.NewRecord{Partition: 0, Value: bytes.Clone(src.records[i].Value)})
	}
	for size > 0 {
		if _, err := n.Produce(b.Context(), broker.ProduceRequest{Topic: "hot", Records: recs, Ack: broker.AckCommitted}); err != nil {
			b.Fatal(err)
		}
		for _, r := range recs {
			size -= len(r.Value)
		}
	}
	return serveNode(b, n) + "/v1/topics/hot/partitions/0/records"
}

// loopback sends size bytes through a TCP connection and reads them.
func loopback(b *testing.B, size int64) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	sent := make(chan error, 1)
	go func() {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			sent <- err
			return
		}
		buf := make([]byte, 256<<10)
		for left := size; left > 0 && err == nil; left -= int64(len(buf)) {
			_, err = c.Write(buf[:min(int64(len(buf)), left)])
		}
		sent <- errors.Join(err, c.Close())
	}()
	c, err := ln.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	n, buf := int64(0), make([]byte, 256<<10)
	for {
		k, err := c.Read(buf)
		n += int64(k)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	if err := <-sent; err != nil || n != size {
		b.Fatalf("%d of %d bytes: %v", n, size, err)
	}
}
