package killpoint

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node"
	"github.com/tidemark-mq/tidemark/node/restore"
	"github.com/tidemark-mq/tidemark/tier/bucket"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// logged is a record as a reader gets it.
type logged struct {
	offset int64
	record int
}

// readTopic reads the one partition of a topic from its start to its end.
func readTopic(n *node.Node, topic string) (out []logged, err error) {
	r, err := n.ReadLog(context.Background(), broker.ReadRequest{Topic: topic, From: -1, To: -1})
	if err != nil {
		return nil, err
	}
	for {
		recs, err := r.Next(context.Background())
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		for _, rec := range recs {
			l := logged{offset: rec.Offset}
			if _, err := fmt.Sscanf(string(rec.Value), "%d ", &l.record); err != nil {
				return nil, fmt.Errorf("offset %d holds %.20q: %w", rec.Offset, rec.Value, err)
			}
			out = append(out, l)
		}
	}
}

// judge opens the directory without a killer and compares what is served with
// what the clients were told. After a restore only what was answered as archived
// must be there, and acks may be missing.
func judge(t *testing.T, dir string, store objstore.Store, know *told, restored bool) {
	t.Helper()
	n, err := node.Open(context.Background(), nodeOptions(dir, store))
	if err != nil {
		t.Fatalf("open %s again: %v", filepath.Base(dir), err)
	}
	defer func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}()
	made, err := createTopics(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	for name, topic := range know.topics {
		if restored && made[name] && len(topic.archived) == 0 {
			continue // nothing of the topic was answered as archived, not even that there is one
		}
		log, err := readTopic(n, name)
		if err != nil {
			t.Fatalf("read %s: %v", name, err)
		}
		judgeLog(t, name, topic, log, restored)
		judgeDeliveries(t, n, name, topic, log, restored)
	}
}

func judgeLog(t *testing.T, name string, topic *toldTopic, log []logged, restored bool) {
	t.Helper()
	there := map[int]int64{}
	for i, l := range log {
		if !topic.sent[l.record] {
			t.Errorf("%s: offset %d holds record %d, which nobody sent there", name, l.offset, l.record)
		}
		if at, ok := there[l.record]; ok {
			t.Errorf("%s: record %d stands at %d and at %d", name, l.record, at, l.offset)
		}
		if at, ok := topic.stored[l.record]; ok && at != l.offset {
			t.Errorf("%s: record %d was answered with %d and stands at %d", name, l.record, at, l.offset)
		}
		if i > 0 && (l.offset <= log[i-1].offset || l.record <= log[i-1].record) {
			t.Errorf("%s: record %d at %d comes behind record %d at %d", name, l.record, l.offset, log[i-1].record, log[i-1].offset)
		}
		if i > 0 && !restored && l.offset != log[i-1].offset+1 {
			t.Errorf("%s: nothing stands between %d and %d", name, log[i-1].offset, l.offset)
		}
		there[l.record] = l.offset
	}
	if len(log) > 0 {
		if start := log[0].offset; start > topic.trim || start < topic.trimmed && !restored {
			t.Errorf("%s begins at %d; it was trimmed to %d, and at most to %d", name, start, topic.trimmed, topic.trim)
		}
	}
	lost := 0
	for record, at := range topic.stored {
		// What may have been trimmed may be gone.
		if _, ok := there[record]; !ok && at >= topic.trim && (!restored || topic.archived[record]) {
			lost++
			t.Errorf("%s: record %d, which was answered with %d, is lost", name, record, at)
		}
	}
	if lost > 0 {
		t.Errorf("%s: %d of %d records are lost", name, lost, len(topic.stored))
	}
}

// judgeDeliveries consumes all that is open, and then one new record.
func judgeDeliveries(t *testing.T, n *node.Node, name string, topic *toldTopic, log []logged, restored bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	got, err := n.Produce(ctx, broker.ProduceRequest{Topic: name, Records: []broker.NewRecord{{Value: []byte("last")}}})
	if err != nil {
		t.Fatal(err)
	}
	last := got.Placements[0].FirstOffset
	for record, at := range topic.stored {
		if last <= at {
			t.Fatalf("%s: offset %d was given to record %d and is given again (I3)", name, last, record)
		}
	}
	open := map[int64]bool{last: true}
	for _, l := range log {
		open[l.offset] = true
	}
	for len(open) > 0 {
		msgs, err := n.Consume(ctx, broker.ConsumeRequest{Topic: name, Partition: -1, Max: 500})
		if err != nil {
			t.Fatal(err)
		}
		if len(msgs) == 0 {
			break
		}
		for _, m := range msgs {
			switch {
			case !open[m.Offset]:
				t.Errorf("%s: offset %d is delivered, and is not in the log or was delivered already", name, m.Offset)
			case topic.acked[m.Offset] && !restored:
				t.Errorf("%s: offset %d was acked and is delivered again (I11)", name, m.Offset)
			}
			delete(open, m.Offset)
		}
	}
	for at := range open {
		if !topic.asked[at] {
			t.Errorf("%s: offset %d is in the log, was never acked, and is not delivered", name, at)
		}
	}
}

// verify holds the archive against itself, every byte of it.
func verify(t *testing.T, store objstore.Store) {
	t.Helper()
	var findings []string
	_, err := bucket.Verify(t.Context(), store, bucket.Options{Deep: true}, func(f bucket.Finding) {
		if !f.What.Note() {
			findings = append(findings, fmt.Sprintf("%+v", f))
		}
	})
	if err != nil || len(findings) > 0 {
		t.Errorf("the archive: %v\n%s", err, strings.Join(findings, "\n"))
	}
}

// rebuild restores the archive into a new directory.
func rebuild(t *testing.T, store objstore.Store) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "restored")
	if _, err := restore.Run(t.Context(), restoreOptions(dir, store)); err != nil {
		t.Fatalf("restore: %v", err)
	}
	return dir
}
