package node

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// namedTopics is how many topics have series of their own. A topic has them
// from its creation, or the node's start, to its deletion, when a place was
// free then; the rest share those of otherTopics, and what a deleted one had
// goes there. So sums never go back, and what clients create does not make
// series without end.
const namedTopics = 100

// otherTopics and otherGroups stand for all that have no series of their own.
// No name begins with an underscore.
const (
	otherTopics = "_other"
	otherGroups = "_other"
	namedGroups = 8 // of a topic
)

// traffic counts what goes in and out. Counting is a handful of atomic adds on
// memory that is there: nothing is looked up by name and nothing allocated.
type traffic struct {
	levels [3]level // by ack level
	topics map[broker.TopicID]*topicTraffic
	other  topicTraffic // of topics without a place
	free   int          // places; under Node.topicsMu like topics
}

// topicTraffic is one topic's part.
type topicTraffic struct {
	records, bytes                   atomic.Uint64 // produced
	deliveredRecords, deliveredBytes atomic.Uint64 // leased to consumers

	_ [32]byte // topics do not share cache lines
}

// level is what was produced with one ack level.
type level struct {
	records, bytes atomic.Uint64
	nanoseconds    atomic.Uint64
	buckets        [levelBuckets]atomic.Uint64
}

// Bucket i of a level counts what took less than 2^(i+firstBucket) microseconds;
// the last counts what took longer.
const (
	firstBucket  = 7  // 128 us
	levelBuckets = 18 // up to 2^23 us, 8.4 s
)

// ackLevels names the levels in the order of traffic.levels.
var ackLevels = [3]broker.Ack{broker.AckAccepted, broker.AckCommitted, broker.AckArchived}

func levelOf(a broker.Ack) int {
	switch a {
	case broker.AckArchived:
		return 2
	case broker.AckCommitted:
		return 1
	default:
		return 0
	}
}

func newTraffic() *traffic {
	return &traffic{topics: make(map[broker.TopicID]*topicTraffic), free: namedTopics}
}

// produced counts a produce that reached its level.
func (c *traffic) produced(t *topic, ack broker.Ack, placed []broker.Placement, bytes int, took time.Duration) {
	records, size := uint64(0), uint64(bytes)
	for i := range placed {
		records += uint64(placed[i].Count)
	}
	l := &c.levels[levelOf(ack)]
	l.records.Add(records)
	l.bytes.Add(size)
	l.nanoseconds.Add(uint64(max(0, took)))
	l.buckets[bucketOf(took)].Add(1)
	t.traffic.records.Add(records)
	t.traffic.bytes.Add(size)
}

func bucketOf(d time.Duration) int {
	n := bits.Len64(uint64(max(0, d.Microseconds()))) // d < 2^n us
	return min(max(0, n-firstBucket), levelBuckets-1)
}

// delivered counts records that were leased to a consumer.
func (c *traffic) delivered(t *topic, msgs []broker.Message) {
	size := uint64(0)
	for i := range msgs {
		size += uint64(len(msgs[i].Key) + len(msgs[i].Value))
	}
	t.traffic.deliveredRecords.Add(uint64(len(msgs)))
	t.traffic.deliveredBytes.Add(size)
}

// of returns the counters of a topic, which get a place if one is free. The
// caller holds topicsMu, or nobody else runs yet.
func (c *traffic) of(id broker.TopicID) *topicTraffic {
	t := c.topics[id]
	if t == nil && c.free > 0 {
		c.free--
		t = new(topicTraffic)
	} else if t == nil {
		t = &c.other
	}
	c.topics[id] = t
	return t
}

// forget gives back the places of topics that are not in the table. The caller
// holds topicsMu, or nobody else runs yet.
func (c *traffic) forget(table *topicTable) {
	here := make(map[broker.TopicID]bool, len(table.byName))
	for _, t := range table.byName {
		here[t.ID] = true
	}
	for id, t := range c.topics {
		if here[id] {
			continue
		}
		delete(c.topics, id)
		if t != &c.other {
			c.free++
			c.other.take(t)
		}
	}
}

// take adds what a deleted topic counted, so that the sum over all topics never
// goes back. What its last requests still count is lost.
func (t *topicTraffic) take(from *topicTraffic) {
	t.records.Add(from.records.Load())
	t.bytes.Add(from.bytes.Load())
	t.deliveredRecords.Add(from.deliveredRecords.Load())
	t.deliveredBytes.Add(from.deliveredBytes.Load())
}

// trafficMetrics exports traffic and the lag of groups. Everything is put
// together when it is asked for.
type trafficMetrics struct {
	n *Node

	records, bytes, seconds                    *prometheus.Desc
	topicRecords, topicBytes                   *prometheus.Desc
	topicDeliveredRecords, topicDeliveredBytes *prometheus.Desc
	lagRecords, lagSeconds                     *prometheus.Desc
}

