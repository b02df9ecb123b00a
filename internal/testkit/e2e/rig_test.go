package e2e

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark-mq/tidemark/api/client"
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/testkit/history"
	"github.com/tidemark-mq/tidemark/internal/testkit/realnode"
	"github.com/tidemark-mq/tidemark/internal/testkit/s3server"
)

const (
	topic      = "orders"
	partitions = 3
	visibility = 2 * time.Second // short, so that what a killed consumer held comes back soon

	stepMax = 2 * time.Minute // for anything that a test waits for
	pollGap = 20 * time.Millisecond
)

// busyArchive makes a broker seal, upload, ship and checkpoint all the time.
var busyArchive = []string{
	"--segment-bytes", "256KiB", "--seal-age", "500ms", "--seal-min-bytes", "1", "--flush-bytes", "16KiB",
	"--wal-interval", "200ms", "--state-interval", "1s", "--wal-max-bytes", "128MiB", "--disk-reserve", "1MiB",
}

// rig is one cluster of one node and what its clients know.
type rig struct {
	t       *testing.T
	options realnode.Options
	node    *realnode.Node
	history *history.History
	rng     *rand.Rand
	rate    int  // records a second of a load; 0 = recordRate
	apart   bool // one more producer asks for ack=archived, the others never do
	epoch   int  // counts loads, so that no two records share a name
}

// newRig chooses directories and randomness; nothing runs yet. archive is a URL.
func newRig(t *testing.T, archive string, env, flags []string) *rig {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	r := &rig{t: t, history: history.New(), rng: rand.New(rand.NewPCG(seed, 1))}
	r.options = realnode.Options{Binary: binary, DataDir: filepath.Join(t.TempDir(), "data"), Archive: archive, Env: env, Flags: flags}
	t.Cleanup(func() {
		if r.node == nil {
			return
		}
		if t.Failed() {
			t.Logf("the broker's last words:\n%s", lastLines(r.node.Stderr()))
		}
		r.node.Kill()
	})
	return r
}

// lastLines is the end of a log.
func lastLines(text string) string {
	const most = 40
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

// fileArchive is an archive in a directory of the test's.
func fileArchive(t *testing.T) string {
	t.Helper()
	return "file://" + filepath.Join(t.TempDir(), "archive")
}

// s3Archive starts an S3 server.
func s3Archive(t *testing.T) (s *s3server.Server, url string, env []string) {
	t.Helper()
	s = s3server.Start(t)
	return s, s.URL("prod"), s.Env()
}

// limited is a context for one step of a test.
func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepMax)
	t.Cleanup(cancel)
	return ctx
}

// start starts the broker, which must serve within limit (0: whenever).
func (r *rig) start(limit time.Duration) {
	r.t.Helper()
	// How long this machine takes now to start the binary at all: on one that
	// is busy with other things, two seconds say nothing about the broker.
	began := time.Now()
	if got, err := realnode.Run(limited(r.t), binary, nil, "version"); err != nil || got.Code != 0 {
		r.t.Fatalf("tidemark version: %v, %+v", err, got)
	}
	overhead := time.Since(began)
	n, err := realnode.Start(limited(r.t), r.options)
	if err != nil {
		r.t.Fatalf("start the broker: %v", err)
	}
	r.node = n
	if limit > 0 && n.ReadyAfter > max(limit, 20*overhead) {
		r.t.Errorf("the broker served after %s, not %s (the machine needs %s to start it)\n%s", n.ReadyAfter, limit, overhead, n.Stderr())
	}
}

// kill ends the broker in the middle of what it does.
func (r *rig) kill() {
	r.node.Kill()
	r.node = nil
}

// create creates a topic that keeps everything.
func (r *rig) create(name string) {
	r.t.Helper()
	count, keep, hidden := uint32(partitions), int64(0), visibility.Milliseconds()
	spec := broker.TopicSpec{Name: name, Partitions: &count, RetentionMS: &keep, VisibilityTimeoutMS: &hidden}
	if _, err := r.node.CreateTopic(limited(r.t), spec); err != nil {
		r.t.Fatalf("create topic %s: %v", name, err)
	}
}

// check reads every partition and holds it against the history.
func (r *rig) check(when string) map[int32][]history.Logged {
	r.t.Helper()
	logs := r.logs()
	r.fail(when, r.history.Check(logs))
	return logs
}

func (r *rig) fail(when string, findings []string) {
	r.t.Helper()
	if len(findings) > 0 {
		r.t.Fatalf("%s: %d findings\n%s", when, len(findings), strings.Join(findings, "\n"))
	}
}

// logs reads every partition to its end.
func (r *rig) logs() map[int32][]history.Logged {
	r.t.Helper()
	lists := make([][]history.Logged, partitions)
	g, ctx := errgroup.WithContext(limited(r.t))
	for p := range lists {
		g.Go(func() (err error) {
			lists[p], err = readLog(ctx, r.node, topic, uint32(p))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		r.t.Fatalf("read the logs: %v", err)
	}
	logs := map[int32][]history.Logged{}
	for p, list := range lists {
		logs[int32(p)] = list
	}
	return logs
}

func readLog(ctx context.Context, n *realnode.Node, topic string, p uint32) (out []history.Logged, err error) {
	log, err := n.ReadLog(ctx, topic, p, client.ReadOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	for {
		rec, err := log.Next()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		out = append(out, history.Logged{Offset: rec.Offset, Record: identity(rec.Key, rec.Value)})
	}
}

// identity is how a record is recognised: its value begins with its name.
func identity(key, value []byte) history.Record {
	var h xxhash.Digest
	h.Reset()
	if key != nil { // an empty key is not the same as none
		_, _ = h.WriteString("key ")
		_, _ = h.Write(key)
	}
	_, _ = h.Write([]byte{0})
	_, _ = h.Write(value)
	id, _, _ := strings.Cut(string(value), " ")
	return history.Record{ID: id, Sum: h.Sum64()}
}

// eventually asks until ok says yes; it fails the test with what was last said.
func eventually(t *testing.T, limit time.Duration, what string, ok func() (done bool, now string)) {
	t.Helper()
	began := time.Now()
	timeout := time.After(limit)
	poll := time.NewTicker(pollGap)
	defer poll.Stop()
	for {
		done, now := ok()
		if done {
			t.Logf("%s: after %s", what, time.Since(began).Round(time.Millisecond))
			return
		}
		select {
		case <-poll.C:
		case <-timeout:
			t.Fatalf("%s: not within %s; last: %s", what, limit, now)
		}
	}
}
