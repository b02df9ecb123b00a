package api

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
)

// B21: a client that asks to continue and then sends nothing is answered
// within the body's time, and its connection ends.
func TestB21ExpectAndSilence(t *testing.T) {
	s := start(t, limits(func(l *Limits) { l.HeaderTime, l.BodyStep = 200*time.Millisecond, 100*time.Millisecond }))
	before := runtime.NumGoroutine()
	var readers []net.Conn
	for range 200 {
		nc, _ := s.raw("POST /v1/topics/orders/produce HTTP/1.1\r\nHost: x\r\nX-Tidemark-Client: t\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n")
		readers = append(readers, nc)
	}
	for _, nc := range readers {
		all, err := io.ReadAll(nc)
		if err != nil || !strings.HasPrefix(string(all), "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 408 ") {
			t.Fatalf("%q %v", all, err)
		}
		nc.Close()
	}
	eventually(t, "the goroutines end", func() bool { return runtime.NumGoroutine() <= before+2 })
	if s.f.produces != 0 {
		t.Error("something was stored")
	}
}

// A body may be slow as long as every step of it arrives in time: a drip below
// that rate is cut off, whole steps are not.
func TestSlowBodySteps(t *testing.T) {
	s := start(t, limits(func(l *Limits) { l.BodyStep = time.Second }))
	nc, r := s.raw("POST /v1/topics/orders/produce HTTP/1.1\r\nHost: x\r\nX-Tidemark-Client: t\r\nContent-Length: 1000\r\n\r\n")
	stop := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				if _, err := nc.Write([]byte("x")); err != nil {
					return
				}
			}
		}
	}()
	s.want(s.readAnswer(r, "POST"), 408, "canceled")
	close(stop)
	<-stopped
	nc, r = s.raw(fmt.Sprintf("POST /v1/topics/orders/produce HTTP/1.1\r\nHost: x\r\nX-Tidemark-Client: t\r\nContent-Length: %d\r\n\r\n", 5*bodyStep))
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for range 5 { // 1.5 s in all: more than one step's time
		<-tick.C
		if _, err := nc.Write(make([]byte, bodyStep)); err != nil {
			t.Fatal(err)
		}
	}
	s.want(s.readAnswer(r, "POST"), 202, "")
}

