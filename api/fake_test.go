package api

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// fakeBroker keeps topics in memory. It is as strict as a node about what the
// routes rely on: offsets, bounds of reads, leases, waiting, cancellation.
type fakeBroker struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced whenever records or leases change
	topics  map[string]*fakeTopic
	serial  int

	// Answers that tests set.
	produceErr  error
	ack         Ack
	produceHook func(ctx context.Context, req ProduceRequest)
	readErr     func(next int64) error // asked before each run of a read
	runLength   int
	readiness   Readiness
	archive     ArchiveStatus
	asked       ArchiveStatusRequest
	garbage     GarbageReport
	scrub       ScrubReport
	scrubbed    []string
	turns       int
	released    int
	produces    int
	sets        int
	encoded     []broker.EncodedBatch
}

type fakeTopic struct {
	info  TopicInfo
	parts []*fakePart
	turn  int
}

type fakePart struct {
	oldest  int64
	records []broker.Record
	leases  map[int64]*fakeLease
	settled map[int64]bool
}

type fakeLease struct {
	handle  string
	attempt uint32
	held    bool
}

func newFakeBroker() *fakeBroker {
	return &fakeBroker{
		changed: make(chan struct{}), topics: map[string]*fakeTopic{}, runLength: 100,
		readiness: Readiness{Ready: true, Data: true, Control: true},
	}
}

// topic makes a topic with n partitions.
func (f *fakeBroker) topic(name string, n uint32) *fakeBroker {
	_, err := f.CreateTopic(context.Background(), TopicSpec{Name: name, Partitions: &n})
	if err != nil {
		panic(err)
	}
	return f
}

// put appends values to partition 0.
func (f *fakeBroker) put(topic string, values ...string) {
	for _, v := range values {
		f.append(topic, NewRecord{Partition: 0, Value: []byte(v)})
	}
}

func (f *fakeBroker) append(topic string, recs ...NewRecord) {
	ack := f.ack
	f.ack = AckCommitted
	_, err := f.Produce(context.Background(), ProduceRequest{Topic: topic, Records: recs})
	f.ack = ack
	if err != nil {
		panic(err)
	}
}

// stored returns a copy of the records of a partition.
func (f *fakeBroker) stored(topic string, partition int) []broker.Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.topics[topic].parts[partition].records)
}

func (f *fakeBroker) count(topic string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.topics[topic].parts {
		n += len(p.records)
	}
	return n
}

func (f *fakeBroker) signal() {
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeBroker) CreateTopic(_ context.Context, spec TopicSpec) (TopicInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name := range f.topics {
		if strings.EqualFold(name, spec.Name) {
			return TopicInfo{}, errcode.New(errcode.Exists, "topic %q exists", name)
		}
	}
	n := uint32(broker.DefaultPartition)
	if spec.Partitions != nil {
		n = *spec.Partitions
	}
	if n < 1 || n > broker.MaxPartitions {
		return TopicInfo{}, errcode.New(errcode.InvalidArgument, "partitions is %d; it is 1 to %d", n, broker.MaxPartitions)
	}
	t := &fakeTopic{info: TopicInfo{Name: spec.Name, ID: broker.TopicID(len(f.topics) + 1), Partitions: n, DefaultAck: AckAccepted}}
	if spec.MaxRecordBytes != nil {
		t.info.MaxRecordBytes = *spec.MaxRecordBytes
	}
	for range n {
		t.parts = append(t.parts, &fakePart{leases: map[int64]*fakeLease{}, settled: map[int64]bool{}})
	}
	f.topics[spec.Name] = t
	return t.info, nil
}

func (f *fakeBroker) find(name string) (*fakeTopic, error) {
	t := f.topics[name]
	if t == nil {
		return nil, errcode.New(errcode.NotFound, "there is no topic %q", name)
	}
	return t, nil
}

func (f *fakeBroker) Topic(_ context.Context, name string) (TopicInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, err := f.find(name)
	if err != nil {
		return TopicInfo{}, err
	}
	info := t.info
	for i, p := range t.parts {
		info.PartitionStats = append(info.PartitionStats, PartitionStats{Index: uint32(i), OldestOffset: p.oldest, NextOffset: p.end(), HighWatermark: p.end(), Status: "serving"})
	}
	return info, nil
}

func (p *fakePart) end() int64 {
	if n := len(p.records); n > 0 {
		return p.records[n-1].Offset + 1
	}
	return p.oldest
}

