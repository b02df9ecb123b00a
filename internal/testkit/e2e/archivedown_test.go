package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/api/client"
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/history"
)

// The S3 server dies under load, in the middle of uploads. Produce and consume
// go on, the node is ready and says that the archive is not; ack=archived is
// answered with "not confirmed" and never with a lie. When the server is back
// the archive catches up by itself; then the disk can be lost, and everything
// is there (I15). A broker that starts while the archive is down serves too.
func TestArchiveDown(t *testing.T) {
	t.Parallel() // it mostly waits for the archive
	s3, url, env := s3Archive(t)
	r := newRig(t, url, env, shipping)
	r.start(0)
	r.create(topic)
	l := r.startLoad()
	eventually(t, stepMax, "records are archived", func() (bool, string) { return l.archived.Load() > 10, errorsOf(l) })

	s3.Kill()
	eventually(t, stepMax, "readiness says it", func() (bool, string) {
		ready, err := r.node.Ready(limited(t))
		return err == nil && ready.Ready && strings.Contains(strings.Join(ready.Degraded, " "), "archive"), strings.Join(ready.Degraded, " ")
	})
	archived, stored, acked := l.archived.Load(), l.stored.Load(), l.acked.Load()
	eventually(t, stepMax, "produce and consume go on", func() (bool, string) {
		return l.stored.Load() > stored+100 && l.acked.Load() > acked+100, errorsOf(l)
	})
	sent := r.history.Now()
	_, err := r.node.Produce(limited(t), topic, broker.Record{Key: []byte("k"), Value: []byte("unsafe ")}, client.ProduceOptions{Ack: broker.AckArchived, Wait: 2 * time.Second})
	if !errcode.Is(err, errcode.NotConfirmed) && !errcode.Is(err, errcode.ArchiveUnavailable) {
		t.Errorf("ack=archived without an archive: %v", err)
	}
	r.history.Produced(history.Produce{
		Record: identity([]byte("k"), []byte("unsafe ")), Sent: sent, Answered: history.Never,
		Place: history.Place{Partition: history.AnyPartition, Offset: history.Nowhere},
	})
	if now := l.archived.Load(); now > archived+producers { // answers that were under way
		t.Errorf("%d records were answered as archived while there was no archive", now-archived)
	}

	// A kill in between: the broker starts without the archive.
	r.kill()
	l.stop()
	r.history.Cut(history.Cut{})
	r.fail("clients", r.history.Findings())
	r.start(stepMax)
	r.check("after a start without archive")
	l = r.startLoad()
	eventually(t, stepMax, "the load goes on without archive", func() (bool, string) {
		return l.stored.Load() > 100 && l.acked.Load() > 100, errorsOf(l)
	})

	s3.Restart()
	eventually(t, stepMax, "ack=archived works again", func() (bool, string) { return l.archived.Load() > 10, errorsOf(l) })
	eventually(t, stepMax, "readiness takes it back", func() (bool, string) {
		ready, err := r.node.Ready(limited(t))
		return err == nil && ready.Ready && len(ready.Degraded) == 0, strings.Join(ready.Degraded, " ")
	})
	r.waitRandom(archiveLag+time.Second, archiveLag+2*time.Second)
	bound := r.history.Now() - archiveLag
	r.kill()
	l.stop()
	r.history.Cut(history.Cut{DiskLost: true, Before: bound})
	r.restore()
	r.start(readyMax)
	r.check("after a restore")
	r.drain()
	r.verifyBucket()
}