// A body that breaks off is not stored.
func TestBrokenBody(t *testing.T) {
	s := start(t)
	nc, r := s.raw("POST /v1/topics/orders/produce HTTP/1.1\r\nHost: x\r\nX-Tidemark-Client: t\r\nContent-Length: 1000\r\n\r\nabc")
	if err := nc.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	s.want(s.readAnswer(r, "POST"), 408, "canceled")
	_, r = s.raw("POST /v1/topics/orders/produce HTTP/1.1\r\nHost: x\r\nX-Tidemark-Client: t\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
	s.want(s.readAnswer(r, "POST"), 400, "invalid_argument")
	_, r = s.raw("POST /v1/topics/orders/produce?partition=0 HTTP/1.1\r\nHost: x\r\nX-Tidemark-Client: t\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")
	s.want(s.readAnswer(r, "POST"), 202, "")
	if v := s.values(); len(v) != 1 || v[0] != "abc" {
		t.Errorf("stored %q", v)
	}
}

// B22: slow senders of headers are cut off, and others do not notice them.
func TestB22SlowHeaders(t *testing.T) {
	s := start(t, limits(func(l *Limits) { l.HeaderTime = 300 * time.Millisecond }))
	var slow []net.Conn
	for range 300 {
		nc, _ := s.raw("POST /v1/topics/orders/pro")
		slow = append(slow, nc)
	}
	begun := time.Now()
	for range 50 {
		s.want(s.post("/v1/topics/orders/produce", "x"), 202, "")
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("50 produces took %v beside slow clients", took)
	}
	for _, nc := range slow {
		if _, err := io.ReadAll(nc); err != nil {
			t.Fatalf("a slow client was not closed: %v", err)
		}
		nc.Close()
	}
}

// B24: a client that is still sending when it is refused can read the answer:
// declared or chunked, from Go and from curl; nothing is stored, and the next
// request works.
func TestB24OversizeIsReadable(t *testing.T) {
	s := start(t)
	const over = 1<<20 + 10<<20
	for name, body := range map[string]io.Reader{
		"declared": bytes.NewReader(make([]byte, over)),
		"chunked":  io.LimitReader(zeros{}, over),
	} {
		req, _ := http.NewRequest("POST", "http://"+s.addr+"/v1/topics/orders/produce", body)
		req.Header.Set("X-Tidemark-Client", "t")
		if a := s.want(s.send(req), 413, "too_large"); !strings.Contains(a.body, `"limit":1048576`) {
			t.Errorf("%s: %s", name, a.body)
		}
	}
	// A client that reads only after it has sent everything.
	nc, r := s.raw(fmt.Sprintf("POST /v1/topics/orders/produce HTTP/1.1\r\nHost: x\r\nX-Tidemark-Client: t\r\nContent-Length: %d\r\n\r\n", over))
	if _, err := nc.Write(make([]byte, over)); err != nil {
		t.Fatalf("sending was cut off: %v", err)
	}
	s.want(s.readAnswer(r, "POST"), 413, "too_large")
	if s.f.produces != 0 {
		t.Error("something was stored")
	}
	s.want(s.post("/v1/topics/orders/produce", "x"), 202, "")
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Log("curl is not installed here; the Go clients above stand for it")
		return
	}
	cmd := exec.Command(curl, "-sS", "-o", "-", "-w", "%{http_code}", "-H", "X-Tidemark-Client: t", "-H", "Expect:", "--data-binary", "@-", "http://"+s.addr+"/v1/topics/orders/produce")
	cmd.Stdin = io.LimitReader(zeros{}, over)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.HasSuffix(string(out), "413") {
		t.Errorf("curl: %v %s", err, out)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// B26: giant headers and URLs get a status, as JSON, also for a client that
// reads last; the server lives.
func TestB26GiantHeaders(t *testing.T) {
	s := start(t)
	for _, text := range []string{
		"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Big: " + strings.Repeat("a", 2<<20) + "\r\n\r\n",
		"POST /v1/topics/orders/produce?key=" + strings.Repeat("k", 64<<10) + " HTTP/1.1\r\nHost: x\r\nX-Tidemark-Client: t\r\n\r\n",
	} {
		_, r := s.raw(text)
		s.want(s.readAnswer(r, "GET"), 431, "header_too_large")
	}
	s.want(s.post("/v1/topics/orders/produce", "x"), 202, "")
}

// What net/http refuses by itself is JSON as well.
func TestMalformedHTTPIsAnsweredInJSON(t *testing.T) {
	s := start(t)
	for _, c := range []struct {
		text   string
		status int
		code   string
	}{
		{"NONSENSE\r\n\r\n", 400, "invalid_argument"},
		{"GET /healthz HTTP/1.1\r\n\r\n", 400, "invalid_argument"},
		{"GET /healthz HTTP/1.1\r\nHost: x\r\nBad Header: 1\r\n\r\n", 400, "invalid_argument"},
		{"GET /healthz HTTP/9.9\r\nHost: x\r\n\r\n", 505, "invalid_argument"},
		{"GET /healthz%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_argument"},
		{"POST /v1/topics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "unsupported_type"},
		{"POST /v1/topics HTTP/1.1\r\nHost: x\r\nExpect: miracles\r\nContent-Length: 1\r\n\r\nx", 417, "invalid_argument"},
		{"POST /v1/topics HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "invalid_argument"},
	} {
		_, r := s.raw(c.text)
		a := s.want(s.readAnswer(r, "GET"), c.status, c.code)
		if a.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%q: %v", c.text, a.Header)
		}
	}
}

// B28: where a body is taken byte for byte a compressed one is refused by its
// encoding, before a byte of it is read, so nothing can expand.
func TestB28NothingIsInflated(t *testing.T) {
	s := start(t)
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := io.Copy(w, io.LimitReader(zeros{}, 64<<20)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 10 {
		s.want(s.post("/v1/topics/orders/produce", packed.String(), "Content-Encoding: gzip"), 415, "unsupported_type")
		s.want(s.do("POST", "/v1/topics/orders/produce/batch", packed.String(), "Content-Encoding: br", "Content-Type: application/json"), 415, "unsupported_type")
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 16<<20 {
		t.Errorf("20 refusals of 64 KiB allocated %d bytes", grown)
	}
}

// Pipelined requests are answered in order.
func TestPipelining(t *testing.T) {
	s := start(t)
	var text strings.Builder
	for i := range 20 {
		fmt.Fprintf(&text, "POST /v1/topics/orders/produce?partition=0 HTTP/1.1\r\nHost: x\r\nX-Tidemark-Client: t\r\nContent-Length: 2\r\n\r\n%02d", i)
	}
	_, r := s.raw(text.String())
	for i := range 20 {
		if a := s.want(s.readAnswer(r, "POST"), 202, ""); a.Header.Get("Tidemark-Offset") != fmt.Sprint(i) {
			t.Fatalf("answer %d is for offset %s", i, a.Header.Get("Tidemark-Offset"))
		}
	}
}

// After a produce, whose connection is not watched, a long header that arrives
// in two pieces is read like any other, wherever they are parted.
func TestLongHeaderAfterProduce(t *testing.T) {
	s := start(t)
	nc, r := s.raw("POST /v1/topics/orders/produce HTTP/1.1\r\nHost: x\r\nX-Tidemark-Client: t\r\nContent-Length: 1\r\n\r\nx")
	s.want(s.readAnswer(r, "POST"), 202, "")
	head := "GET /v1/topics HTTP/1.1\r\nHost: x\r\nX-Long: " + strings.Repeat("y", 6000) + "\r\n\r\n"
	pause := time.NewTicker(30 * time.Millisecond)
	defer pause.Stop()
	const buffer = 4096 // net/http's
	for at := strings.Index(head, "X-Long") + buffer - 2; at < strings.Index(head, "X-Long")+buffer+2; at++ {
		for _, part := range []string{head[:at], head[at:]} {
			if _, err := nc.Write([]byte(part)); err != nil {
				t.Fatal(err)
			}
			<-pause.C
		}
		s.want(s.readAnswer(r, "GET"), 200, "")
	}
}

// A record whose producer leaves before the answer is stored, and nobody is
// left over: neither request nor connection.
func TestProducerLeaves(t *testing.T) {
	s := start(t)
	for range 20 {
		nc, _ := s.raw("POST /v1/topics/orders/produce HTTP/1.1\r\nHost: x\r\nX-Tidemark-Client: t\r\nContent-Length: 1\r\n\r\nx")
		if err := nc.Close(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "every record is stored", func() bool { return s.f.count("orders") == 20 })
	eventually(t, "the requests end", func() bool { return s.s.active.Load() == 0 })
	eventually(t, "the connections end", func() bool { return s.metric("tidemark_http_connections") == "1" }) // the one that asks
}

// B21: a body where none belongs is held to the same deadlines, whatever the
// route and whatever the answer.
func TestB21SilentBodiesEverywhere(t *testing.T) {
	s := start(t, limits(func(l *Limits) {
		l.HeaderTime, l.BodyStep, l.LingerTime = 200*time.Millisecond, 50*time.Millisecond, 50*time.Millisecond
	}))
	for _, head := range []string{
		"GET /healthz", "GET /v1/topics", "DELETE /v1/topics/orders", "GET /v1/topics/orders/consume?wait=10s", "OPTIONS /v1/topics", "GET /nowhere", "PATCH /v1/topics/orders",
		"POST /v1/topics/orders/ack", "POST /v1/topics/orders/consume", "POST /v1/topics", "GET /v1/topics/orders/partitions/0/records?follow",
	} {
		for _, length := range []string{"Content-Length: 1000", "Content-Length: 100000000", "Transfer-Encoding: chunked"} {
			nc, r := s.raw(head + " HTTP/1.1\r\nHost: x\r\nX-Tidemark-Client: t\r\nAccept: application/x-ndjson\r\n" + length + "\r\n\r\n")
			if a := s.readAnswer(r, "GET"); a.StatusCode < 400 && a.StatusCode != 204 {
				t.Errorf("%s, %s: %d", head, length, a.StatusCode)
			}
			if _, err := r.ReadByte(); err != io.EOF {
				t.Errorf("%s, %s: the connection was not closed: %v", head, length, err)
			}
			nc.Close()
		}
	}
	s.want(s.do("GET", "/v1/topics", "{}"), 200, "")
	s.want(s.do("GET", "/v1/topics", "x"), 400, "invalid_argument")
}
