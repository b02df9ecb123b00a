package bench

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/testkit/s3server"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/cold"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/s3"
)

const (
	coldRounds = 13
	getBytes   = 4 << 20 // of one plain range request
	getsAtOnce = 8
	runBytes   = 1 << 20 // of one answer to the cold reader
)

// BenchmarkColdRead is one sequential reader of archived segments, 256 MiB of
// 16 to 64 MiB, in a real S3 server on this machine. Each round does, with
// everything in the page cache:
//
//	get     plain range requests for all bytes of the objects, 8 at once
//	keep    the same, each answer written to a file: the least that keeping costs
//	unkept  cold.Cache without room on disk: every batch verified
//	cold    cold.Cache that has none of them: the same, and every chunk kept on disk
//	hot     the same segments from local files, every batch verified
//	second  cold.Cache again, from its directory
//
// and reports unkept/get, keep/get, cold/get, cold/keep and second/hot: 1 = the
// cache costs nothing. first/get is the time from opening a segment that nothing is
// known of to its first verified batch, against one plain request of 64 KiB.
// Buffers are warm on all sides: those of the plain requests stay from round to round, and
// each cache reads two other segments first. What the second read had to download
// because the first could not keep it is reported too.
func BenchmarkColdRead(b *testing.B) {
	st := s3Store(b)
	sizes := []int64{64 << 20, 64 << 20} // what warms: as much as is in memory at once
	for _, mib := range []int64{64, 16, 48, 32, 64, 32} {
		sizes = append(sizes, mib<<20)
	}
	segs, ratio := makeSegments(b, st, b.TempDir(), sizes)
	warm, segs := segs[:2], segs[2:]
	bufs := make([][]byte, getsAtOnce)
	for i := range bufs {
		bufs[i] = make([]byte, getBytes)
	}
	root := b.TempDir()
	var get, coldRead, hot, second, unkeptX, keepX, coldX, coldKeepX, secondX, firstX series
	refetched := 0.0
	for b.Loop() {
		for round := range rounds(coldRounds) {
			dir := filepath.Join(root, strconv.Itoa(round))
			g := rate(segs, func() { plainGets(b, st, segs, bufs) })
			keep := filepath.Join(root, "keep")
			if err := os.Mkdir(keep, 0o755); err != nil {
				b.Fatal(err)
			}
			k := rate(segs, func() { keptGets(b, st, segs, bufs, keep) })
			if err := os.RemoveAll(keep); err != nil { // before its pages are written back
				b.Fatal(err)
			}
			c, _ := openCache(b, st, dir, 1)
			coldScan(b, c, warm)
			u := rate(segs, func() { coldScan(b, c, segs) })
			first := firstBytes(b, st, segs)
			closeCache(b, c)
			c, _ = openCache(b, st, dir, 0)
			coldScan(b, c, warm)
			cr := rate(segs, func() { coldScan(b, c, segs) })
			closeCache(b, c) // writes what is on its way to disk
			h := rate(segs, func() { hotScan(b, segs) })
			c, reg := openCache(b, st, dir, 0)
			openAll(b, c, segs) // a cache in use has the indexes in memory
			coldScan(b, c, warm)
			missed := misses(b, reg)
			s := rate(segs, func() { coldScan(b, c, segs) })
			missed = misses(b, reg) - missed
			closeCache(b, c)
			if err := os.RemoveAll(dir); err != nil { // before its pages are written back
				b.Fatal(err)
			}
			if round == 0 {
				continue // warms connections, page cache and heap
			}
			get.add(g)
			coldRead.add(cr)
			hot.add(h)
			second.add(s)
			unkeptX.add(u / g)
			keepX.add(k / g)
			coldKeepX.add(cr / k)
			firstX.add(first)
			coldX.add(cr / g)
			secondX.add(s / h)
			refetched += missed
		}
	}
	get.report(b, "get-MB/s", false)
	coldRead.report(b, "cold-MB/s", false)
	hot.report(b, "hot-MB/s", false)
	second.report(b, "second-MB/s", false)
	b.ReportMetric(ratio, "zstd-ratio")
	b.ReportMetric(refetched, "refetched-chunks")
	unkeptX.report(b, "unkept/get", true)
	keepX.report(b, "keep/get", true)
	coldX.report(b, "cold/get", true)
	coldKeepX.report(b, "cold/keep", true)
	firstX.report(b, "first/get", true)
	secondX.report(b, "second/hot", true)
}

// s3Store is the store of a node: the S3 backend under its decorators.
func s3Store(b *testing.B) objstore.Store {
	srv := s3server.Start(b)
	backend, err := s3.Open(b.Context(), s3.Options{
		Bucket: srv.Bucket, Prefix: "bench", Endpoint: srv.Endpoint, Region: srv.Region,
		AccessKeyID: srv.AccessKey, SecretAccessKey: srv.SecretKey,
	})
	if err != nil {
		b.Fatal(err)
	}
	st := objstore.Stack(backend, objstore.StackOptions{})
	b.Cleanup(func() {
		if err := st.Close(); err != nil {
			b.Error(err)
		}
	})
	return st
}

func openCache(b *testing.B, st objstore.Store, dir string, room int64) (*cold.Cache, *prometheus.Registry) {
	reg := prometheus.NewRegistry()
	c, err := cold.New(cold.Config{FS: vfs.Default, Dir: dir, Store: objstore.For(st, objstore.CauseRead), Registry: reg, MaxBytes: room})
	if err != nil {
		b.Fatal(err)
	}
	return c, reg
}