func newTrafficMetrics(n *Node) *trafficMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("tidemark_"+name, help, labels, nil)
	}
	return &trafficMetrics{
		n:                     n,
		records:               desc("produced_records_total", "Records that reached the ack level their producer asked for.", "ack"),
		bytes:                 desc("produced_bytes_total", "Keys and values of those records; of batches that came encoded, their bytes.", "ack"),
		seconds:               desc("produce_seconds", "Time from a produce's being read to its ack level.", "ack"),
		topicRecords:          desc("topic_produced_records_total", "Records produced to a topic; topics without series of their own are under _other.", "topic"),
		topicBytes:            desc("topic_produced_bytes_total", "Keys and values of records produced to a topic.", "topic"),
		topicDeliveredRecords: desc("topic_delivered_records_total", "Records of a topic that were leased to consumers, redeliveries included, replays not.", "topic"),
		topicDeliveredBytes:   desc("topic_delivered_bytes_total", "Keys and values of those records.", "topic"),
		lagRecords:            desc("group_lag_records", "Visible records that a group has not settled.", "topic", "group"),
		lagSeconds:            desc("group_lag_seconds", "Age of the oldest record that a group has not settled, 0 = there is none; of one that is in the archive alone, the age of the oldest local record behind it.", "topic", "group"),
	}
}

// Describe implements prometheus.Collector.
func (m *trafficMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		m.records, m.bytes, m.seconds, m.topicRecords, m.topicBytes, m.topicDeliveredRecords, m.topicDeliveredBytes, m.lagRecords, m.lagSeconds,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *trafficMetrics) Collect(ch chan<- prometheus.Metric) {
	for i := range m.n.traffic.levels {
		m.level(ch, &m.n.traffic.levels[i], string(ackLevels[i]))
	}
	lags := newLags()
	for name, t := range m.n.topics.Load().byName {
		if t.traffic == &m.n.traffic.other {
			name = otherTopics
		} else {
			m.topic(ch, t.traffic, name)
		}
		m.n.lagsOf(t, name, lags)
	}
	m.topic(ch, &m.n.traffic.other, otherTopics)
	for key, l := range lags.by {
		ch <- prometheus.MustNewConstMetric(m.lagRecords, prometheus.GaugeValue, float64(l.records), key.topic, key.group)
		ch <- prometheus.MustNewConstMetric(m.lagSeconds, prometheus.GaugeValue, m.n.ageOf(l.oldestMS), key.topic, key.group)
	}
}

func (m *trafficMetrics) level(ch chan<- prometheus.Metric, l *level, ack string) {
	counter := func(d *prometheus.Desc, v *atomic.Uint64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v.Load()), ack)
	}
	counter(m.records, &l.records)
	counter(m.bytes, &l.bytes)
	buckets, count := make(map[float64]uint64, levelBuckets), uint64(0)
	for i := range l.buckets {
		count += l.buckets[i].Load()
		if i < levelBuckets-1 {
			buckets[float64(uint64(1)<<(i+firstBucket))/1e6] = count
		}
	}
	ch <- prometheus.MustNewConstHistogram(m.seconds, count, float64(l.nanoseconds.Load())/1e9, buckets, ack)
}

func (m *trafficMetrics) topic(ch chan<- prometheus.Metric, t *topicTraffic, name string) {
	for d, v := range map[*prometheus.Desc]*atomic.Uint64{
		m.topicRecords: &t.records, m.topicBytes: &t.bytes, m.topicDeliveredRecords: &t.deliveredRecords, m.topicDeliveredBytes: &t.deliveredBytes,
	} {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v.Load()), name)
	}
}

// lags are the lags of groups, by the names of their series.
type lags struct{ by map[lagKey]*lag }

type lagKey struct{ topic, group string }

type lag struct {
	records  int64
	oldestMS int64 // 0 = there is none
}

func newLags() *lags { return &lags{by: make(map[lagKey]*lag)} }

// lagsOf adds the lags of t's groups under name.
func (n *Node) lagsOf(t *topic, name string, to *lags) {
	groups := n.queue.Groups(t.ID)
	if len(groups) == 0 {
		groups = []string{broker.DefaultGroup} // nobody consumed yet
	}
	for i, group := range groups {
		described, err := n.queue.Describe(t.ID, group)
		if err != nil {
			continue // it went meanwhile
		}
		key := lagKey{name, group}
		if i >= namedGroups || name == otherTopics {
			key.group = otherGroups
		}
		l := to.by[key]
		if l == nil {
			l = new(lag)
			to.by[key] = l
		}
		for _, d := range described {
			l.records += d.Lag
			if d.OldestUnsettled < 0 || int(d.Partition) >= len(t.partitions) {
				continue
			}
			if p := t.partitions[d.Partition]; p != nil {
				if ms := p.AppendedAt(d.OldestUnsettled); ms > 0 && (l.oldestMS == 0 || ms < l.oldestMS) {
					l.oldestMS = ms
				}
			}
		}
	}
}
