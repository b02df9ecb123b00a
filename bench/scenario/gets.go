package scenario

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/tidemark-mq/tidemark/tier/objstore"
)

const (
	getBytes   = 4 << 20 // of one plain range request
	getsAtOnce = 8
	firstGet   = 64 << 10
	maxObjects = 1_000_000
)

// objects lists what is below a prefix and wanted.
func objects(ctx context.Context, st objstore.Store, prefix string, want func(key string) bool) (out []objstore.Info, size int64, err error) {
	after := ""
	for {
		page, err := st.List(ctx, prefix, after, 0)
		if err != nil {
			return nil, 0, fmt.Errorf("list the archive below %q: %w", prefix, err)
		}
		for _, o := range page.Objects {
			after = o.Key
			if want(o.Key) {
				out, size = append(out, o), size+o.Size
			}
		}
		if len(out) > maxObjects {
			return nil, 0, fmt.Errorf("there are more than %d objects below %q", maxObjects, prefix)
		}
		if !page.More || len(page.Objects) == 0 {
			return out, size, nil
		}
	}
}

// isSegment says that a key below t/ is that of a segment.
func isSegment(key string) bool { return strings.Contains(key, "/s/") }

// plainGets fetches every byte of objects, requests of 4 MiB and 8 at once, looks at
// none of them, and returns how long that took.
func plainGets(ctx context.Context, st objstore.Store, list []objstore.Info, progress func(done, total int64)) (time.Duration, error) {
	type piece struct {
		key string
		off int64
		n   int64
	}
	var pieces []piece
	for _, o := range list {
		for off := int64(0); off < o.Size; off += getBytes {
			pieces = append(pieces, piece{o.Key, off, min(getBytes, o.Size-off)})
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var at atomic.Int64
	var wg sync.WaitGroup
	begun := time.Now()
	for range getsAtOnce {
		wg.Go(func() {
			buf := make([]byte, getBytes)
			for ctx.Err() == nil {
				i := at.Add(1) - 1
				if i >= int64(len(pieces)) {
					return
				}
				p := pieces[i]
				n, err := st.GetRange(ctx, p.key, buf[:p.n], p.off)
				if err == nil && int64(n) < p.n {
					err = fmt.Errorf("%s ends at byte %d: it is gone, or was replaced", p.key, p.off+int64(n))
				}
				if err != nil {
					cancel(fmt.Errorf("plain request: %w", err))
					return
				}
				progress(i+1, int64(len(pieces)))
			}
		})
	}
	wg.Wait()
	return time.Since(begun), context.Cause(ctx)
}

// firstGets measures one plain request of 64 KiB to each of up to 16 objects.
func firstGets(ctx context.Context, st objstore.Store, list []objstore.Info) (*hdrhistogram.Histogram, error) {
	h := hdrhistogram.New(1, time.Minute.Microseconds(), 3)
	buf := make([]byte, firstGet)
	for _, o := range list[:min(len(list), 16)] {
		begun := time.Now()
		if _, err := st.GetRange(ctx, o.Key, buf, min(o.Size/2, max(0, o.Size-firstGet))); err != nil {
			return nil, fmt.Errorf("plain request: %w", err)
		}
		_ = h.RecordValue(min(time.Since(begun), time.Minute).Microseconds()) // within its bounds
	}
	return h, nil
}
