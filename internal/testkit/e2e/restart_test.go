package e2e

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/api/client"
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/testkit/history"
)

const (
	largeValue  = 1 << 20
	largeBatch  = 15 // a body holds 16 MiB
	fullSize    = 1 << 30
	smallSize   = fullSize / 16
	largeSample = 30 // records of a partition that are read again
)

// The time of a restart does not depend on what is stored: with 1 GiB of
// segments, killed while more comes in, a broker serves within two seconds, and
// has what it had.
func TestKillRestartWithOneGiB(t *testing.T) {
	size := fullSize
	if rounds(t) < fullRounds {
		size = smallSize
		t.Logf("with %d MiB: the full size needs TIDEMARK_KILL_ROUNDS of %d or more (make crash)", size>>20, fullRounds)
	}
	r := newRig(t, "none", nil, []string{"--disk-reserve", "1MiB"})
	r.start(0)
	r.create(topic)
	sums := map[history.Place]history.Record{}
	for stored := 0; stored < size; stored += largeBatch * largeValue {
		if err := putLarge(limited(t), r, sums); err != nil {
			t.Fatal(err)
		}
	}
	// The kill comes in the middle of one more.
	ctx, cancel := context.WithCancel(limited(t))
	done := make(chan error, 1)
	late := map[history.Place]history.Record{}
	go func() { done <- putLarge(ctx, r, late) }()
	r.waitRandom(time.Millisecond, 50*time.Millisecond)
	r.node.Kill()
	cancel()
	if <-done == nil {
		for place, rec := range late {
			sums[place] = rec
		}
	}
	r.start(readyMax)
	t.Logf("served again after %s", r.node.ReadyAfter)
	info, err := r.node.Topic(limited(t), topic)
	if err != nil {
		t.Fatal(err)
	}
	held := int64(0)
	for _, p := range info.PartitionStats {
		held += p.LocalBytes
	}
	// The newest records may still be in the log alone.
	if held < int64(size)/2 {
		t.Errorf("only %d bytes are in segments, this proves nothing", held)
	}
	sample(t, r, sums)
}

// putLarge stores a batch of records that do not shrink, and remembers them.
func putLarge(ctx context.Context, r *rig, sums map[history.Place]history.Record) error {
	records := make([]broker.Record, largeBatch)
	partition := uint32(len(sums)/largeBatch) % partitions
	for i := range records {
		value := make([]byte, largeValue)
		_, _ = rand.Read(value[copy(value, fmt.Sprintf("large-%d-%d ", len(sums), i)):]) // it never fails
		records[i].Value = value
	}
	got, err := r.node.ProduceBatch(ctx, topic, records, client.ProduceOptions{Ack: broker.AckCommitted, Partition: &partition})
	if err != nil {
		return err
	}
	if len(got.Partitions) != 1 || got.Partitions[0].Count != largeBatch {
		return fmt.Errorf("a batch of %d for partition %d went to %+v", largeBatch, partition, got.Partitions)
	}
	for i := range records {
		sums[history.Place{Partition: int32(partition), Offset: got.Partitions[0].FirstOffset + int64(i)}] = identity(nil, records[i].Value)
	}
	return nil
}

// sample reads some records of every partition and compares them; a map is
// walked in a random order.
func sample(t *testing.T, r *rig, sums map[history.Place]history.Record) {
	t.Helper()
	read := map[int32]int{}
	for place, want := range sums {
		if read[place.Partition]++; read[place.Partition] > largeSample {
			continue
		}
		log, err := r.node.ReadLog(limited(t), topic, uint32(place.Partition), client.ReadOptions{From: &place.Offset, Max: 1})
		if err != nil {
			t.Fatalf("read %s: %v", place, err)
		}
		rec, err := log.Next()
		if err != nil || rec.Offset != place.Offset || identity(rec.Key, rec.Value) != want {
			t.Errorf("the record at %s is another one: offset %d, %v", place, rec.Offset, err)
		}
		if _, err := log.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("more than one record at %s: %v", place, err)
		}
		_ = log.Close() // it was read to its end
	}
	if len(read) != partitions {
		t.Errorf("records were read of %d partitions", len(read))
	}
}