// misses is how many chunks a cache has downloaded.
func misses(b *testing.B, reg *prometheus.Registry) float64 {
	return counter(b, reg, "tidemark_cold_chunk_misses_total")
}

func closeCache(b *testing.B, c *cold.Cache) {
	if err := c.Close(); err != nil {
		b.Fatal(err)
	}
}

func openAll(b *testing.B, c *cold.Cache, segs []archived) {
	for _, a := range segs {
		if _, err := c.Open(context.Background(), a.seg); err != nil {
			b.Fatal(err)
		}
	}
}

// plainGets fetches every byte of the objects, one request at a time into each
// buffer, and looks at none.
func plainGets(b *testing.B, st objstore.Store, segs []archived, bufs [][]byte) {
	eachGet(b, st, segs, bufs, func(int64, []byte) error { return nil })
}

// keptGets is plainGets with every answer in a file of its own.
func keptGets(b *testing.B, st objstore.Store, segs []archived, bufs [][]byte, dir string) {
	eachGet(b, st, segs, bufs, func(i int64, p []byte) error {
		return os.WriteFile(filepath.Join(dir, strconv.FormatInt(i, 10)), p, 0o600)
	})
}

// firstBytes is how much longer a cache takes to its first batch, in the middle
// of a segment whose index it does not have, than a request of 64 KiB: the median
// over the segments.
func firstBytes(b *testing.B, st objstore.Store, segs []archived) float64 {
	ctx := context.Background()
	var x series
	small := make([]byte, 64<<10)
	for i, a := range segs {
		begin := time.Now()
		if _, err := st.GetRange(ctx, a.seg.Key(), small, int64(i+1)<<20); err != nil {
			b.Fatal(err)
		}
		plain := time.Since(begin)
		c, _ := openCache(b, st, b.TempDir(), 1)
		begin = time.Now()
		scan, err := c.Scan(ctx, a.seg, (a.seg.Base+a.seg.Next)/2)
		if err != nil {
			b.Fatal(err)
		}
		if _, _, err := scan.Next(ctx); err != nil {
			b.Fatal(err)
		}
		x.add(time.Since(begin).Seconds() / plain.Seconds())
		scan.Close()
		closeCache(b, c)
	}
	return x.median()
}

// eachGet fetches every byte of the objects, one request at a time into each
// buffer, and hands the i-th answer to use.
func eachGet(b *testing.B, st objstore.Store, segs []archived, bufs [][]byte, use func(i int64, p []byte) error) {
	type piece struct {
		key string
		off int64
	}
	var pieces []piece
	for _, a := range segs {
		for off := int64(0); off < a.seg.Bytes; off += getBytes {
			pieces = append(pieces, piece{a.seg.Key(), off})
		}
	}
	var at atomic.Int64
	var wg sync.WaitGroup
	for _, buf := range bufs {
		wg.Go(func() {
			for {
				i := at.Add(1) - 1
				if i >= int64(len(pieces)) {
					return
				}
				n, err := st.GetRange(context.Background(), pieces[i].key, buf, pieces[i].off)
				if err == nil {
					err = use(i, buf[:n])
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// coldScan reads every batch of the segments.
func coldScan(b *testing.B, c *cold.Cache, segs []archived) {
	scanRuns(b, c, segs, func(*cold.Run) {})
}

// scanRuns reads every batch of the segments in order, runs of up to 1 MiB, as
// one reader that goes on from segment to segment, and hands each run to use.
func scanRuns(b *testing.B, c *cold.Cache, segs []archived, use func(*cold.Run)) {
	ctx := context.Background()
	r, err := c.Open(ctx, segs[0].seg)
	if err != nil {
		b.Fatal(err)
	}
	scan := r.Batches(segs[0].seg.Base)
	defer func() { scan.Close() }()
	for i, a := range segs {
		if i+1 < len(segs) {
			scan.Follow(segs[i+1].seg)
		}
		next := a.seg.Base
		for {
			run, err := scan.Run(ctx, runBytes)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				b.Fatal(err)
			}
			next = run.Next
			use(run)
			run.Release()
		}
		if next != a.seg.Next {
			b.Fatalf("the scan of a segment ended at offset %d, want %d", next, a.seg.Next)
		}
		if i+1 < len(segs) {
			if scan, err = scan.Continue(ctx, next); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// hotScan reads every batch of the local files in order.
func hotScan(b *testing.B, segs []archived) {
	var mem []byte
	for _, a := range segs {
		f, err := vfs.Default.Open(a.path)
		if err != nil {
			b.Fatal(err)
		}
		r, _, err := segment.OpenReader(a.path, f, a.seg.Bytes)
		if err != nil {
			b.Fatal(err)
		}
		if mem == nil {
			mem = make([]byte, 1<<20)
		}
		scan := r.Scan(a.seg.Base, mem)
		next := a.seg.Base
		for {
			_, h, err := scan.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				b.Fatal(err)
			}
			next = h.NextOffset()
		}
		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
		if next != a.seg.Next {
			b.Fatalf("the scan of a file ended at offset %d, want %d", next, a.seg.Next)
		}
	}
}

// rate runs work over the segments' bytes and returns MB/s.
func rate(segs []archived, work func()) float64 {
	var n int64
	for _, a := range segs {
		n += a.seg.Bytes
	}
	return float64(n) / 1e6 / seconds(work)
}

func seconds(work func()) float64 {
	begin := time.Now()
	work()
	return time.Since(begin).Seconds()
}
