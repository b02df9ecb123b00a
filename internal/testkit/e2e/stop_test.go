package e2e

import (
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/testkit/history"
)

// stopMax is what a stop may take: the grace for requests, and what shipping has.
const stopMax = 35 * time.Second

// A broker that is told to end under load ends by itself with exit code 0, and
// then the archive alone has everything that it had accepted, also in the very
// last moment: the data directory is deleted, restored from the archive, and
// held against what clients were told. What was acked stays acked (I1, I11, I16).
func TestStopUnderLoadShipsEverything(t *testing.T) {
	r := newRig(t, fileArchive(t), nil, shipping)
	r.start(0)
	r.create(topic)
	for round := range 2 {
		l := r.startLoad()
		r.waitRandom(300*time.Millisecond, 1500*time.Millisecond)
		began := time.Now()
		if !r.node.Stop(stopMax) || r.node.ExitCode() != 0 {
			t.Fatalf("the broker ended with %d after %s\n%s", r.node.ExitCode(), time.Since(began), lastLines(r.node.Stderr()))
		}
		took := time.Since(began)
		l.stop()
		// Nothing may be missing, unlike after the loss of a disk under load.
		r.history.Cut(history.Cut{})
		r.fail("clients", r.history.Findings())
		r.restore()
		r.start(readyMax)
		r.check("after a stop and a restore")
		t.Logf("round %d: %d requests stored, stopped in %s", round, l.stored.Load(), took.Round(time.Millisecond))
		if l.stored.Load() == 0 || l.acked.Load() == 0 {
			t.Errorf("round %d: the load did too little: %v", round, l.lastError.Load())
		}
	}
	r.drain()
	r.verifyBucket()
}
