package node

import (
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// More segments are sealed while the archive is away than may wait for upload.
// All of them are archived when it is back, without a restart.
func TestFullUploadQueue(t *testing.T) {
	st := fault.New(mem.New("test", nil), fault.Options{})
	m := newMemNode(t, func(o *Options) { o.Archive, o.UploadQueue, o.SealMinBytes = st, 3, 1 })
	createTopic(t, m.Node, "t", 2)
	produce(t, m.Node, "t", broker.AckArchived, numbered(0, 2)...)
	outage := st.Down(errcode.Transient)
	for i := range 10 {
		for p := range int32(2) {
			r := numbered(10*i, 3)
			for j := range r {
				r[j].Partition = p
			}
			produce(t, m.Node, "t", broker.AckCommitted, r...)
		}
		for _, p := range m.engine.All() {
			if err := m.engine.Seal(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	outage.Remove()
	within(t, "everything is archived", func() bool {
		info, err := m.Topic(t.Context(), "t")
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range info.PartitionStats {
			if s.ArchivedOffset != s.HighWatermark {
				return false
			}
		}
		return true
	})
	m.close()
}
