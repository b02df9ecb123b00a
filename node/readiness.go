package node

import "github.com/tidemark-mq/tidemark/internal/broker"

// Readiness says whether the node serves data and metadata, and what is not as it
// should be. It does not block.
func (n *Node) Readiness() broker.Readiness {
	r := broker.Readiness{Ready: true, Data: true, Control: true}
	degrade := func(cause, blocks string, err error) {
		if err != nil {
			r.Degrade(cause, blocks, err.Error())
		}
	}
	stopped := broker.CauseStopping
	if n.fenced.Load() != nil {
		stopped = broker.CauseFenced
	}
	degrade(stopped, broker.BlocksData, n.refusal())
	degrade(broker.CauseWAL, broker.BlocksData, n.log.Err())
	degrade(broker.CauseDisk, broker.BlocksData, n.disk.accept())
	degrade(broker.CauseState, broker.BlocksData, n.db.Err())
	degrade(broker.CauseMetadata, broker.BlocksControl, n.meta.Err())
	for _, p := range n.engine.All() {
		if reason := n.refusedReason(p); reason != "" {
			r.Degrade(broker.CausePartition, "", reason)
		}
	}
	if n.shipper != nil {
		if st := n.shipper.Status(); st.LastError != "" {
			r.Degrade(broker.CauseArchive, "", "archive: "+st.LastError)
		}
	}
	if n.uploader != nil {
		if err := n.uploader.Trouble(); err != nil {
			r.Degrade(broker.CauseArchive, "", "archive: "+err.Error())
		}
	}
	if n.collector != nil {
		if why := n.collector.Paused(); why != "" {
			r.Degrade(broker.CauseGarbage, "", "garbage: "+why)
		}
	}
	if why := n.sweeper.Paused(); why != "" {
		r.Degrade(broker.CauseRetention, "", "retention is paused: "+why)
	}
	degrade(broker.CauseScrub, "", n.scrubber.Trouble())
	return r
}
