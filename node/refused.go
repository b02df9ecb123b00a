package node

import (
	"fmt"
	"sync/atomic"

	"github.com/tidemark-mq/tidemark/node/partition"
)

// refused is what partitions that are out of service cost: the log keeps every
// frame that one of them may need, and all behind it, because those records may
// be nowhere else. The other partitions go on; what bounds the log then is the
// disk's reserve, where produce is refused until such a partition is repaired or
// its topic deleted.
type refused struct {
	partitions atomic.Int64
	bytes      atomic.Int64 // of log files that they keep
}

// countRefused brings the numbers up to date. It is called a few times a second.
func (n *Node) countRefused() {
	count, low := int64(0), uint64(0)
	for _, p := range n.engine.All() {
		if p.Refused() == nil {
			continue
		}
		count++
		if lsn, ok := p.NeededFrom(); ok && (low == 0 || lsn < low) {
			low = lsn
		}
	}
	bytes := int64(0)
	if low > 0 {
		bytes = n.log.BytesFrom(low)
	}
	n.refused.partitions.Store(count)
	n.refused.bytes.Store(bytes)
}

// refusedReason says why p is out of service and what that costs.
func (n *Node) refusedReason(p *partition.Partition) string {
	err := p.Refused()
	if err == nil {
		return ""
	}
	lsn, ok := p.NeededFrom()
	if !ok {
		return err.Error()
	}
	return fmt.Sprintf("%s; the log keeps %d bytes for it until it is repaired or its topic is deleted", err, n.log.BytesFrom(lsn))
}
