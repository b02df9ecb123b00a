package api

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// fuzzRequest makes a request the way a server reads it.
func fuzzRequest(method, path string) (*httptest.ResponseRecorder, *http.Request, bool) {
	u, err := url.ParseRequestURI(path)
	if err != nil || method == "" {
		return nil, nil, false
	}
	r := httptest.NewRequest("POST", "/", strings.NewReader("x"))
	r.Method, r.URL, r.RequestURI = method, u, path
	r.Header.Set("Content-Type", mediaBytes)
	return httptest.NewRecorder(), r, true
}

// instantBroker answers without keeping anything, so that only the HTTP plane
// is measured.
type instantBroker struct {
	Broker
	info TopicInfo
	got  Produced
}

func (b *instantBroker) TopicFor(string) (TopicInfo, error) { return b.info, nil }

func (b *instantBroker) Produce(context.Context, ProduceRequest) (Produced, error) {
	return b.got, nil
}

// perRequest counts allocations of a server per request over a socket; the
// client allocates nothing once it is warm.
func perRequest(t *testing.T, serve func(net.Listener) error, request string) float64 {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { defer close(served); _ = serve(ln) }()
	defer func() { ln.Close(); <-served }()
	nc, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	r := bufio.NewReader(nc)
	out := []byte(request)
	status := make([]byte, 0, 64)
	once := func() {
		if _, err := nc.Write(out); err != nil {
			t.Fatal(err)
		}
		status = status[:0]
		for { // the answers have no body
			line, err := r.ReadSlice('\n')
			if err != nil {
				t.Fatal(err)
			}
			if len(status) == 0 {
				status = append(status, line...)
			}
			if len(line) == 2 {
				break
			}
		}
		if !strings.HasPrefix(string(status), "HTTP/1.1 202") {
			t.Fatalf("%s", status)
		}
	}
	for range 100 {
		once()
	}
	return testing.AllocsPerRun(2000, once)
}

// The single produce allocates no more often than a bare handler that reads the
// same body and answers 202, watched as net/http watches every request.
func TestProduceAllocations(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector allocates by itself: only the run without it counts")
		return
	}
	b := &instantBroker{info: TopicInfo{Name: "orders", Partitions: 3}, got: Produced{Ack: AckAccepted, Placements: []Placement{{Partition: 1, FirstOffset: 123456}}}}
	s, err := New(b, Options{})
	if err != nil {
		t.Fatal(err)
	}
	request := "POST /v1/topics/orders/produce?key=k HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nContent-Length: 1024\r\n\r\n" + strings.Repeat("x", 1024)
	body := make([]byte, 2048)
	bare := perRequest(t, (&http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for {
			if _, err := r.Body.Read(body); err == io.EOF {
				break
			}
		}
		w.WriteHeader(http.StatusAccepted)
	})}).Serve, request)
	ours := perRequest(t, s.Serve, request)
	t.Logf("allocations a request: bare %.1f, produce %.1f", bare, ours)
	if ours > bare+1 {
		t.Errorf("produce allocates %.1f times, bare %.1f", ours, bare)
	}
}
