package api

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/testkit/racing"
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
	info    TopicInfo
	got     Produced
	leased  []Message
	settled []error
}

func (b *instantBroker) TopicFor(string) (TopicInfo, error) { return b.info, nil }

func (b *instantBroker) Produce(context.Context, ProduceRequest) (Produced, error) {
	return b.got, nil
}

func (b *instantBroker) Consume(context.Context, ConsumeRequest) ([]Message, error) {
	return b.leased, nil
}

func (b *instantBroker) Settle(context.Context, SettleRequest) ([]error, error) {
	return b.settled, nil
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
	const length = "Content-Length: "
	once := func() {
		if _, err := nc.Write(out); err != nil {
			t.Fatal(err)
		}
		body := 0
		for first := true; ; first = false {
			line, err := r.ReadSlice('\n')
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case first && !bytes.HasPrefix(line, []byte("HTTP/1.1 2")):
				t.Fatalf("%s", line)
			case bytes.HasPrefix(line, []byte(length)):
				for _, c := range bytes.TrimSpace(line[len(length):]) {
					body = 10*body + int(c-'0')
				}
			}
			if len(line) == 2 {
				break
			}
		}
		if _, err := r.Discard(body); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		once()
	}
	return testing.AllocsPerRun(1000, once)
}

// Each request of the hot paths allocates hardly more often than a bare handler that
// reads the same body and answers nothing, watched as net/http watches every
// request, however many records it has; and much less often, if it is a common one.
func TestAllocations(t *testing.T) {
	if racing.Enabled {
		t.Log("the race detector allocates by itself: only the run without it counts")
		return
	}
	lease := Message{Record: broker.Record{Offset: 7, Timestamp: 1764460800000, Key: []byte("k"), Value: []byte(strings.Repeat("x", 1024))}, Partition: 1, Attempt: 1, Handle: "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5"}
	b := &instantBroker{
		info: TopicInfo{Name: "orders", Partitions: 3}, got: Produced{Ack: AckAccepted, Placements: []Placement{{Partition: 1, FirstOffset: 123456, Count: 1000}}},
		leased: []Message{lease}, settled: make([]error, 1),
	}
	s, err := New(b, Options{})
	if err != nil {
		t.Fatal(err)
	}
	post := func(path, header, body string) string {
		return "POST /v1/topics/orders/" + path + " HTTP/1.1\r\nHost: x\r\n" + header + "\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
	}
	frame := "\xff\xff\xff\xff\x00\x00\x01\x00" + strings.Repeat("x", 256)
	line := `{"key":"k","text":"` + strings.Repeat("x", 230) + `"}` + "\n"
	scratch := make([]byte, 64<<10)
	bare := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for {
			if _, err := r.Body.Read(scratch); err == io.EOF {
				break
			}
		}
		w.WriteHeader(http.StatusAccepted)
	})}
	for _, c := range []struct {
		what, request string
		most          float64 // beside the bare one
	}{
		{"single produce", post("produce?key=k", "Content-Type: application/octet-stream", strings.Repeat("x", 1024)), -14},
		{"batch of 1,000 frames", post("produce/batch", "Content-Type: application/vnd.tidemark.frames", strings.Repeat(frame, 1000)), 7},
		{"batch of 1,000 lines", post("produce/batch?key_field=/key", "Content-Type: application/x-ndjson", strings.Repeat(line, 1000)), 9},
		{"consume, bare", post("consume?wait=1s", "X-Tidemark-Client: t\r\nAccept: application/octet-stream", ""), -9},
		{"consume, JSON", post("consume?wait=1s", "X-Tidemark-Client: t\r\nAccept: application/json", ""), -9},
		{"ack", post("ack?receipt_handle="+lease.Handle, "X-Tidemark-Client: t", ""), -9},
	} {
		least, ours := perRequest(t, bare.Serve, c.request), perRequest(t, s.Serve, c.request)
		t.Logf("%s: allocations a request: bare %.1f, ours %.1f", c.what, least, ours)
		if ours > least+c.most {
			t.Errorf("%s allocates %.1f times, bare %.1f, the most is %+.0f", c.what, ours, least, c.most)
		}
	}
}
