package node

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// What a node asks of its bucket while all is well: under load no LIST and no
// HEAD, and with a thousand topics that nobody uses next to nothing.
func TestRequestsWhenAllIsWell(t *testing.T) {
	topics := 1000
	if testing.Short() {
		topics = 100
	}
	r := newFaultRig(t, nil)
	one := uint32(1)
	for i := range topics {
		if _, err := r.CreateTopic(context.Background(), broker.TopicSpec{Name: fmt.Sprintf("idle-%d", i), Partitions: &one}); err != nil {
			t.Fatal(err)
		}
	}
	r.heal("a thousand topics")

	r.bucket.count.Reset()
	for range 20 {
		r.hot()
		r.seal()
	}
	within(t, "everything is archived", func() bool { ok, _ := r.healthy(); return ok })
	if list, head, puts := r.bucket.count.Count("list"), r.bucket.count.Count("head"), r.bucket.count.Count("put"); list+head > 0 || puts < 20 {
		t.Errorf("under load: %d LIST, %d HEAD, %d PUT", list, head, puts)
	}

	// The log's own closing marks are shipped too, so quiet is what stays quiet.
	within(t, "the node falls quiet", func() bool {
		r.bucket.count.Reset()
		<-time.After(3 * time.Second)
		return r.bucket.requests() <= 4
	})
	r.close()
}
