package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark-mq/tidemark/api/client"
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/testkit/realnode"
)

const (
	topic        = "packages"
	batchRecords = 1000
	batchBytes   = 2 << 20
	// tailShare of the records goes in last, after the segments are archived:
	// they come back from the shipped log.
	tailShare   = 50 // one in so many
	archiveMax  = 90 * time.Second
	restoreMax  = 2 * time.Minute
	readyMax    = 30 * time.Second
	pollArchive = 100 * time.Millisecond
)

// serveFlags make segments of a size that gives every partition several.
var serveFlags = []string{"--segment-bytes", "2MiB", "--seal-age", "2s", "--seal-min-bytes", "1", "--wal-interval", "1s"}

// journey is one archive's tour.
type journey struct {
	binary  string
	dir     string
	archive *archive
	corpus  *corpus

	node  *realnode.Node
	table table
}

func (j *journey) run(ctx context.Context) (err error) {
	defer func() {
		if j.node != nil {
			if err != nil {
				err = fmt.Errorf("%w\nthe broker's last words:\n%s", err, j.node.Stderr())
			}
			j.node.Kill()
		}
	}()
	j.table.add("archive", "%s", j.archive.name)
	j.table.add("records", "%d", j.corpus.records)
	j.table.add("bytes of keys and values", "%.1f MB", mb(j.corpus.bytes))
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"start the broker", j.start}, {"create the topic", j.create}, {"produce", j.produce}, {"archive the segments", j.awaitSegments},
		{"produce the last records", j.produceTail}, {"take stock", j.takeStock}, {"lose the broker and its disk", j.lose},
		{"restore", j.restore}, {"start the restored broker", j.startAgain}, {"read the first record", j.first}, {"replay", j.replay},
	} {
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

func (j *journey) options() realnode.Options {
	return realnode.Options{Binary: j.binary, DataDir: filepath.Join(j.dir, "data"), Archive: j.archive.url, Env: j.archive.env, Flags: serveFlags}
}

func (j *journey) start(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, readyMax)
	defer cancel()
	j.node, err = realnode.Start(ctx, j.options())
	return err
}

func (j *journey) create(ctx context.Context) error {
	count, keep := uint32(partitions), int64(0)
	_, err := j.node.CreateTopic(ctx, broker.TopicSpec{Name: topic, Partitions: &count, RetentionMS: &keep})
	return err
}

// tail is where a partition's last records begin.
func tail(records []record) int { return len(records) - len(records)/tailShare }

// produce sends all but the last records, every partition in its order.
func (j *journey) produce(ctx context.Context) error {
	began := time.Now()
	bytes := int64(0)
	for p := range j.corpus.parts {
		for _, r := range j.corpus.parts[p][:tail(j.corpus.parts[p])] {
			bytes += int64(len(r.key) + len(r.value))
		}
	}
	err := j.send(ctx, broker.AckCommitted, func(all []record) []record { return all[:tail(all)] })
	took := time.Since(began)
	j.table.add("produced, ack=committed", "%.1f s, %.0f MB/s", took.Seconds(), mb(bytes)/took.Seconds())
	return err
}

// produceTail sends the last records, and is answered once the archive has all
// that was ever produced.
func (j *journey) produceTail(ctx context.Context) error {
	began := time.Now()
	err := j.send(ctx, broker.AckArchived, func(all []record) []record { return all[tail(all):] })
	j.table.add("last records, ack=archived", "%.1f s", time.Since(began).Seconds())
	return err
}

func (j *journey) send(ctx context.Context, ack broker.Ack, part func([]record) []record) error {
	g, ctx := errgroup.WithContext(ctx)
	for p := range j.corpus.parts {
		g.Go(func() error {
			for records := part(j.corpus.parts[p]); len(records) > 0; {
				n := batchOf(records)
				if err := j.sendBatch(ctx, uint32(p), records[:n], ack); err != nil {
					return err
				}
				records = records[n:]
			}
			return nil
		})
	}
	return g.Wait()
}

func batchOf(records []record) int {
	n, size := 0, 0
	for n < len(records) && n < batchRecords && size < batchBytes {
		size += len(records[n].key) + len(records[n].value)
		n++
	}
	return n
}

// sendBatch sends records of one partition: as lines of JSON, out of which the
// broker takes the key, to the even ones, as frames to the odd ones. The broker
// must choose the partition that the key says.
func (j *journey) sendBatch(ctx context.Context, partition uint32, records []record, ack broker.Ack) error {
	o := client.ProduceOptions{Ack: ack, Wait: 30 * time.Second}
	var got client.BatchReceipt
	var err error
	if partition%2 == 0 {
		var body bytes.Buffer
		for _, r := range records {
			body.Write(r.value)
			body.WriteByte('\n')
		}
		o.KeyField = "/Package"
		got, err = j.node.ProduceNDJSON(ctx, topic, &body, o)
	} else {
		list := make([]broker.Record, len(records))
		for i, r := range records {
			list[i] = broker.Record{Key: r.key, Value: r.value}
		}
		got, err = j.node.ProduceBatch(ctx, topic, list, o)
	}
	if err != nil {
		return err
	}
	if len(got.Partitions) != 1 || got.Partitions[0].Partition != partition || got.Partitions[0].Count != len(records) {
		return fmt.Errorf("%d records of partition %d went to %+v", len(records), partition, got.Partitions)
	}
	return nil
}

