package node

import (
	"context"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node/partition"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// ArchiveStatus says how far the archive is behind and what it costs, as far as
// the node knows: it asks the archive nothing. NotFound without an archive, or
// when there is no such topic.
func (n *Node) ArchiveStatus(ctx context.Context, req broker.ArchiveStatusRequest) (out broker.ArchiveStatus, more bool, err error) {
	if n.opts.Archive == nil {
		return out, false, errNoArchive
	}
	if out.Topics, more, err = n.archiveTopics(req); err != nil {
		return out, false, err
	}
	sums, _ := n.sums()
	out.Lag = n.lagOf(sums)
	st := n.shipper.Status()
	out.RPOSeconds = st.RPO.Seconds()
	if !st.Answered.IsZero() {
		out.AnsweredAt = st.Answered.UnixMilli()
	}
	out.Outage = n.outage()
	out.Cache, out.Cost = n.cacheStatus(), n.archiveCost()
	return out, more, nil
}

// archiveTopics lists the topics that were asked for.
func (n *Node) archiveTopics(req broker.ArchiveStatusRequest) (list []broker.ArchiveTopic, more bool, err error) {
	if req.Topic != "" {
		t, err := n.topic(req.Topic)
		if err != nil {
			return nil, false, err
		}
		return []broker.ArchiveTopic{n.archiveTopic(t, true)}, false, nil
	}
	infos, more, err := n.Topics(context.Background(), req.After, req.Limit)
	if err != nil {
		return nil, false, err
	}
	list = make([]broker.ArchiveTopic, 0, len(infos))
	table := n.topics.Load()
	for _, info := range infos {
		if t := table.byName[info.Name]; t != nil { // else deleted meanwhile
			list = append(list, n.archiveTopic(t, false))
		}
	}
	return list, more, nil
}

// archiveTopic adds the partitions of t up, and lists them when each is wanted.
func (n *Node) archiveTopic(t *topic, each bool) broker.ArchiveTopic {
	out := broker.ArchiveTopic{Topic: t.Name}
	var sum partition.Totals
	for i, p := range t.partitions {
		if p == nil {
			continue
		}
		one := p.Totals()
		sum.Add(one)
		chain, _ := n.chains.summary(p.ID)
		out.ArchivedBytes += chain.Totals.Bytes
		if each {
			end, _ := p.ArchivedEnd()
			out.Partitions = append(out.Partitions, broker.ArchivePartition{
				Partition: uint32(i), ArchivedOffset: end, HighWatermark: p.HighWatermark(),
				Lag: n.lagOf(one), ArchivedBytes: chain.Totals.Bytes,
			})
		}
	}
	out.Lag = n.lagOf(sum)
	return out
}

func (n *Node) lagOf(t partition.Totals) broker.ArchiveLag {
	return broker.ArchiveLag{Records: t.UnarchivedRecords, Bytes: t.UnarchivedBytes, Seconds: n.ageOf(t.OldestUnarchived)}
}

// outage says since when shipping or uploading fails, nil when neither does.
func (n *Node) outage() *broker.ArchiveOutage {
	st, since := n.shipper.Status(), time.Time{}
	out := broker.ArchiveOutage{LastError: st.LastError}
	if out.LastError != "" {
		since = st.Failing
	}
	if err := n.uploader.Trouble(); err != nil {
		if out.LastError == "" {
			out.LastError = err.Error()
		}
		if at := n.uploader.FailingSince(); since.IsZero() || !at.IsZero() && at.Before(since) {
			since = at
		}
	}
	if out.LastError == "" {
		return nil
	}
	if !since.IsZero() {
		out.Since = since.UnixMilli()
	}
	return &out
}

func (n *Node) cacheStatus() broker.ArchiveCache {
	s := n.cache.Stats()
	out := broker.ArchiveCache{Bytes: s.Bytes, MaxBytes: s.MaxBytes, Hits: s.Hits, Misses: s.Misses, Downloaded: s.Downloaded}
	if all := s.Hits + s.Misses; all > 0 {
		out.HitRatio = float64(s.Hits) / float64(all)
	}
	return out
}

func (n *Node) archiveCost() broker.ArchiveCost {
	out := broker.ArchiveCost{UptimeSeconds: time.Since(n.opened).Seconds(), Causes: []broker.ArchiveDemand{}}
	all, _ := objstore.UsageOf(n.opts.Archive)
	for _, u := range all {
		out.Dollars += u.Dollars
		out.SentBytes += u.Sent
		out.ReceivedBytes += u.Received
		out.Causes = append(out.Causes, broker.ArchiveDemand{
			Cause: u.Cause, Requests: u.Requests, Dollars: u.Dollars, SentBytes: u.Sent, ReceivedBytes: u.Received,
		})
	}
	return out
}
