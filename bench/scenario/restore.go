package scenario

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tidemark-mq/tidemark/bench/rawhttp"
	"github.com/tidemark-mq/tidemark/bench/report"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// watched is how long a restore watches an archive that was written to in the last
// 24 hours, whatever is in it.
const watched = 3 * time.Second

// Lab runs nodes of a benchmark that loses them. Each run has an archive of its own.
type Lab interface {
	// Archive makes room for the archive of a run and opens it.
	Archive(ctx context.Context, run int) (objstore.Store, error)
	// Start starts a node on that archive with a data directory that Restore made,
	// or a new one.
	Start(ctx context.Context) (*rawhttp.Target, error)
	// Lose stops the node and removes all it has on disk.
	Lose() error
	// Restore makes a data directory out of the archive.
	Restore(ctx context.Context) (Restored, error)
}

// Restored is what a restore says of itself.
type Restored struct {
	Took       time.Duration `json:"took_ns"`
	WALObjects int           `json:"wal_objects"`
	WALBytes   int64         `json:"wal_bytes"`
	Records    int64         `json:"tail_records"`
	Bytes      int64         `json:"tail_bytes"` // stored, written to local files
	Segments   int           `json:"segments"`
	Archived   int64         `json:"archived_records"`
}

// Restore measures how long a node takes that lost its disk until it serves again:
// restored out of the archive, against plain requests for the same objects.
func Restore(ctx context.Context, o Options, lab Lab) (*report.Report, error) {
	b, err := start("restore", o)
	if err != nil {
		return nil, err
	}
	b.rep.Set("records of a run", strconv.Itoa(o.Records))
	b.rep.Set("plain requests", fmt.Sprintf("ranges of %d MiB, %d at once, for every object that is no segment: segments stay where they are", getBytes>>20, getsAtOnce))
	b.rep.Notes = append(b.rep.Notes, fmt.Sprintf("A restore watches an archive that was written to lately for %v, to see whether its cluster lives. That is in the seconds, and not in the MB/s.", watched))
	return b.finish(b.restore(ctx, lab))
}

func (b *bench) restore(ctx context.Context, lab Lab) error {
	for i := range b.Runs {
		if err := b.restoreOnce(ctx, lab, i); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) restoreOnce(ctx context.Context, lab Lab, i int) error {
	stage := fmt.Sprintf("restore %d of %d", i+1, b.Runs)
	st, err := lab.Archive(ctx, i)
	if err != nil {
		return err
	}
	if b.rep.Measures == nil {
		b.rep.Set("archive", st.Capabilities().URL)
	}
	if b.Target, err = lab.Start(ctx); err != nil {
		return err
	}
	return b.try(ctx, func(t *trial) error {
		if err := t.fill(ctx, stage); err != nil {
			return err
		}
		// An orderly end ships the log to its last record.
		if err := lab.Lose(); err != nil {
			return err
		}
		list, size, err := objects(ctx, st, "", func(key string) bool { return !strings.HasPrefix(key, "t/") || !isSegment(key) })
		if err != nil {
			return err
		}
		// Plain requests before the restore and behind it in turns.
		var plain time.Duration
		gets := func() (err error) {
			plain, err = plainGets(ctx, st, list, func(done, total int64) { b.Progress(stage+": plain requests", done, total) })
			return err
		}
		if i%2 == 0 {
			if err := gets(); err != nil {
				return err
			}
		}
		b.Progress(stage+": restoring", 0, 1)
		begun := time.Now()
		got, err := lab.Restore(ctx)
		if err != nil {
			return err
		}
		whole := time.Since(begun)
		b.Progress(stage+": restoring", 1, 1)
		if i%2 == 1 {
			if err := gets(); err != nil {
				return err
			}
		}
		begun = time.Now()
		if b.Target, err = lab.Start(ctx); err != nil {
			return err
		}
		ready := time.Since(begun)
		if err := t.firstRecord(ctx); err != nil {
			return err
		}
		first := time.Since(begun)
		b.restored(got, list, size, whole, plain, ready, first)
		return t.readBack(ctx)
	})
}

// restored adds a run to the report.
func (b *bench) restored(got Restored, list []objstore.Info, size int64, whole, plain, ready, first time.Duration) {
	work := max(got.Took-watched, time.Millisecond).Seconds()
	var run report.Run
	run.Add("restore, all of it", "s", whole.Seconds())
	run.Add("restore, without watching", "s", work)
	run.Add("objects read", "MB/s", float64(size)/1e6/work)
	run.Add("records out of the log", "records/s", float64(got.Records)/work)
	run.Add("values out of the log", "MB/s", float64(got.Records)*float64(b.Size)/1e6/work)
	run.Add("records out of the log, all", "", float64(got.Records))
	run.Add("records left in segments", "", float64(got.Archived))
	run.Add("start to ready", "s", ready.Seconds())
	run.Add("start to first record", "s", first.Seconds())
	run.Add("lost disk to first record", "s", (whole + first).Seconds())
	b.into("whole node", "timed once a run", run)
	var bare report.Run
	bare.Add("objects", "", float64(len(list)))
	bare.Add("bytes", "MB", float64(size)/1e6)
	bare.Add("objects read", "MB/s", float64(size)/1e6/plain.Seconds())
	b.into("plain range requests for the same objects", "closed loop, 8 at once", bare)
	var ratio report.Run
	ratio.Add("restore / plain requests, by bytes a second", "", plain.Seconds()/work)
	b.into(compared, "ratios", ratio)
}

// firstRecord reads one record of a partition that has any.
func (t *trial) firstRecord(ctx context.Context) error {
	for p := range t.b.Partitions {
		var page struct {
			Records []struct {
				Offset int64 `json:"offset"`
			} `json:"records"`
		}
		if err := ask(ctx, t.b.Target, rawhttp.Request{Method: http.MethodGet, Path: topicPath(t.topic, fmt.Sprintf("/partitions/%d/records?max=1", p))}, &page, http.StatusOK); err != nil {
			return err
		}
		if len(page.Records) > 0 {
			return nil
		}
	}
	return fmt.Errorf("the restored node has no record of %s", t.topic)
}
