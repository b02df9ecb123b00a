package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tidemark-mq/tidemark/api"
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node"
	"github.com/tidemark-mq/tidemark/tier/cold"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

const (
	coldHTTPRounds = 9
	replayBytes    = 192 << 20 // of values in the node's archive
)

// BenchmarkColdHTTP is one reader of archived records over HTTP, the records in a
// real S3 server on this machine and client and server in this process. Each round
// does
//
//	proxied  the objects of BenchmarkColdRead's kind, 96 MiB, by range requests of
//	         4 MiB, 8 at once, each passed on by a bare handler
//	raw      the same objects through cold.Cache, every batch verified and every
//	         chunk kept, the stored batches written to one answer by a bare handler
//	ndjson   a node's stream of decoded records (GET .../records), of which nothing
//	         is on the node's disk
//
// and reports raw/proxied and ndjson/proxied by stored bytes a second. A node has
// no route for stored batches: raw is what one could reach.
func BenchmarkColdHTTP(b *testing.B) {
	st := s3Store(b)
	segs, ratio := makeSegments(b, st, b.TempDir(), []int64{32 << 20, 16 << 20, 48 << 20})
	srv := newReplayServer(b, st, segs)
	records, stored := replayNode(b, s3Store(b)) // a bucket of its own
	root := b.TempDir()
	var proxied, raw, ndjson, rawX, ndjsonX series
	for b.Loop() {
		for round := range rounds(coldHTTPRounds) {
			p := rate(segs, func() { srv.proxied(b) })
			dir := filepath.Join(root, strconv.Itoa(round))
			c, _ := openCache(b, st, dir, 0)
			srv.cache.Store(c)
			r := rate(segs, func() { srv.raw(b) })
			closeCache(b, c)
			if err := os.RemoveAll(dir); err != nil {
				b.Fatal(err)
			}
			n := float64(stored) / 1e6 / seconds(func() { replayAll(b, records) })
			if round == 0 {
				continue // warms
			}
			proxied.add(p)
			raw.add(r)
			ndjson.add(n)
			rawX.add(r / p)
			ndjsonX.add(n / p)
		}
	}
	proxied.report(b, "proxied-MB/s", false)
	raw.report(b, "raw-MB/s", false)
	ndjson.report(b, "ndjson-MB/s", false)
	b.ReportMetric(ratio, "zstd-ratio")
	rawX.report(b, "raw/proxied", true)
	ndjsonX.report(b, "ndjson/proxied", true)
}

// replayServer passes objects on as they are, and their batches.
type replayServer struct {
	segs  []archived
	cache atomic.Pointer[cold.Cache]
	url   string
	http  *http.Client
}

func newReplayServer(b *testing.B, st objstore.Store, segs []archived) *replayServer {
	s := &replayServer{segs: segs}
	bufs := sync.Pool{New: func() any { return make([]byte, getBytes) }}
	mux := http.NewServeMux()
	mux.HandleFunc("/get/{segment}/{offset}", func(w http.ResponseWriter, r *http.Request) {
		i, err1 := strconv.Atoi(r.PathValue("segment"))
		off, err2 := strconv.ParseInt(r.PathValue("offset"), 10, 64)
		buf := bufs.Get().([]byte)
		defer bufs.Put(buf) //nolint:staticcheck // a slice's header is nothing beside 4 MiB
		n, err := st.GetRange(r.Context(), segs[i].seg.Key(), buf, off)
		if err := errors.Join(err, err1, err2); err != nil {
			b.Error(err)
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(n))
		_, _ = w.Write(buf[:n])
	})
	mux.HandleFunc("/raw", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.FormatInt(s.data(), 10))
		scanRuns(b, s.cache.Load(), segs, func(run *cold.Run) {
			for _, batch := range run.Batches {
				_, _ = w.Write(batch)
			}
		})
	})
	srv := httptest.NewServer(mux)
	b.Cleanup(srv.Close)
	s.url, s.http = srv.URL, srv.Client()
	return s
}

// data is the length of all batches.
func (s *replayServer) data() (n int64) {
	for _, a := range s.segs {
		n += a.seg.DataLength
	}
	return n
}

// proxied fetches all objects.
func (s *replayServer) proxied(b *testing.B) {
	var paths []string
	for i, a := range s.segs {
		for off := int64(0); off < a.seg.Bytes; off += getBytes {
			paths = append(paths, fmt.Sprintf("/get/%d/%d", i, off))
		}
	}
	var at atomic.Int64
	var wg sync.WaitGroup
	for range getsAtOnce {
		wg.Go(func() {
			buf := make([]byte, 256<<10)
			for i := at.Add(1) - 1; i < int64(len(paths)); i = at.Add(1) - 1 {
				s.fetch(b, paths[i], buf)
			}
		})
	}
	wg.Wait()
}

// raw fetches all batches in order.
func (s *replayServer) raw(b *testing.B) {
	if n := s.fetch(b, "/raw", make([]byte, 256<<10)); n != s.data() {
		b.Fatalf("%d bytes of batches, want %d", n, s.data())
	}
}

func (s *replayServer) fetch(b *testing.B, path string, buf []byte) (n int64) {
	resp, err := s.http.Get(s.url + path)
	if err != nil {
		b.Error(err)
		return 0
	}
	defer resp.Body.Close()
	for {
		k, err := resp.Body.Read(buf)
		n += int64(k)
		if err != nil {
			if !errors.Is(err, io.EOF) {
				b.Error(err)
			}
			return n
		}
	}
}

// replayNode is a node with an archived topic of text, of which nothing is left on
// its disk and little fits its cache. It returns the URL of the records, and how
// many bytes their segments have.
func replayNode(b *testing.B, st objstore.Store) (url string, stored int64) {
	src := newTexts(2)
	src.batch(b)
	var recs []broker.NewRecord
	for i := range src.records {
		recs = append(recs, broker.NewRecord{Partition: 0, Value: bytes.Clone(src.records[i].Value)})
	}
	n := archivedNode(b, st, node.Options{Dir: filepath.Join(b.TempDir(), "data")}, recs, replayBytes)
	b.Cleanup(func() {
		if err := n.Close(); err != nil {
			b.Error(err)
		}
	})
	stored, _ = archivedSegments(b, st)
	s, err := api.New(n, api.Options{})
	if err != nil {
		b.Fatal(err)
	}
	srv := httptest.NewServer(s.Handler())
	b.Cleanup(func() {
		srv.Close()
		if err := s.Shutdown(context.Background()); err != nil {
			b.Error(err)
		}
	})
	return srv.URL + "/v1/topics/cold/partitions/0/records", stored
}

// replayAll reads the stream to its end line.
func replayAll(b *testing.B, url string) {
	req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, url, nil)
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Accept", "application/x-ndjson")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReaderSize(resp.Body, 256<<10)
	records := 0
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			b.Fatalf("status %d, the stream breaks off after %d records: %v", resp.StatusCode, records, err)
		}
		if strings.HasPrefix(string(line[:min(len(line), 16)]), `{"end":true`) {
			break
		}
		records++
	}
	if records < replayBytes/recordBytes {
		b.Fatalf("%d records, want %d", records, replayBytes/recordBytes)
	}
}
