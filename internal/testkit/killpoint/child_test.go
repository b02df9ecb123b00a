package killpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node"
	"github.com/tidemark-mq/tidemark/node/restore"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/file"
)

// childVariable holds the order of a child; without it this is the parent.
const childVariable = "TIDEMARK_KILLPOINT"

// order is what a child does.
type order struct {
	Work    string // serve or restore
	Dir     string
	Archive string
	Answers string // file that it appends to
	Point   point
}

// workMax bounds a child that never comes to its point.
const workMax = 5 * time.Minute

func TestMain(m *testing.M) {
	text := os.Getenv(childVariable)
	if text == "" {
		os.Exit(m.Run())
	}
	var o order
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		err = o.run()
	}
	fmt.Fprintln(os.Stderr, "the child came to its end:", err)
	os.Exit(3)
}

// run does the work until the process dies at its point.
func (o *order) run() error {
	backend, err := openArchive(o.Archive)
	if err != nil {
		return err
	}
	k := newKiller(o.Point, filepath.Dir(o.Dir))
	fs, store := &killFS{vfs.Default, k}, &killStore{backend, k}
	ctx, cancel := context.WithTimeout(context.Background(), workMax)
	defer cancel()
	if o.Work == "restore" {
		opts := restoreOptions(o.Dir, store)
		opts.FS = fs
		_, err := restore.Run(ctx, opts)
		return err
	}
	answers, err := openAnswers(o.Answers)
	if err != nil {
		return err
	}
	opts := nodeOptions(o.Dir, store)
	registry := prometheus.NewRegistry()
	opts.FS, opts.Registerer = fs, registry
	n, err := node.Open(ctx, opts)
	if err != nil {
		return err
	}
	k.begin("serving")
	begin := func(what string) {
		if what == "produced" && o.Point.Arm == "carried" && carried(registry) {
			what = "carried"
		}
		k.begin(what)
	}
	return load(ctx, n, answers, begin, 1<<30)
}

// carried says whether small tails were written into the log once more.
func carried(registry *prometheus.Registry) bool {
	all, err := registry.Gather()
	if err != nil {
		panic(err) // the child has a parent that reads this
	}
	for _, m := range all {
		if m.GetName() == "tidemark_carried_bytes_total" {
			return m.GetMetric()[0].GetCounter().GetValue() > 0
		}
	}
	return false
}

func openArchive(dir string) (objstore.Store, error) { return file.Open(dir, file.Options{}) }

// nodeOptions make a node do everything all the time. An unsealed segment keeps
// the shipped log from its first record on, so that sealing by age must not take long.
func nodeOptions(dir string, store objstore.Store) node.Options {
	return node.Options{
		Dir: dir, NodeID: "n1", RaftAddr: "127.0.0.1:0", Archive: store, DiskReserve: 1,
		WALInterval: 20 * time.Millisecond, StateInterval: 200 * time.Millisecond, WALFileSize: 1 << 20, WALMaxBytes: 2 << 20,
		SegmentBytes: 64 << 10, FlushBytes: 24 << 10, SealMinBytes: 1, SealAge: 500 * time.Millisecond, RetentionInterval: 20 * time.Millisecond,
		GarbageGrace: time.Millisecond, GarbageInterval: 20 * time.Millisecond, PITRWindow: time.Millisecond, OrphanInterval: time.Hour,
	}
}

// restoreOptions are those of a restore whose clock is so far ahead that it does
// not watch the archive for signs of life.
func restoreOptions(dir string, store objstore.Store) restore.Options {
	return restore.Options{
		Store: store, Dir: dir, NodeID: "n1", RaftAddr: "127.0.0.1:0", TakeOver: true,
		Now: func() time.Time { return time.Now().Add(48 * time.Hour) },
	}
}

const (
	busy = "busy" // a topic with much in it
	slow = "slow" // and one whose few records keep the log's oldest file
)

// load produces, consumes, settles and trims, and writes down each request and
// each answer, in order: it is the only client.
func load(ctx context.Context, n *node.Node, a *answers, begin func(string), records int) error {
	if _, err := createTopics(ctx, n); err != nil {
		return err
	}
	pad := strings.Repeat("x", 8<<10)
	for i := a.sent; i < records; i++ {
		topic, text, ack := busy, pad, broker.AckAccepted
		if i%40 == 1 {
			topic, text = slow, ""
		}
		if i%16 == 3 {
			ack = broker.AckArchived
		}
		a.say(answer{What: "send", Topic: topic, Record: i})
		got, err := n.Produce(ctx, broker.ProduceRequest{
			Topic: topic, Ack: ack, Wait: 10 * time.Second,
			Records: []broker.NewRecord{{Partition: 0, Value: fmt.Appendf(nil, "%d %s", i, text)}},
		})
		if err != nil {
			return err
		}
		a.say(answer{What: "stored", Topic: topic, Record: i, Offset: got.Placements[0].FirstOffset, Archived: ack == broker.AckArchived})
		begin("produced")
		if i%3 == 0 {
			if err := settleSome(ctx, n, a); err != nil {
				return err
			}
		}
		if i%50 == 49 {
			before := got.Placements[0].FirstOffset - 30
			begin("trim")
			a.say(answer{What: "trim", Topic: busy, Offset: before})
			start, err := n.Trim(ctx, busy, 0, before)
			if err != nil {
				return err
			}
			a.say(answer{What: "trimmed", Topic: busy, Offset: start})
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// createTopics creates the topics that are not there, and says which.
func createTopics(ctx context.Context, n *node.Node) (made map[string]bool, err error) {
	made = map[string]bool{}
	one, none, everything, local := uint32(1), "none", int64(0), int64(128<<10)
	for _, name := range []string{busy, slow} {
		spec := broker.TopicSpec{Name: name, Partitions: &one, Compression: &none, RetentionMS: &everything, LocalRetentionBytes: &local}
		_, err := n.CreateTopic(ctx, spec)
		if err != nil && !errcode.Is(err, errcode.Exists) {
			return nil, err
		}
		made[name] = err == nil
	}
	return made, nil
}

// settleSome takes two records and acks one of them.
func settleSome(ctx context.Context, n *node.Node, a *answers) error {
	msgs, err := n.Consume(ctx, broker.ConsumeRequest{Topic: busy, Partition: -1, Max: 2})
	if err != nil || len(msgs) == 0 {
		return err
	}
	a.say(answer{What: "ack", Topic: busy, Offset: msgs[0].Offset})
	errs, err := n.Settle(ctx, broker.SettleRequest{Topic: busy, Action: broker.SettleAck, Handles: []string{msgs[0].Handle}})
	if err = errors.Join(append(errs, err)...); err != nil {
		return err
	}
	a.say(answer{What: "acked", Topic: busy, Offset: msgs[0].Offset})
	return nil
}
