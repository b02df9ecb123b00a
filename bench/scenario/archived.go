package scenario

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/tidemark-mq/tidemark/bench/rawhttp"
	"github.com/tidemark-mq/tidemark/internal/broker"
)

const (
	archivePoll = 100 * time.Millisecond
	// What stays out of the archive for longer than this is waiting for its age.
	archiveSettle = 20 * time.Second
	// Part of the records that has to be in the archive before anything is measured.
	archiveLeast = 0.9
)

// shelf is how much of a topic the archive has.
type shelf struct {
	id       broker.TopicID
	parts    []broker.PartitionStats
	records  int64 // all of them
	archived int64 // of them
	bytes    int64 // stored, in the archive
	local    int64 // stored, on the node's disk, that the archive has too
	segments int
}

// look asks for a topic's shelf.
func (t *trial) look(ctx context.Context) (s shelf, err error) {
	var info broker.TopicInfo
	if err := ask(ctx, t.b.Target, rawhttp.Request{Method: http.MethodGet, Path: topicPath(t.topic, "")}, &info, http.StatusOK); err != nil {
		return s, err
	}
	s.id, s.parts = info.ID, info.PartitionStats
	for i := range s.parts {
		p := &s.parts[i]
		s.records += p.NextOffset
		s.archived += p.ArchivedOffset
		s.bytes += p.ArchivedBytes
		s.local += max(0, p.LocalBytes+p.ArchivedBytes-p.SizeBytes)
		if p.ArchivedBytes > 0 {
			s.segments += p.Segments
		}
	}
	return s, nil
}

// settled waits until the archive has a topic's records in segments: all of them, or
// nine of ten when the rest waits for its age. With gone, also until the node's disk
// has none of those.
func (t *trial) settled(ctx context.Context, stage string, gone bool) (shelf, error) {
	var last shelf
	begun := time.Now()
	changed := begun
	tick := time.NewTicker(archivePoll)
	defer tick.Stop()
	for {
		s, err := t.look(ctx)
		if err != nil {
			return s, err
		}
		now := time.Now()
		if s.archived != last.archived || s.local != last.local {
			changed = now
		}
		last = s
		t.b.Progress(stage, s.archived, s.records)
		enough := float64(s.archived) >= archiveLeast*float64(s.records) && now.Sub(changed) > archiveSettle
		if s.archived > 0 && (!gone || s.local == 0) && (s.archived == s.records || enough) {
			return s, nil
		}
		if now.Sub(begun) > t.b.Settle {
			return s, fmt.Errorf("after %v the archive has %d of %d records in segments, and the node's disk still %d bytes of those: segments wait for their size or age (seal_age) and for the sweep (retention_interval); give --wait more, --records more, or use --self", t.b.Settle, s.archived, s.records, s.local)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return s, context.Cause(ctx)
		}
	}
}

// archiveStatus asks a node what its archive costs and does.
func (b *bench) archiveStatus(ctx context.Context) (s broker.ArchiveStatus, err error) {
	err = ask(ctx, b.Target, rawhttp.Request{Method: http.MethodGet, Path: "/v1/archive?limit=1"}, &s, http.StatusOK)
	if err != nil {
		return s, fmt.Errorf("this needs a node with an archive: %w", err)
	}
	return s, nil
}

// evictable makes the node's disk give up what the archive has of a topic.
func (t *trial) evictable(ctx context.Context) error {
	return ask(ctx, t.b.Target, rawhttp.Request{
		Method: http.MethodPatch, Path: topicPath(t.topic, ""), Type: typeJSON, Body: []byte(`{"local_retention_ms":1,"local_retention_bytes":1}`),
	}, nil, http.StatusOK)
}
