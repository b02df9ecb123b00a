package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/api/client"
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// dial returns a client of the site.
func (s *site) dial() *client.Client {
	s.t.Helper()
	c, err := client.New("http://"+s.addr+"/", client.Options{HTTP: s.c, User: "ann", Password: "secret"})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// The Go client and the routes understand each other, through the whole life
// of a topic and its records, byte for byte.
func TestClientAgainstServer(t *testing.T) {
	s := start(t, withUser)
	c, ctx := s.dial(), context.Background()
	one := uint32(1)
	info, err := c.CreateTopic(ctx, broker.TopicSpec{Name: "cli", Partitions: &one})
	if err != nil || info.Name != "cli" || info.Partitions != 1 {
		t.Fatalf("%+v %v", info, err)
	}
	if _, err := c.CreateTopic(ctx, broker.TopicSpec{Name: "CLI"}); !errcode.Is(err, errcode.Exists) {
		t.Errorf("twin: %v", err)
	}
	if info, err := c.Topic(ctx, "cli"); err != nil || len(info.PartitionStats) != 1 {
		t.Errorf("%+v %v", info, err)
	}
	list, next, err := c.Topics(ctx, "", 1)
	if err != nil || len(list) != 1 || next == "" {
		t.Fatalf("%v %q %v", list, next, err)
	}
	if list, next, err := c.Topics(ctx, next, 1); err != nil || len(list) != 1 || list[0].Name != "orders" || next != "" {
		t.Errorf("%v %q %v", list, next, err)
	}
	odd := broker.Record{Key: []byte("k\x00 ;&=%/é\xff"), Value: []byte("\" not JSON \xff"), Headers: []broker.Header{{Name: "trace", Value: []byte("a")}}}
	got, err := c.Produce(ctx, "cli", odd, client.ProduceOptions{})
	if err != nil || got.Offset != 0 || got.Topic != "cli" {
		t.Fatalf("%+v %v", got, err)
	}
	got, err = c.Produce(ctx, "cli", broker.Record{Value: []byte(" {\"a\": 1}\n")}, client.ProduceOptions{Ack: broker.AckArchived, Wait: time.Second})
	if err != nil || got.Offset != 1 || !got.Archived || got.TimestampMS == 0 {
		t.Fatalf("%+v %v", got, err)
	}
	zero := uint32(0)
	batch, err := c.ProduceBatch(ctx, "cli", []broker.Record{{Value: []byte("b0")}, {Key: []byte{}, Value: nil}}, client.ProduceOptions{Partition: &zero})
	if err != nil || batch.Accepted != 2 {
		t.Fatalf("%+v %v", batch, err)
	}
	batch, err = c.ProduceNDJSON(ctx, "cli", strings.NewReader("{\"id\":\"x\"}\n{\"id\":\"y\"}\n"), client.ProduceOptions{KeyField: "/id", Ack: broker.AckCommitted})
	if err != nil || batch.Accepted != 2 || len(batch.Partitions) != 1 || batch.Partitions[0].FirstOffset != 4 {
		t.Fatalf("%+v %v", batch, err)
	}
	if _, err := c.ProduceBatch(ctx, "cli", []broker.Record{odd}, client.ProduceOptions{}); !errcode.Is(err, errcode.InvalidArgument) {
		t.Errorf("headers in frames: %v", err)
	}
	msgs, err := c.Consume(ctx, "cli", client.ConsumeOptions{})
	if err != nil || len(msgs) != 1 || string(msgs[0].Key) != string(odd.Key) || string(msgs[0].Value) != string(odd.Value) || fmt.Sprintf("%s", msgs[0].Headers) != "[{trace a}]" || msgs[0].Attempt != 1 {
		t.Fatalf("%+v %v", msgs, err)
	}
	for _, step := range []struct {
		action broker.SettleAction
		d      time.Duration
	}{{broker.SettleExtend, time.Minute}, {broker.SettleExtend, 0}, {broker.SettleNack, time.Millisecond}} {
		if err := c.Settle(ctx, "cli", msgs[0].Handle, step.action, step.d); err != nil {
			t.Errorf("%s: %v", step.action, err)
		}
	}
	if err := c.Ack(ctx, "cli", msgs[0].Handle); !errcode.Is(err, errcode.Gone) {
		t.Errorf("ack of a lease that is over: %v", err)
	}
	msgs, err = c.Consume(ctx, "cli", client.ConsumeOptions{Max: 100, Partition: &zero, Wait: time.Second})
	if err != nil || len(msgs) != 6 || string(msgs[0].Value) != string(odd.Value) || string(msgs[2].Value) != "b0" || msgs[3].Key == nil || string(msgs[5].Key) != "y" {
		t.Fatalf("%+v %v", msgs, err)
	}
	errs, err := c.AckBatch(ctx, "cli", []string{msgs[0].Handle, msgs[1].Handle, "nonsense"})
	if err != nil || errs[0] != nil || errs[1] != nil || !errcode.Is(errs[2], errcode.InvalidArgument) {
		t.Errorf("%v %v", errs, err)
	}
	if msgs, err := c.Consume(ctx, "cli", client.ConsumeOptions{}); err != nil || len(msgs) != 0 {
		t.Errorf("%v %v", msgs, err)
	}
	if at, err := c.OffsetForTime(ctx, "cli", 0, time.UnixMilli(1_700_000_000_003)); err != nil || at != 3 {
		t.Errorf("offset %d %v", at, err)
	}
	if err := c.DeleteTopic(ctx, "cli", false); !errcode.Is(err, errcode.Conflict) {
		t.Errorf("delete: %v", err)
	}
	if err := c.DeleteTopic(ctx, "cli", true); err != nil {
		t.Error(err)
	}
	if _, err := c.Topic(ctx, "a/../b"); !errcode.Is(err, errcode.InvalidArgument) {
		t.Errorf("a name with slashes: %v", err)
	}
}

// The reader of streams takes every record, knows a whole stream from a broken
// one, and says where to go on.
func TestClientReadsLogs(t *testing.T) {
	s := start(t)
	c, ctx := s.dial(), context.Background()
	s.f.runLength = 1
	for i := range 6 {
		s.f.append("orders", NewRecord{Key: []byte{byte(i)}, Value: []byte(strings.Repeat("\xff", 60<<10))})
	}
	read := func(o client.ReadOptions) (n int, resume int64, err error) {
		r, err := c.ReadLog(ctx, "orders", 0, o)
		if err != nil {
			return 0, 0, err
		}
		defer r.Close()
		for {
			rec, err := r.Next()
			if err != nil {
				return n, r.ResumeOffset(), err
			}
			if rec.Value[0] != 0xff || len(rec.Value) != 60<<10 || rec.Key[0] != byte(rec.Offset) {
				t.Errorf("record %d is %d bytes", rec.Offset, len(rec.Value))
			}
			n++
		}
	}
	if n, resume, err := read(client.ReadOptions{}); n != 6 || resume != 6 || err != io.EOF {
		t.Errorf("whole: %d %d %v", n, resume, err)
	}
	from, to := int64(2), int64(4)
	if n, resume, err := read(client.ReadOptions{From: &from, To: &to}); n != 2 || resume != 4 || err != io.EOF {
		t.Errorf("part: %d %d %v", n, resume, err)
	}
	if n, resume, err := read(client.ReadOptions{Max: 3}); n != 3 || resume != 3 || err != io.EOF {
		t.Errorf("three: %d %d %v", n, resume, err)
	}
	high := int64(99)
	_, _, err := read(client.ReadOptions{From: &high})
	var e *errcode.Error
	if !errors.As(err, &e) || e.Code != errcode.OutOfRange || fmt.Sprint(e.Facts["high_watermark"]) != "6" {
		t.Errorf("above the end: %v", err)
	}
	s.f.readErr = func(next int64) error {
		if next >= 4 {
			return errcode.New(errcode.ArchiveUnavailable, "down")
		}
		return nil
	}
	n, resume, err := read(client.ReadOptions{})
	if !errcode.Is(err, errcode.Transient) || n < 1 || n > 4 || resume != int64(n) {
		t.Errorf("broken: %d records, go on at %d: %v", n, resume, err)
	}
}