func (f *fakeBroker) Topics(_ context.Context, after string, limit int) (list []TopicInfo, more bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, t := range f.topics {
		if name > after {
			list = append(list, t.info)
		}
	}
	slices.SortFunc(list, func(a, b TopicInfo) int { return strings.Compare(a.Name, b.Name) })
	if len(list) > limit {
		return list[:limit], true, nil
	}
	return list, false, nil
}

// SetTopic keeps the settings that tests look at.
func (f *fakeBroker) SetTopic(ctx context.Context, name string, change TopicSpec) (TopicInfo, error) {
	f.mu.Lock()
	t, err := f.find(name)
	if err == nil {
		f.sets++
		if v := change.RetentionMS; v != nil {
			t.info.RetentionMS = *v
		}
		if v := change.MaxRecordBytes; v != nil {
			t.info.MaxRecordBytes = *v
		}
		if v := change.DefaultAck; v != nil {
			t.info.DefaultAck = *v
		}
	}
	f.mu.Unlock()
	if err != nil {
		return TopicInfo{}, err
	}
	return f.Topic(ctx, name)
}

func (f *fakeBroker) DeleteTopic(_ context.Context, name string, force bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, err := f.find(name)
	if err != nil {
		return err
	}
	for _, p := range t.parts {
		if len(p.records) > len(p.settled) && !force {
			return errcode.New(errcode.Conflict, "topic %q has unsettled records; delete it with force", name)
		}
	}
	delete(f.topics, name)
	return nil
}

func (f *fakeBroker) TopicFor(name string) (TopicInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, err := f.find(name)
	if err != nil {
		return TopicInfo{}, err
	}
	return t.info, nil
}

func (f *fakeBroker) Produce(ctx context.Context, req ProduceRequest) (Produced, error) {
	if f.produceHook != nil {
		f.produceHook(ctx, req)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.produces++
	t, err := f.find(req.Topic)
	if err != nil {
		return Produced{}, err
	}
	out := Produced{Topic: req.Topic, Ack: req.Ack}
	if out.Ack == AckDefault {
		out.Ack = t.info.DefaultAck
	}
	if f.ack != "" {
		out.Ack = f.ack
	}
	out.Archived = out.Ack == AckArchived
	if in := req.Encoded; in != nil {
		// As many records as its header says; what they hold the fake does not know.
		f.encoded = append(f.encoded, broker.EncodedBatch{Data: bytes.Clone(in.Data), Partition: in.Partition, Bounds: in.Bounds})
		for range binary.BigEndian.Uint32(in.Data[57:]) {
			req.Records = append(req.Records, NewRecord{Partition: int32(in.Partition)})
		}
	}
	if err := req.CheckExpected(); err != nil {
		return Produced{}, err
	}
	if want := req.ExpectedOffset; want != nil {
		if next := t.parts[req.Records[0].Partition].end(); next != *want {
			return Produced{}, errcode.New(errcode.PreconditionFailed, "it would begin at %d", next).With("next_offset", next)
		}
	}
	places := map[uint32]*Placement{}
	for _, r := range req.Records {
		at := uint32(r.Partition)
		switch {
		case r.Partition >= 0:
		case r.Key != nil:
			at = broker.PartitionForKey(r.Key, t.info.Partitions)
		default:
			at = uint32(t.turn) % t.info.Partitions
		}
		p := t.parts[at]
		rec := broker.Record{Offset: p.end(), Timestamp: 1_700_000_000_000 + p.end(), Key: bytes.Clone(r.Key), Value: append([]byte{}, r.Value...)}
		for _, h := range r.Headers {
			rec.Headers = append(rec.Headers, broker.Header{Name: h.Name, Value: append([]byte{}, h.Value...)})
		}
		p.records = append(p.records, rec)
		if places[at] == nil {
			places[at] = &Placement{Partition: at, FirstOffset: rec.Offset, TimestampMS: rec.Timestamp, Generation: 1}
		}
		places[at].LastOffset = rec.Offset
		places[at].Count++
	}
	t.turn++
	for i := range t.info.Partitions {
		if p := places[i]; p != nil {
			out.Placements = append(out.Placements, *p)
		}
	}
	f.signal()
	return out, f.produceErr
}

func (f *fakeBroker) Consume(ctx context.Context, req ConsumeRequest) ([]Message, error) {
	deadline := time.NewTimer(req.Wait)
	defer deadline.Stop()
	for {
		f.mu.Lock()
		msgs, err := f.leaseLocked(req)
		changed := f.changed
		f.mu.Unlock()
		if err != nil || len(msgs) > 0 {
			return msgs, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-deadline.C:
			return nil, nil
		case <-changed:
		}
	}
}

func (f *fakeBroker) leaseLocked(req ConsumeRequest) ([]Message, error) {
	t, err := f.find(req.Topic)
	if err != nil {
		return nil, err
	}
	var msgs []Message
	for i, p := range t.parts {
		if req.Partition >= 0 && int(req.Partition) != i {
			continue
		}
		for _, r := range p.records {
			l := p.leases[r.Offset]
			if p.settled[r.Offset] || l != nil && l.held || len(msgs) == req.Max {
				continue
			}
			if l == nil {
				l = &fakeLease{}
				p.leases[r.Offset] = l
			}
			f.serial++
			l.held, l.attempt, l.handle = true, l.attempt+1, fmt.Sprintf("h-%d-%d-%d", i, r.Offset, f.serial)
			msgs = append(msgs, Message{Record: r, Partition: uint32(i), Attempt: l.attempt, Handle: l.handle})
		}
	}
	return msgs, nil
}

func (f *fakeBroker) Release(topic, _ string, msgs []Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range msgs {
		l := f.topics[topic].parts[m.Partition].leases[m.Offset]
		if l != nil && l.handle == m.Handle {
			l.held, l.attempt, l.handle = false, l.attempt-1, ""
			f.released++
		}
	}
	f.signal()
}

func (f *fakeBroker) releasedCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.released
}

