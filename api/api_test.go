package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is a running server over a fake broker, and a client that keeps no
// connection between tests.
type site struct {
	t    testing.TB
	f    *fakeBroker
	s    *Server
	addr string
	c    *http.Client
	log  *syncBuffer
}

// syncBuffer is a log that handlers write while tests read.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func start(tb testing.TB, change ...func(*Options)) *site {
	tb.Helper()
	f := newFakeBroker().topic("orders", 3)
	log := &syncBuffer{}
	reg := prometheus.NewRegistry()
	opts := Options{
		Registerer: reg, Logger: slog.New(slog.NewTextHandler(log, nil)),
		Metrics: promhttp.HandlerFor(reg, promhttp.HandlerOpts{}),
	}
	for _, c := range change {
		c(&opts)
	}
	s, err := New(f, opts)
	if err != nil {
		tb.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	tr := &http.Transport{DisableCompression: true}
	tb.Cleanup(func() {
		tr.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			tb.Errorf("shutdown: %v", err)
		}
		if err := <-served; err != nil {
			tb.Errorf("serve: %v", err)
		}
	})
	return &site{t: tb, f: f, s: s, addr: ln.Addr().String(), c: &http.Client{Transport: tr}, log: log}
}

func limits(change func(*Limits)) func(*Options) {
	return func(o *Options) { change(&o.Limits) }
}

// answer is a response with its body read.
type answer struct {
	*http.Response
	body string
}

// code is the error code of the body.
func (a answer) code() string {
	var e struct{ Error, Code, Retry string }
	if json.Unmarshal([]byte(a.body), &e) != nil || e.Error == "" || e.Retry == "" {
		return "no JSON error: " + a.body
	}
	return e.Code
}

// do sends a request; headers are "Name: value".
func (s *site) do(method, path, body string, headers ...string) answer {
	s.t.Helper()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	req, err := http.NewRequest(method, "http://"+s.addr+path, in)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Add(name, value)
	}
	return s.send(req)
}

func (s *site) send(req *http.Request) answer {
	s.t.Helper()
	res, err := s.c.Do(req)
	if err != nil {
		s.t.Fatalf("%s %s: %v", req.Method, req.URL, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatalf("%s %s: read the answer: %v", req.Method, req.URL, err)
	}
	return answer{res, string(b)}
}

// post sends JSON or bytes as a program does.
func (s *site) post(path, body string, headers ...string) answer {
	s.t.Helper()
	return s.do("POST", path, body, append([]string{"X-Tidemark-Client: test"}, headers...)...)
}

// want fails unless the answer has the status and, for errors, the code.
func (s *site) want(a answer, status int, code string) answer {
	s.t.Helper()
	if a.StatusCode != status {
		s.t.Fatalf("%s %s: status %d, want %d: %s", a.Request.Method, a.Request.URL, a.StatusCode, status, a.body)
	}
	if code != "" && a.Request.Method != "HEAD" && a.code() != code {
		s.t.Fatalf("%s %s: code %q, want %q", a.Request.Method, a.Request.URL, a.code(), code)
	}
	return a
}

// raw sends bytes over a socket of its own and reads answers with it.
func (s *site) raw(text string) (net.Conn, *bufio.Reader) {
	s.t.Helper()
	nc, err := net.Dial("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { nc.Close() })
	if err := nc.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		s.t.Fatal(err)
	}
	if _, err := io.WriteString(nc, text); err != nil {
		s.t.Fatal(err)
	}
	return nc, bufio.NewReader(nc)
}

// readAnswer reads one answer from a raw socket.
func (s *site) readAnswer(r *bufio.Reader, method string) answer {
	s.t.Helper()
	req, _ := http.NewRequest(method, "http://"+s.addr, nil)
	res, err := http.ReadResponse(r, req)
	if err != nil {
		s.t.Fatalf("read an answer: %v", err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatalf("read the body of an answer: %v", err)
	}
	return answer{res, string(b)}
}

// eventually polls until ok.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	end := time.After(10 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-end:
			tb.Fatalf("never happened: %s", what)
		case <-tick.C:
		}
	}
}

// metric returns the value of a series as /metrics shows it, "" without one.
func (s *site) metric(series string) string {
	s.t.Helper()
	for _, line := range strings.Split(s.do("GET", "/metrics", "").body, "\n") {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return value
		}
	}
	return ""
}

// The life of a record over HTTP: create, produce, consume, ack, replay, delete.
func TestLifeOfARecord(t *testing.T) {
	s := start(t)
	s.want(s.post("/v1/topics", `{"name":"life","partitions":1}`), 201, "")
	a := s.want(s.post("/v1/topics/life/produce?key=k", `{"n":1}`), 202, "")
	if a.body != "" || a.Header.Get("Tidemark-Partition") != "0" || a.Header.Get("Tidemark-Offset") != "0" {
		t.Fatalf("accepted: %v %q", a.Header, a.body)
	}
	a = s.want(s.post("/v1/topics/life/produce?ack=committed", "text"), 200, "")
	if want := `{"topic":"life","partition":0,"offset":1,"timestamp_ms":1700000000001,"generation":1}` + "\n"; a.body != want {
		t.Fatalf("committed: %s", a.body)
	}
	a = s.want(s.do("GET", "/v1/topics/life/consume", ""), 200, "")
	var m struct {
		Key           string
		Payload       map[string]int
		ReceiptHandle string `json:"receipt_handle"`
		Count         int    `json:"delivery_count"`
	}
	if err := json.Unmarshal([]byte(a.body), &m); err != nil || m.Key != "k" || m.Payload["n"] != 1 || m.Count != 1 {
		t.Fatalf("consumed %s: %v", a.body, err)
	}
	s.want(s.post("/v1/topics/life/ack?receipt_handle="+m.ReceiptHandle, ""), 204, "")
	s.want(s.post("/v1/topics/life/ack?receipt_handle="+m.ReceiptHandle, ""), 410, "gone")
	s.want(s.post("/v1/topics/life/ack?receipt_handle=nonsense", ""), 400, "invalid_argument")
	s.want(s.do("GET", "/v1/topics/life/consume", ""), 200, "")
	s.want(s.do("GET", "/v1/topics/life/consume", ""), 204, "")
	a = s.want(s.do("GET", "/v1/topics/life/partitions/0/records", ""), 200, "")
	if want := `{"records":[{"offset":0,"timestamp_ms":1700000000000,"key":"k","payload":{"n":1}},{"offset":1,"timestamp_ms":1700000000001,"payload":"text"}],"resume_offset":2,"high_watermark":2,"oldest_offset":0}` + "\n"; a.body != want {
		t.Fatalf("page: %s", a.body)
	}
	a = s.want(s.do("GET", "/v1/topics/life/partitions/0/records", "", "Accept: application/x-ndjson"), 200, "")
	if want := `{"offset":0,"timestamp_ms":1700000000000,"key":"k","payload":{"n":1}}
{"offset":1,"timestamp_ms":1700000000001,"payload":"text"}
{"end":true,"resume_offset":2}
`; a.body != want {
		t.Fatalf("stream: %s", a.body)
	}
	s.want(s.do("DELETE", "/v1/topics/life", ""), 409, "conflict")
	s.want(s.do("DELETE", "/v1/topics/life?force", ""), 204, "")
	s.want(s.do("GET", "/v1/topics/life", ""), 404, "not_found")
}
