package node_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// collecting opens a node that deletes from its archive all the time, with
// graces that end before the next request.
func collecting(t testing.TB, dir string, store objstore.Store) *node.Node {
	t.Helper()
	o := options(dir, store)
	o.GarbageGrace, o.GarbageInterval, o.PITRWindow, o.OrphanInterval = 30*time.Millisecond, 5*time.Millisecond, 30*time.Millisecond, 100*time.Millisecond
	o.StateInterval = 30 * time.Millisecond
	n, err := node.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func keysBelow(t testing.TB, store objstore.Store, prefix string) (out []string) {
	t.Helper()
	for after := ""; ; {
		page, err := store.List(context.Background(), prefix, after, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page.Objects {
			out, after = append(out, o.Key), o.Key
		}
		if !page.More {
			return out
		}
	}
}

// until polls with a deadline.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("it never came: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// deleted is how many objects a node has deleted from its archive.
func deleted(t testing.TB, n *node.Node) (sum int64) {
	t.Helper()
	r, err := n.Garbage(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Causes {
		sum += c.Deleted
	}
	return sum
}

// A node whose collector never rests loses its disk again and again, while
// topics come and go and old nodes run on beside their successors. Each restore
// gives every record that was answered archived, at its offset, and brings no
// deleted topic back; at the end the bucket holds no log of any incarnation that
// is gone, and nothing of a deleted topic (I7, I10, I16, T16, B106, B132).
func TestCollectedArchiveRestores(t *testing.T) {
	store := mem.New("collected", nil)
	ctx := context.Background()
	root := t.TempDir()
	n := collecting(t, filepath.Join(root, "d0"), store)
	archived := map[string][]string{} // topic -> values in order of offset
	ids := map[string]bool{}          // prefixes of deleted topics
	create := func(name string) {
		one := uint32(1)
		if _, err := n.CreateTopic(ctx, broker.TopicSpec{Name: name, Partitions: &one}); err != nil {
			t.Fatal(err)
		}
	}
	create("stays")
	k := 0
	var zombies []*node.Node
	silenced := map[*node.Node]int64{} // what each had deleted when it was taken over
	rounds := 5
	if testing.Short() {
		rounds = 3
	}
	for round := range rounds {
		doomed := fmt.Sprintf("doomed-%d", round)
		create(doomed)
		for range 120 {
			for _, topic := range []string{"stays", doomed} {
				ack := broker.AckAccepted
				if k%20 == 0 {
					ack = broker.AckArchived
				}
				value := fmt.Sprintf("v%d-%s", k, strings.Repeat("x", k%700))
				_, err := n.Produce(ctx, broker.ProduceRequest{Topic: topic, Ack: ack, Records: []broker.NewRecord{{Partition: 0, Key: []byte("k"), Value: []byte(value)}}})
				if err != nil {
					t.Fatal(err)
				}
				archived[topic] = append(archived[topic], "k="+value)
				k++
			}
		}
		// The last of each is answered archived, and with it all before.
		for _, topic := range []string{"stays", doomed} {
			value := fmt.Sprintf("last%d", k)
			k++
			if _, err := n.Produce(ctx, broker.ProduceRequest{Topic: topic, Ack: broker.AckArchived, Records: []broker.NewRecord{{Partition: 0, Key: []byte("k"), Value: []byte(value)}}}); err != nil {
				t.Fatal(err)
			}
			archived[topic] = append(archived[topic], "k="+value)
		}
		info, err := n.Topic(ctx, doomed)
		if err != nil {
			t.Fatal(err)
		}
		if round%2 == 0 {
			if err := n.DeleteTopic(ctx, doomed, true); err != nil {
				t.Fatal(err)
			}
			// The deletion is in the archive when something later is.
			if _, err := n.Produce(ctx, broker.ProduceRequest{Topic: "stays", Ack: broker.AckArchived, Records: []broker.NewRecord{{Partition: 0, Key: []byte("k"), Value: []byte("mark")}}}); err != nil {
				t.Fatal(err)
			}
			archived["stays"] = append(archived["stays"], "k=mark")
			until(t, "an export of the deletion", func() bool {
				r, err := n.Garbage(ctx)
				return err == nil && r.Causes[1].Deleted > 0 || len(keysBelow(t, store, manifest.TopicPrefix(info.ID))) == 0
			})
			delete(archived, doomed)
			ids[manifest.TopicPrefix(info.ID)] = true
		}
		// The disk is gone; in some rounds its node runs on.
		if round == 1 {
			zombies = append(zombies, n)
		} else if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(root, fmt.Sprintf("d%d", round+1))
		take(t, dir, store)
		for _, z := range zombies {
			if silenced[z] == 0 {
				silenced[z] = deleted(t, z)
			}
			if _, err := z.CollectGarbage(ctx); err != nil && !errcode.Is(err, errcode.Fenced) {
				t.Fatal(err)
			}
		}
		n = collecting(t, dir, store)
		for topic, want := range archived {
			got, _ := logOf(t, n, topic, 0)
			if !slices.Equal(got, want) {
				t.Fatalf("round %d, topic %s: %d records came back, %d were archived", round, topic, len(got), len(want))
			}
		}
		for topic := range round + 1 {
			name := fmt.Sprintf("doomed-%d", topic)
			if _, err := n.Topic(ctx, name); archived[name] == nil && !errcode.Is(err, errcode.NotFound) {
				t.Fatalf("round %d: deleted topic %s is back: %v", round, name, err)
			}
		}
	}
	self := manifest.WALPrefix("node-1", uint64(n.Identity().Incarnation))
	until(t, "old logs and deleted topics leave the bucket", func() bool {
		for _, key := range keysBelow(t, store, manifest.PrefixWAL) {
			if !strings.HasPrefix(key, self) && !strings.HasSuffix(key, "/FENCE") {
				return false
			}
		}
		for prefix := range ids {
			if len(keysBelow(t, store, prefix)) > 0 {
				return false
			}
		}
		return true
	})
	for topic, want := range archived {
		if got, _ := logOf(t, n, topic, 0); !slices.Equal(got, want) {
			t.Fatalf("topic %s: %d records after the collection, want %d", topic, len(got), len(want))
		}
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	for _, z := range zombies {
		if n := deleted(t, z); n != silenced[z] {
			t.Errorf("a zombie deleted %d objects after its cluster was taken over", n-silenced[z])
		}
		_ = z.Close()
	}
	// Once more, from what is left.
	dir := filepath.Join(root, "last")
	take(t, dir, store)
	n = collecting(t, dir, store)
	defer func() { _ = n.Close() }()
	for topic, want := range archived {
		if got, _ := logOf(t, n, topic, 0); !slices.Equal(got, want) {
			t.Fatalf("topic %s: %d records of what is left, want %d", topic, len(got), len(want))
		}
	}
}

// A store whose deletes are refused shows in readiness and in the report, and
// nothing else suffers; without an archive there is nothing to collect.
func TestDeletesRefused(t *testing.T) {
	store := denied{mem.New("denied", nil)}
	n := collecting(t, t.TempDir(), store)
	defer func() { _ = n.Close() }()
	ctx := context.Background()
	one := uint32(1)
	if _, err := n.CreateTopic(ctx, broker.TopicSpec{Name: "t", Partitions: &one}); err != nil {
		t.Fatal(err)
	}
	until(t, "readiness says that deletes are refused", func() bool {
		if _, err := n.Produce(ctx, broker.ProduceRequest{Topic: "t", Records: []broker.NewRecord{{Partition: 0, Value: []byte("v")}}}); err != nil {
			t.Fatal(err)
		}
		r := n.Readiness()
		return r.Ready && slices.ContainsFunc(r.Degraded, func(s string) bool {
			return strings.HasPrefix(s, "garbage: ") && strings.Contains(s, "refuses deletes")
		})
	})
	without, err := node.Open(ctx, options(t.TempDir(), nil))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = without.Close() }()
	if _, err := without.Garbage(ctx); !errcode.Is(err, errcode.NotFound) {
		t.Fatal(err)
	}
	if _, err := without.CollectGarbage(ctx); !errcode.Is(err, errcode.NotFound) {
		t.Fatal(err)
	}
}

// denied is a store without the right to delete.
type denied struct{ *mem.Store }

func (denied) Delete(context.Context, []string) error {
	return errcode.New(errcode.Denied, "AccessDenied")
}

// A trim reaches the bucket: the segments below it leave their chain, and a
// grace later their objects; what is above is read back, also after a restore
// (T5).
func TestTrimmedObjectsLeaveTheBucket(t *testing.T) {
	store := mem.New("trimmed", nil)
	dir := t.TempDir()
	n := collecting(t, filepath.Join(dir, "a"), store)
	ctx := context.Background()
	one := uint32(1)
	info, err := n.CreateTopic(ctx, broker.TopicSpec{Name: "t", Partitions: &one})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 400 {
		value := make([]byte, 900) // that no compression shrinks
		for i := range value {
			value[i] = byte(rng.Uint32())
		}
		if _, err := n.Produce(ctx, broker.ProduceRequest{Topic: "t", Records: []broker.NewRecord{{Partition: 0, Value: value}}}); err != nil {
			t.Fatal(err)
		}
	}
	id := broker.PartitionID{Topic: info.ID}
	archivedTo := func(n *node.Node) int64 {
		info, err := n.Topic(ctx, "t")
		if err != nil {
			t.Fatal(err)
		}
		return info.PartitionStats[0].ArchivedOffset
	}
	until(t, "everything is archived", func() bool { return archivedTo(n) == 400 })
	before := keysBelow(t, store, manifest.PartitionPrefix(id)+"s/")
	if len(before) < 3 {
		t.Fatalf("only %d segments", len(before))
	}
	start, err := n.Trim(ctx, "t", 0, 300)
	if err != nil {
		t.Fatal(err)
	}
	until(t, "objects below the trim leave the bucket", func() bool {
		for _, key := range keysBelow(t, store, manifest.PartitionPrefix(id)+"s/") {
			if k, err := manifest.ParseKey(key); err == nil && k.Next <= start {
				return false
			}
		}
		return true
	})
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	take(t, filepath.Join(dir, "b"), store)
	n = collecting(t, filepath.Join(dir, "b"), store)
	defer func() { _ = n.Close() }()
	got, offsets := logOf(t, n, "t", 0)
	if len(got) == 0 || offsets[0] > start || offsets[len(offsets)-1] != 399 {
		t.Fatalf("%d records from offset %v on came back, the log begins at %d", len(got), offsets[:min(1, len(offsets))], start)
	}
}