func (f *fakeBroker) Settle(_ context.Context, req SettleRequest) ([]error, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, err := f.find(req.Topic)
	if err != nil {
		return nil, err
	}
	out := make([]error, len(req.Handles))
	for i, h := range req.Handles {
		out[i] = t.settle(h, req.Action)
	}
	f.signal()
	return out, nil
}

func (t *fakeTopic) settle(handle string, action SettleAction) error {
	var part int
	var offset, serial int64
	if _, err := fmt.Sscanf(handle, "h-%d-%d-%d", &part, &offset, &serial); err != nil || part >= len(t.parts) {
		return errcode.New(errcode.InvalidArgument, "%q is no receipt handle", handle)
	}
	l := t.parts[part].leases[offset]
	if l == nil || !l.held || l.handle != handle {
		return errcode.New(errcode.Gone, "the lease is over")
	}
	switch action {
	case SettleAck:
		l.held = false
		t.parts[part].settled[offset] = true
	case SettleNack:
		l.held = false
	}
	return nil
}

func (f *fakeBroker) ReadLog(_ context.Context, req ReadRequest) (LogReader, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, err := f.find(req.Topic)
	if err != nil {
		return nil, err
	}
	p := t.parts[req.Partition]
	r := &fakeReader{f: f, p: p, req: req, at: req.From, to: req.To}
	if r.at < 0 {
		r.at = p.oldest
	}
	bounds := func(e *errcode.Error) error {
		return e.With("oldest_offset", p.oldest).With("high_watermark", p.end())
	}
	switch {
	case r.at < p.oldest:
		return nil, bounds(errcode.New(errcode.Gone, "offset %d is gone", r.at))
	case r.at > p.end():
		return nil, bounds(errcode.New(errcode.OutOfRange, "offset %d is above the end", r.at))
	}
	if r.to < 0 && !req.Follow {
		r.to = p.end()
	}
	return r, nil
}

type fakeReader struct {
	f      *fakeBroker
	p      *fakePart
	req    ReadRequest
	at, to int64
}

func (r *fakeReader) Next(ctx context.Context) ([]broker.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if r.f.readErr != nil {
		if err := r.f.readErr(r.at); err != nil {
			return nil, err
		}
	}
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	var run []broker.Record
	for _, rec := range r.p.records {
		if rec.Offset >= r.at && (r.to < 0 || rec.Offset < r.to) && len(run) < r.f.runLength {
			run = append(run, rec)
		}
	}
	if len(run) == 0 {
		if r.req.Follow && (r.to < 0 || r.at < r.to) {
			return nil, nil
		}
		return nil, io.EOF
	}
	r.at = run[len(run)-1].Offset + 1
	return run, nil
}

