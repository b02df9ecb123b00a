package e2e

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/api/client"
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/history"
	"github.com/tidemark-mq/tidemark/internal/testkit/realnode"
	"github.com/tidemark-mq/tidemark/tier/bucket"
	"github.com/tidemark-mq/tidemark/tier/objstore/storeurl"
)

// zombieMax is how long a node that was taken over may go on serving.
const zombieMax = 15 * time.Second

// A cluster is taken over by force while its node still runs under load. Without
// force that is refused. Afterwards the old node confirms nothing as archived
// that the new one does not have, refuses everything with a reason within 15
// seconds, and damages nothing: the archive verifies, and the new node has every
// record that it must have and keeps its own (I3, I8, I10).
func TestTakeOverWhileRunning(t *testing.T) {
	url := fileArchive(t)
	r := newRig(t, url, nil, shipping)
	r.start(0)
	r.create(topic)
	old, oldDir := r.node, r.options.DataDir
	defer old.Kill()
	l := r.startLoad()
	eventually(t, stepMax, "records are archived", func() (bool, string) {
		return l.archived.Load() > 20, "not enough yet"
	})

	r.options.DataDir = filepath.Join(t.TempDir(), "new")
	refused, err := realnode.Restore(limited(t), r.options)
	if err != nil || refused.Code != 1 || !strings.Contains(refused.Stderr, "--force") {
		t.Errorf("a cluster that is alive was not defended: %v %+v", err, refused)
	}
	bound := r.history.Now() - archiveLag // younger records may stay behind with the old node
	r.restore("--force")
	taken := time.Now()
	r.start(readyMax)

	// The load goes on at the old node, until it has had enough.
	eventually(t, zombieMax-time.Since(taken), "the old node refuses", func() (bool, string) {
		_, err := old.Produce(limited(t), topic, broker.Record{Value: []byte("zombie")}, client.ProduceOptions{Ack: broker.AckAccepted})
		return errcode.Is(err, errcode.Fenced), errorText(err)
	})
	refusesEverything(t, old)
	l.stop()
	if old.ExitCode() != -1 {
		t.Errorf("the old node ended with %d: what it holds should still be looked at", old.ExitCode())
	}
	r.history.Cut(history.Cut{DiskLost: true, Before: bound})

	// The new node's own life, beside the old one.
	r.check("after the take-over")
	own := r.startLoad()
	r.waitRandom(time.Second, 2*time.Second)
	r.kill()
	own.stop()
	old.Kill()
	r.history.Cut(history.Cut{})
	r.start(readyMax)
	r.drain()
	r.verifyBucket()

	// The old node does not come back either.
	back := r.options
	back.DataDir = oldDir
	refusesToStart(t, back, "was taken over")
	r.check("at the end")
}

func errorText(err error) string {
	if err == nil {
		return "no error"
	}
	return err.Error()
}

// refusesEverything asks for all that a fenced node must not do any more, and
// looks for the reason in each answer.
func refusesEverything(t *testing.T, n *realnode.Node) {
	t.Helper()
	ctx := limited(t)
	for what, ask := range map[string]func() error{
		"produce archived": func() error {
			_, err := n.Produce(ctx, topic, broker.Record{Value: []byte("zombie")}, client.ProduceOptions{Ack: broker.AckArchived})
			return err
		},
		"consume": func() error {
			_, err := n.Consume(ctx, topic, client.ConsumeOptions{Max: 10})
			return err
		},
		"create a topic": func() error {
			_, err := n.CreateTopic(ctx, broker.TopicSpec{Name: "late"})
			return err
		},
	} {
		if err := ask(); !errcode.Is(err, errcode.Fenced) || !strings.Contains(err.Error(), "taken over") {
			t.Errorf("%s on a node that was taken over: %v", what, err)
		}
	}
	ready, err := n.Ready(ctx)
	if err != nil || ready.Ready || ready.Data || len(ready.Degraded) == 0 {
		t.Errorf("readiness of a node that was taken over: %+v, %v", ready, err)
	}
}

// verifyBucket holds the chains of the archive against its objects, every
// checksum included.
func (r *rig) verifyBucket() {
	t := r.t
	t.Helper()
	o := storeurl.Options{}
	for _, v := range r.options.Env {
		switch name, value, _ := strings.Cut(v, "="); name {
		case "AWS_ACCESS_KEY_ID":
			o.AccessKeyID = value
		case "AWS_SECRET_ACCESS_KEY":
			o.SecretAccessKey = value
		}
	}
	store, err := storeurl.Open(limited(t), r.options.Archive, o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }() // only read
	sum, err := bucket.Verify(limited(t), store, bucket.Options{Deep: true}, func(f bucket.Finding) {
		if !f.What.Note() {
			t.Errorf("the archive: %s", f)
		}
	})
	if err != nil || sum.Segments.Segments == 0 && sum.WALObjects == 0 {
		t.Errorf("the archive does not verify: %v, %+v", err, sum)
	}
}

// refusesToStart starts a node that must end by itself, with code 1 and a
// message that holds all words.
func refusesToStart(t *testing.T, o realnode.Options, words ...string) {
	t.Helper()
	p, err := realnode.Launch(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	code, err := p.Wait(ctx)
	if err != nil || code != 1 || p.Stdout() != "" {
		t.Errorf("it was not refused: exit code %d, %v, %q\n%s", code, err, p.Stdout(), p.Stderr())
	}
	for _, w := range words {
		if !strings.Contains(p.Stderr(), w) {
			t.Errorf("the message does not say %q:\n%s", w, p.Stderr())
		}
	}
}

// A data directory belongs to one process and a prefix of the archive to one
// cluster: who comes second is refused, with the directory or the other cluster
// in the message, and the first one goes on.
func TestSecondComersAreRefused(t *testing.T) {
	url := fileArchive(t)
	r := newRig(t, url, nil, shipping)
	r.start(0)
	r.create(topic)
	l := r.startLoad()
	defer l.stop()
	eventually(t, stepMax, "records are archived", func() (bool, string) { return l.archived.Load() > 0, "none yet" })

	refusesToStart(t, r.options, r.options.DataDir, "in use by another process")
	other := r.options
	other.DataDir = filepath.Join(t.TempDir(), "other")
	refusesToStart(t, other, "belongs to cluster")

	before := l.archived.Load()
	eventually(t, stepMax, "the first one goes on", func() (bool, string) { return l.archived.Load() > before+1, "nothing is archived" })
	r.kill()
	l.stop()
	r.history.Cut(history.Cut{})
	r.start(readyMax)
	r.check("after second comers")
	r.verifyBucket()
}
