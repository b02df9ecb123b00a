package restore

import (
	"context"
	"testing"

	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// A restore that is canceled ends: whoever asks for more objects than were begun
// gets an error for each, and does not wait.
func TestReadAheadEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	i := &incarnation{}
	for n := range uint64(3 * aheadObjects) {
		i.wal = append(i.wal, manifest.Key{Kind: manifest.KindWAL, Node: "n1", Incarnation: 1, First: n + 1, End: n + 2})
		i.bytes = append(i.bytes, 1)
	}
	r := &replay{store: mem.New("ahead", nil)}
	a := r.readAhead(ctx, i, 0)
	defer a.stop()
	for range i.wal {
		if _, err := a.next(); err == nil {
			t.Fatal("an object that is not there was read")
		}
	}
}