// NextBatches has fakeBatch records in a batch, the text of fakeBytes, and at
// least one batch in a run.
func (r *fakeReader) NextBatches(ctx context.Context) (run []StoredBatch, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if r.f.readErr != nil {
		if err := r.f.readErr(r.at); err != nil {
			return nil, err
		}
	}
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	for n := 0; r.at < r.p.end() && (r.to < 0 || r.at < r.to) && n < r.f.runLength; n += fakeBatch {
		var recs []broker.Record
		for _, rec := range r.p.records {
			if rec.Offset/fakeBatch == r.at/fakeBatch {
				recs = append(recs, rec)
			}
		}
		r.at = recs[len(recs)-1].Offset + 1
		if r.req.To >= 0 {
			r.at = min(r.at, r.req.To)
		}
		run = append(run, StoredBatch{Bytes: fakeBytes(recs), Records: len(recs), Resume: r.at})
	}
	if len(run) == 0 && !(r.req.Follow && (r.to < 0 || r.at < r.to)) {
		return nil, io.EOF
	}
	return run, nil
}

// fakeBatch is how many records the fake stores in a batch.
const fakeBatch = 4

// fakeBytes is how it stores them.
func fakeBytes(recs []broker.Record) []byte {
	b := fmt.Appendf(nil, "[%d:", recs[0].Offset)
	for _, r := range recs {
		b = append(append(b, ' '), r.Value...)
	}
	return append(b, ']')
}

func (r *fakeReader) Wait(ctx context.Context, most time.Duration) (bool, error) {
	if !r.req.Follow && r.req.To >= 0 {
		return false, nil
	}
	var over <-chan time.Time
	if most > 0 {
		deadline := time.NewTimer(most)
		defer deadline.Stop()
		over = deadline.C
	}
	for {
		r.f.mu.Lock()
		changed, end := r.f.changed, r.p.end()
		r.f.mu.Unlock()
		if r.at < end {
			if !r.req.Follow {
				r.to = end
			}
			return true, nil
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-over:
			return false, nil
		case <-changed:
		}
	}
}

func (r *fakeReader) ResumeOffset() int64 { return r.at }

func (r *fakeReader) Bounds() (oldest, high int64) {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	return r.p.oldest, r.p.end()
}

func (r *fakeReader) Close() error { return nil }

func (f *fakeBroker) OffsetForTime(_ context.Context, topic string, partition uint32, ms int64) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.topics[topic].parts[partition]
	for _, r := range p.records {
		if r.Timestamp >= ms {
			return r.Offset, nil
		}
	}
	return p.end(), nil
}

func (f *fakeBroker) Trim(_ context.Context, topic string, partition uint32, before int64) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.topics[topic].parts[partition]
	if before < 0 || before > p.end() {
		return 0, errcode.New(errcode.InvalidArgument, "no such bound").With("oldest_offset", p.oldest).With("high_watermark", p.end())
	}
	p.oldest = max(p.oldest, before)
	return p.oldest, nil
}

func (f *fakeBroker) Readiness() Readiness {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.readiness
}

// ArchiveStatus lists the fake's topics.
func (f *fakeBroker) ArchiveStatus(ctx context.Context, req ArchiveStatusRequest) (ArchiveStatus, bool, error) {
	out, more := f.archive, false
	f.asked = req
	if req.Topic != "" {
		if _, err := f.TopicFor(req.Topic); err != nil {
			return out, false, err
		}
		out.Topics = []broker.ArchiveTopic{{Topic: req.Topic}}
		return out, false, nil
	}
	list, more, err := f.Topics(ctx, req.After, req.Limit)
	out.Topics = []broker.ArchiveTopic{}
	for _, t := range list {
		out.Topics = append(out.Topics, broker.ArchiveTopic{Topic: t.Name})
	}
	return out, more, err
}

func (f *fakeBroker) Garbage(context.Context) (GarbageReport, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.garbage, nil
}

func (f *fakeBroker) CollectGarbage(context.Context) (GarbageReport, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.turns++
	return f.garbage, nil
}

func (f *fakeBroker) Scrub(context.Context) (ScrubReport, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.scrub, nil
}

func (f *fakeBroker) StartScrub(_ context.Context, topic string) (ScrubReport, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.topics[topic] == nil && topic != "" {
		return ScrubReport{}, errcode.New(errcode.NotFound, "topic %q does not exist", topic)
	}
	f.scrubbed = append(f.scrubbed, topic)
	return f.scrub, nil
}
