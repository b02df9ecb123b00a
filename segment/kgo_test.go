package segment

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// loopback answers what a producer asks and keeps the batches that it sends.
type loopback struct {
	ln   net.Listener
	wg   sync.WaitGroup
	mu   sync.Mutex
	got  [][]byte
	fail error
}

func newLoopback(t *testing.T) *loopback {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &loopback{ln: ln}
	l.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			l.wg.Go(func() { l.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		l.wg.Wait()
	})
	return l
}

// serve ends when the client closes its connection.
func (l *loopback) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	for {
		var size [4]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		frame := make([]byte, min(binary.BigEndian.Uint32(size[:]), 1<<20))
		if _, err := io.ReadFull(c, frame); err != nil {
			return
		}
		out, err := l.answer(frame)
		if err != nil {
			l.mu.Lock()
			l.fail = err
			l.mu.Unlock()
			return
		}
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}

// answer handles one request. The versions offered are old enough that no
// header has tags.
func (l *loopback) answer(frame []byte) ([]byte, error) {
	be := binary.BigEndian
	req := kmsg.RequestForKey(int16(be.Uint16(frame)))
	if req == nil {
		return nil, errors.New("unknown request")
	}
	req.SetVersion(int16(be.Uint16(frame[2:])))
	body := frame[10:]
	if n := int16(be.Uint16(frame[8:])); n > 0 { // client id
		body = body[n:]
	}
	if err := req.ReadFrom(body); err != nil {
		return nil, err
	}
	resp := req.ResponseKind()
	switch r := req.(type) {
	case *kmsg.ApiVersionsRequest:
		for key, highest := range map[int16]int16{0: 7, 3: 8, 18: 2} {
			resp.(*kmsg.ApiVersionsResponse).ApiKeys = append(resp.(*kmsg.ApiVersionsResponse).ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: key, MaxVersion: highest})
		}
	case *kmsg.MetadataRequest:
		m, addr := resp.(*kmsg.MetadataResponse), l.ln.Addr().(*net.TCPAddr)
		m.Brokers = []kmsg.MetadataResponseBroker{{NodeID: 1, Host: addr.IP.String(), Port: int32(addr.Port)}}
		for _, t := range r.Topics {
			m.Topics = append(m.Topics, kmsg.MetadataResponseTopic{Topic: t.Topic, Partitions: []kmsg.MetadataResponseTopicPartition{{Leader: 1, Replicas: []int32{1}, ISR: []int32{1}}}})
		}
	case *kmsg.ProduceRequest:
		for _, t := range r.Topics {
			out := kmsg.ProduceResponseTopic{Topic: t.Topic}
			for _, p := range t.Partitions {
				l.mu.Lock()
				l.got = append(l.got, append([]byte(nil), p.Records...))
				l.mu.Unlock()
				out.Partitions = append(out.Partitions, kmsg.ProduceResponseTopicPartition{Partition: p.Partition, LogAppendTime: -1})
			}
			resp.(*kmsg.ProduceResponse).Topics = append(resp.(*kmsg.ProduceResponse).Topics, out)
		}
	default:
		return nil, errors.New("a request that this broker does not offer")
	}
	out := append(make([]byte, 4), frame[4:8]...) // length, correlation id
	out = resp.AppendTo(out)
	be.PutUint32(out, uint32(len(out)-4))
	return out, nil
}

// What a real Kafka client sends verifies and decodes to the records that it
// was given, with every compression that it offers, and can be stored as it is.
func TestRealProducer(t *testing.T) {
	for name, c := range map[string]struct {
		codec  kgo.CompressionCodec
		stored Codec
	}{
		"none":   {kgo.NoCompression(), CodecNone},
		"gzip":   {kgo.GzipCompression(), CodecGzip},
		"snappy": {kgo.SnappyCompression(), CodecSnappy},
		"zstd":   {kgo.ZstdCompression(), CodecZstd},
		"lz4":    {kgo.Lz4Compression(), CodecLZ4},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLoopback(t)
			cl, err := kgo.NewClient(kgo.SeedBrokers(l.ln.Addr().String()), kgo.MaxVersions(kversion.V2_3_0()), kgo.DisableIdempotentWrite(),
				kgo.ProducerBatchCompression(c.codec), kgo.DefaultProduceTopic("t"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			want := someRecords(newRand(21), 0, 200)
			var sent []*kgo.Record
			for i := range want {
				want[i].Offset = int64(i)
				if want[i].Value == nil {
					want[i].Value = []byte{}
				}
				r := &kgo.Record{Key: want[i].Key, Value: want[i].Value, Timestamp: time.UnixMilli(want[i].Timestamp)}
				for _, h := range want[i].Headers {
					r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Name, Value: h.Value})
				}
				sent = append(sent, r)
			}
			if err := cl.ProduceSync(ctx, sent...).FirstErr(); err != nil {
				t.Fatal(err, l.fail)
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			var got []broker.Record
			for _, raw := range l.got {
				h, err := VerifyBatch(raw)
				if err != nil || h.Codec() != c.stored {
					t.Fatalf("codec %v, want %v: %v", h.Codec(), c.stored, err)
				}
				Stamp(raw, int64(len(got)), 1) // as the broker places it
				if _, err := CheckClient(raw, len(want), MaxDecoded, new(Scratch), func(int, *broker.Record) error { return nil }); err != nil {
					t.Error(err)
				}
				if got, err = DecodeBatch(got, raw, nil); err != nil {
					t.Fatal(err)
				}
			}
			sameRecords(t, want, got)
		})
	}
}
