package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tidemark-mq/tidemark/api"
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

const (
	coldHTTPRounds = 9
	replayBytes    = 192 << 20 // of values in the node's archive
)

// BenchmarkColdHTTP is one reader of archived records over HTTP, the records in a
// real S3 server on this machine, client and server in this process, and nothing of
// the records on the node's disk. Each round does
//
//	proxied  the objects of the records, by range requests of 4 MiB, 8 at once, each
//	         passed on by a bare handler
//	raw      a node's stream of stored batches (GET .../records), in order, every one
//	         verified
//	ndjson   a node's stream of decoded records
//
// and reports raw/proxied and ndjson/proxied by stored bytes a second (T1).
func BenchmarkColdHTTP(b *testing.B) {
	st := s3Store(b)
	records, stored := replayNode(b, st)
	bare := newBareProxy(b, st)
	var proxied, raw, ndjson, rawX, ndjsonX series
	for b.Loop() {
		for round := range rounds(coldHTTPRounds) {
			mb := float64(stored) / 1e6
			p := mb / seconds(func() { bare.all(b) })
			r := mb / seconds(func() { replayRaw(b, records) })
			n := mb / seconds(func() { replayAll(b, records, replayBytes) })
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
	b.ReportMetric(float64(replayBytes)/float64(stored), "zstd-ratio")
	rawX.report(b, "raw/proxied", true)
	ndjsonX.report(b, "ndjson/proxied", true)
}

// bareProxy passes the objects of segments on as they are.
type bareProxy struct {
	objects []objstore.Info
	url     string
	http    *http.Client
}

func newBareProxy(b *testing.B, st objstore.Store) *bareProxy {
	p := &bareProxy{}
	page, err := st.List(b.Context(), "t/", "", 0)
	if err != nil || page.More {
		b.Fatalf("list the segments: more than a page is %v, %v", page.More, err)
	}
	for _, o := range page.Objects {
		if strings.Contains(o.Key, "/s/") {
			p.objects = append(p.objects, o)
		}
	}
	bufs := sync.Pool{New: func() any { return make([]byte, getBytes) }}
	mux := http.NewServeMux()
	mux.HandleFunc("/get/{object}/{offset}", func(w http.ResponseWriter, r *http.Request) {
		i, err1 := strconv.Atoi(r.PathValue("object"))
		off, err2 := strconv.ParseInt(r.PathValue("offset"), 10, 64)
		buf := bufs.Get().([]byte)
		defer bufs.Put(buf) //nolint:staticcheck // a slice's header is nothing beside 4 MiB
		o := p.objects[i]
		n, err := st.GetRange(r.Context(), o.Key, buf[:min(getBytes, o.Size-off)], off)
		if err := errors.Join(err, err1, err2); err != nil {
			b.Error(err)
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(n))
		_, _ = w.Write(buf[:n])
	})
	srv := httptest.NewServer(mux)
	b.Cleanup(srv.Close)
	p.url, p.http = srv.URL, srv.Client()
	return p
}

// all fetches all objects.
func (p *bareProxy) all(b *testing.B) {
	var paths []string
	for i, o := range p.objects {
		for off := int64(0); off < o.Size; off += getBytes {
			paths = append(paths, fmt.Sprintf("/get/%d/%d", i, off))
		}
	}
	var at atomic.Int64
	var wg sync.WaitGroup
	for range getsAtOnce {
		wg.Go(func() {
			buf := make([]byte, 256<<10)
			for i := at.Add(1) - 1; i < int64(len(paths)); i = at.Add(1) - 1 {
				resp, err := p.http.Get(p.url + paths[i])
				if err != nil {
					b.Error(err)
					continue
				}
				drain(b, resp.Body, buf)
				resp.Body.Close()
			}
		})
	}
	wg.Wait()
}

// drain reads a body to its end.
func drain(b *testing.B, body io.Reader, buf []byte) (n int64) {
	for {
		k, err := body.Read(buf)
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
	return serveNode(b, n) + "/v1/topics/cold/partitions/0/records", stored
}

// serveNode serves a node as a process does, and returns its URL.
func serveNode(b *testing.B, n *node.Node) string {
	s, err := api.New(n, api.Options{})
	if err != nil {
		b.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	b.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := errors.Join(s.Shutdown(context.Background()), <-served); err != nil {
			b.Error(err)
		}
	})
	return "http://" + ln.Addr().String()
}

// replayRaw reads the stream of stored batches to its trailer, and returns its
// length.
func replayRaw(b *testing.B, url string) int64 {
	resp := openStream(b, url, "application/vnd.kafka.record-batch")
	defer resp.Body.Close()
	n := drain(b, resp.Body, make([]byte, 256<<10))
	if end := resp.Trailer.Get("Tidemark-Resume-Offset"); resp.StatusCode != http.StatusOK || end == "" || n == 0 {
		b.Fatalf("status %d, %d bytes, the stream ends at %q", resp.StatusCode, n, end)
	}
	return n
}

func openStream(b *testing.B, url, accept string) *http.Response {
	req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, url, nil)
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	return resp
}

// replayAll reads a stream of lines, of values of so many bytes, to its end.
func replayAll(b *testing.B, url string, size int) {
	resp := openStream(b, url, "application/x-ndjson")
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
	if records < size/recordBytes {
		b.Fatalf("%d records, want %d", records, size/recordBytes)
	}
}