// awaitSegments waits until every record is in an archived segment.
func (j *journey) awaitSegments(ctx context.Context) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, archiveMax)
	defer cancel()
	poll := time.NewTicker(pollArchive)
	defer poll.Stop()
	for {
		info, err := j.node.Topic(ctx, topic)
		if err != nil {
			return err
		}
		missing := int64(0)
		for _, p := range info.PartitionStats {
			missing += p.HighWatermark - p.ArchivedOffset
		}
		if missing == 0 && len(info.PartitionStats) == partitions {
			j.table.add("segments archived after", "%.1f s", time.Since(began).Seconds())
			return nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("%d records are in no archived segment: %w", missing, ctx.Err())
		}
	}
}

func (j *journey) takeStock(ctx context.Context) error {
	info, err := j.node.Topic(ctx, topic)
	if err != nil {
		return err
	}
	segments, stored := 0, int64(0)
	for _, p := range info.PartitionStats {
		segments += p.Segments
		stored += p.ArchivedBytes
	}
	j.table.add("segments", "%d", segments)
	j.table.add("bytes in segments", "%.1f MB", mb(stored))
	requests, err := j.requests(ctx)
	if err != nil {
		return err
	}
	j.table.add("requests to the archive", "%s", requests)
	objects, size, err := j.archive.size()
	j.table.add("objects", "%d", objects)
	j.table.add("bytes of objects", "%.1f MB", mb(size))
	return err
}

// lose is what this is all for.
func (j *journey) lose(context.Context) error {
	j.node.Kill()
	j.node = nil
	return os.RemoveAll(j.options().DataDir)
}

func (j *journey) restore(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, restoreMax)
	defer cancel()
	began := time.Now()
	got, err := realnode.Restore(ctx, j.options(), "--json")
	if err != nil {
		return err
	}
	if got.Code != 0 {
		return fmt.Errorf("exit code %d: %s%s", got.Code, got.Stdout, got.Stderr)
	}
	j.table.add("restored in", "%.2f s", time.Since(began).Seconds())
	var report struct {
		TailRecords int64 `json:"tail_records"`
	}
	if err := json.Unmarshal([]byte(got.Stdout), &report); err != nil {
		return fmt.Errorf("the report is no JSON: %w\n%s", err, got.Stdout)
	}
	// Otherwise this journey would not have gone the way of the shipped log.
	if report.TailRecords == 0 {
		return fmt.Errorf("no record came out of the shipped log: %s", got.Stdout)
	}
	j.table.add("records from the shipped log", "%d", report.TailRecords)
	return nil
}

func (j *journey) startAgain(ctx context.Context) error {
	if err := j.start(ctx); err != nil {
		return err
	}
	j.table.add("serves after", "%.2f s", j.node.ReadyAfter.Seconds())
	return nil
}

// first reads one record, out of the archive.
func (j *journey) first(ctx context.Context) error {
	began := time.Now()
	log, err := j.node.ReadLog(ctx, topic, 0, client.ReadOptions{Max: 1})
	if err != nil {
		return err
	}
	r, err := log.Next()
	if err == nil && string(r.Key) != string(j.corpus.parts[0][0].key) {
		err = fmt.Errorf("it is %q, not %q", r.Key, j.corpus.parts[0][0].key)
	}
	j.table.add("first record after", "%.0f ms", float64(time.Since(began).Microseconds())/1000)
	return errors.Join(err, log.Close())
}

// replay reads every partition and compares.
func (j *journey) replay(ctx context.Context) error {
	began := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for p := range j.corpus.parts {
		g.Go(func() error {
			if err := j.replayPartition(ctx, uint32(p)); err != nil {
				return fmt.Errorf("partition %d: %w", p, err)
			}
			return nil
		})
	}
	err := g.Wait()
	took := time.Since(began)
	j.table.add("replayed and compared", "%.1f s, %.0f MB/s, %.0f records/s", took.Seconds(), mb(j.corpus.bytes)/took.Seconds(), float64(j.corpus.records)/took.Seconds())
	return err
}

func (j *journey) replayPartition(ctx context.Context, p uint32) (err error) {
	log, err := j.node.ReadLog(ctx, topic, p, client.ReadOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	want := j.corpus.parts[p]
	var got digest
	for {
		r, err := log.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("after %d of %d records: %w", got.count, len(want), err)
		}
		// The sums decide; this names the place.
		if got.count >= len(want) {
			return fmt.Errorf("more than the %d records that went in: %q at offset %d", len(want), r.Key, r.Offset)
		}
		if w := want[got.count]; !bytes.Equal(w.key, r.Key) || !bytes.Equal(w.value, r.Value) {
			return fmt.Errorf("record %d at offset %d: %q %.200q went in, %q %.200q came out", got.count, r.Offset, w.key, w.value, r.Key, r.Value)
		}
		got.add(r.Key, r.Value)
	}
	in := &j.corpus.sums[p]
	if got.count != in.count || got.sum() != in.sum() {
		return fmt.Errorf("%d records with SHA-256 %s went in, %d with %s came out", in.count, in.sum(), got.count, got.sum())
	}
	return nil
}
