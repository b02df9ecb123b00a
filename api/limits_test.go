package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Zero fields take their defaults, and Validate reports everything at once.
func TestLimitsValidate(t *testing.T) {
	if (Limits{}).withDefaults() != DefaultLimits() {
		t.Error("a zero field kept its zero")
	}
	err := Limits{HeaderBytes: 4096, BatchRecords: -1, BodyStep: 1}.Validate()
	for _, name := range []string{"HeaderBytes", "BatchRecords", "BodyStep"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not reported: %v", name, err)
		}
	}
	if _, err := New(newFakeBroker(), Options{Limits: Limits{Waiting: -1}}); err == nil {
		t.Error("New took a limit out of bounds")
	}
}

// Headers: at the bound they are read, one byte above they are 431.
func TestHeaderBound(t *testing.T) {
	s := start(t)
	for _, c := range []struct{ size, status int }{{64<<10 - 1, 200}, {64 << 10, 200}, {64<<10 + 1, 431}} {
		head := "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Fill: "
		_, r := s.raw(head + strings.Repeat("f", c.size-len(head)-4) + "\r\n\r\n")
		s.want(s.readAnswer(r, "GET"), c.status, "")
	}
}

// Records: the node's bound, or the topic's; below and at it they are stored,
// above they are 413, declared or not.
func TestRecordBound(t *testing.T) {
	s := start(t)
	topicMax := int64(10)
	if _, err := s.f.CreateTopic(context.Background(), TopicSpec{Name: "small", MaxRecordBytes: &topicMax}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		topic  string
		size   int
		status int
	}{{"orders", 1<<20 - 1, 202}, {"orders", 1 << 20, 202}, {"orders", 1<<20 + 1, 413}, {"small", 9, 202}, {"small", 10, 202}, {"small", 11, 413}} {
		value := strings.Repeat("v", c.size)
		s.want(s.post("/v1/topics/"+c.topic+"/produce", value), c.status, "")
		req, _ := http.NewRequest("POST", "http://"+s.addr+"/v1/topics/"+c.topic+"/produce", io.LimitReader(strings.NewReader(value), 1<<30))
		req.Header.Set("X-Tidemark-Client", "t")
		s.want(s.send(req), c.status, "")
		a := s.want(s.do("POST", "/v1/topics/"+c.topic+"/produce/batch", frame("-", "")+frame("-", value), "Content-Type: "+mediaFrames), c.status, "")
		if c.status == 413 && !strings.Contains(a.body, `"error":"message 1: `) {
			t.Errorf("which message: %s", a.body)
		}
	}
}

// Batches: bounds on records, bytes, keys and headers, each below, at, above.
func TestBatchBounds(t *testing.T) {
	s := start(t, limits(func(l *Limits) { l.BatchRecords = 5; l.BatchBytes = 200; l.KeyBytes = 8; l.RecordHeaders = 2 }))
	header := `{"name":"a","value":"b"}`
	for n, status := range map[int]int{4: 202, 5: 202, 6: 413} {
		s.want(s.ndjson("", strings.Repeat("1\n", n)), status, "")
		s.want(s.frames(strings.Repeat(frame("-", "x"), n)), status, "")
		s.want(s.jsonBatch(`{"messages":[`+strings.Repeat(`{"payload":1},`, n-1)+`{"payload":1}]}`), status, "")
	}
	for size, status := range map[int]int{199: 202, 200: 202, 201: 413} {
		s.want(s.ndjson("", `"`+strings.Repeat("x", size-2)+`"`), status, "")
	}
	for size, status := range map[int]int{7: 202, 8: 202, 9: 413} {
		key := strings.Repeat("k", size)
		s.want(s.frames(frame(key, "x")), status, "")
		s.want(s.ndjson("key_field=", `"`+key+`"`), status, "")
		s.want(s.jsonBatch(`{"messages":[{"payload":1,"key":"`+key+`"}]}`), status, "")
	}
	for n, status := range map[int]int{1: 202, 2: 202, 3: 400} {
		s.want(s.jsonBatch(`{"messages":[{"payload":1,"headers":[`+strings.Repeat(header+",", n-1)+header+`]}]}`), status, "")
		var headers []string
		for i := range n {
			headers = append(headers, fmt.Sprintf("Tidemark-Header-%d: x", i))
		}
		s.want(s.post("/v1/topics/orders/produce", "x", headers...), status, "")
	}
	if total := s.f.count("orders"); total == 0 {
		t.Error("nothing was stored")
	}
}

// The first element over the bound ends the work: what follows is not looked at.
func TestBatchStopsAtTheBound(t *testing.T) {
	s := start(t)
	s.want(s.jsonBatch(`{"messages":[`+strings.Repeat(`{"payload":1},`, 1000)+"this is no JSON"), 413, "too_large")
	s.want(s.jsonBatch(`{"messages":[`+strings.Repeat(`{"payload":1},`, 999)+"this is no JSON"), 400, "invalid_argument")
}

// Consumes and acks: 1 to 100 of a request.
func TestConsumeAndAckBounds(t *testing.T) {
	s := start(t)
	for n, status := range map[string]int{"1": 204, "99": 204, "100": 204, "101": 400, "0": 400} {
		s.want(s.post("/v1/topics/orders/consume?max="+n, ""), status, "")
	}
	for n, status := range map[int]int{99: 200, 100: 200, 101: 413} {
		s.want(s.post("/v1/topics/orders/ack", `{"receipt_handles":[`+strings.Repeat(`"h",`, n-1)+`"h"]}`), status, "")
	}
	for size, status := range map[int]int{64<<10 - 1: 400, 64 << 10: 400, 64<<10 + 1: 413} {
		s.want(s.post("/v1/topics/orders/ack", strings.Repeat("x", size)), status, "")
	}
	for wait, status := range map[string]int{"29999ms": 202, "30s": 202, "30001ms": 400} {
		s.want(s.post("/v1/topics/orders/produce?wait="+wait, "x"), status, "")
	}
}

// Waiting consumes are counted per identity: one more than the bound is 429,
// another identity is not touched, and a wait that ends makes room.
func TestWaitingBound(t *testing.T) {
	s := start(t, limits(func(l *Limits) { l.Waiting = 2 }), func(o *Options) {
		o.Authenticate = func(user, _ string) (string, bool) { return user, true }
	})
	as := func(user, query string) answer {
		req, _ := http.NewRequest("GET", "http://"+s.addr+"/v1/topics/orders/consume?"+query, nil)
		req.SetBasicAuth(user, "x")
		return s.send(req)
	}
	done := make(chan answer, 2)
	for range 2 {
		go func() { done <- as("ann", "wait=10s") }()
	}
	eventually(t, "two consumes wait", func() bool { return s.s.active.Load() == 2 })
	if a := s.want(as("ann", "wait=10s"), 429, "too_many"); a.Header.Get("Retry-After") != "1" {
		t.Errorf("headers %v", a.Header)
	}
	s.want(as("bob", "wait=1ms"), 204, "")
	s.f.put("orders", "1", "2")
	for range 2 {
		s.want(<-done, 200, "")
	}
	s.want(as("ann", "wait=1ms"), 204, "")
	s.s.waiting.mu.Lock()
	defer s.s.waiting.mu.Unlock()
	if n := len(s.s.waiting.mu.by); n != 0 {
		t.Errorf("%d identities are still counted", n)
	}
}

// A wait counts one, its answer the records it leases.
func TestWaitingCountsLeases(t *testing.T) {
	w := newWaiting(10)
	if err := w.enter("a"); err != nil {
		t.Fatal(err)
	}
	w.add("a", 9)
	if err := w.enter("a"); err == nil {
		t.Error("ten leased records are the bound")
	}
	w.leave("a", 10)
	if err := w.enter("a"); err != nil {
		t.Error(err)
	}
}

// Large bodies in flight share a budget: at it they pass, above it they are
// 503, small ones always pass, and an ended request gives back its part.
func TestLargeBodyBudget(t *testing.T) {
	const mib = 1 << 20
	s := start(t, limits(func(l *Limits) { l.LargeBodyBytes = 4 * mib }))
	entered, leave := make(chan struct{}, 8), make(chan struct{})
	s.f.produceHook = func(context.Context, ProduceRequest) { entered <- struct{}{}; <-leave }
	big := strings.Repeat(frame("-", strings.Repeat("x", mib-8)), 3) // 3 MiB: its buffer is 3 MiB and one byte
	send := func(body string) chan answer {
		done := make(chan answer, 1)
		go func() { done <- s.frames(body) }()
		return done
	}
	first := send(big)
	<-entered
	a := s.want(s.frames(big), 503, "overloaded")
	if a.Header.Get("Retry-After") != "1" {
		t.Errorf("headers %v", a.Header)
	}
	small := send(frame("-", strings.Repeat("x", mib-16)))
	<-entered
	close(leave)
	s.want(<-first, 202, "")
	s.want(<-small, 202, "")
	eventually(t, "nothing is counted any more", func() bool { return s.s.largeBodies.Load() == 0 })
	// One byte less than the budget: a buffer has one more than its body, to see the end.
	four := strings.Repeat(frame("-", strings.Repeat("x", mib-8)), 3) + frame("-", strings.Repeat("x", mib-9))
	s.want(s.frames(four), 202, "")
	s.want(s.frames(four+frame("-", "")), 503, "overloaded")
	eventually(t, "nothing is counted any more", func() bool { return s.s.largeBodies.Load() == 0 })
}

// Buffers follow what arrives: a declared length alone takes nothing.
func TestDeclaredLengthTakesNothing(t *testing.T) {
	s := start(t)
	for range 50 {
		s.raw("POST /v1/topics/orders/produce/batch HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\nContent-Length: 16777216\r\n\r\n1\n")
	}
	eventually(t, "all of them are being read", func() bool { return s.s.active.Load() == 50 })
	if n := s.s.largeBodies.Load(); n != 0 {
		t.Errorf("50 declared lengths hold %d bytes", n)
	}
}

// Connections: at the bound they are served, beyond it they are answered 503
// and closed, and a closed one makes room.
func TestConnectionBound(t *testing.T) {
	s := start(t, limits(func(l *Limits) { l.Connections = 3 }))
	ask := "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
	var open []net.Conn
	for range 3 {
		nc, r := s.raw(ask)
		s.want(s.readAnswer(r, "GET"), 200, "")
		open = append(open, nc)
	}
	for range 10 {
		nc, r := s.raw(ask)
		a := s.want(s.readAnswer(r, "GET"), 503, "overloaded")
		if a.Header.Get("Retry-After") != "1" || !a.Close {
			t.Fatalf("headers %v", a.Header)
		}
		if _, err := r.ReadByte(); err != io.EOF {
			t.Fatalf("the connection was not closed: %v", err)
		}
		nc.Close()
	}
	open[0].Close()
	eventually(t, "a place is free", func() bool {
		nc, err := net.DialTimeout("tcp", s.addr, time.Second)
		if err != nil {
			return false
		}
		defer nc.Close()
		if _, err := io.WriteString(nc, ask); err != nil {
			return false
		}
		line := make([]byte, 12)
		_, err = io.ReadFull(nc, line)
		return err == nil && string(line) == "HTTP/1.1 200"
	})
	eventually(t, "every refusal is counted", func() bool {
		return s.metricRaw(open[1], "tidemark_http_connections_refused_total") >= "10"
	})
}

// metricRaw reads a metric over a connection that is open already.
func (s *site) metricRaw(nc net.Conn, series string) string {
	s.t.Helper()
	c := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return keepOpen{nc}, nil }, DisableKeepAlives: false}}
	defer c.CloseIdleConnections()
	res, err := c.Get("http://" + s.addr + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "\n"+series+" ")
	value, _, _ := strings.Cut(rest, "\n")
	return value
}

// keepOpen survives the client that borrows it.
type keepOpen struct{ net.Conn }

func (keepOpen) Close() error { return nil }

// Large answers share the budget of large bodies: beyond it leases go back and
// the answer is 503, and a page ends early.
func TestLargeAnswersShareTheBudget(t *testing.T) {
	s := start(t, limits(func(l *Limits) { l.LargeBodyBytes = 2 << 20 }))
	for range 3 {
		s.f.put("orders", strings.Repeat("x", 1<<20-1))
	}
	s.want(s.post("/v1/topics/orders/consume?max=3", ""), 503, "overloaded")
	if n := s.f.releasedCount(); n != 3 {
		t.Errorf("%d leases went back", n)
	}
	if a := s.want(s.post("/v1/topics/orders/consume?max=2", ""), 200, ""); strings.Contains(a.body, `"delivery_count":2`) {
		t.Error("the refused delivery was counted")
	}
	a := s.want(s.do("GET", "/v1/topics/orders/partitions/0/records?max_bytes=16777216", ""), 200, "")
	if !strings.Contains(a.body, `"resume_offset":2,`) {
		t.Errorf("page: %s", a.body[len(a.body)-80:])
	}
	// The client has the answer before the handler has returned.
	eventually(t, "nothing is counted any more", func() bool { return s.s.largeBodies.Load() == 0 })
}

// Where a bound is on a parameter, its value passes and one more does not.
func TestParameterBounds(t *testing.T) {
	s := start(t)
	for path, status := range map[string]int{
		"/v1/topics/orders/partitions/0/records?max=999": 200, "/v1/topics/orders/partitions/0/records?max=1000": 200, "/v1/topics/orders/partitions/0/records?max=1001": 400,
		"/v1/topics/orders/partitions/0/records?max_bytes=16777215": 200, "/v1/topics/orders/partitions/0/records?max_bytes=16777216": 200, "/v1/topics/orders/partitions/0/records?max_bytes=16777217": 400,
		"/v1/topics?limit=999": 200, "/v1/topics?limit=1000": 200, "/v1/topics?limit=1001": 400,
	} {
		s.want(s.do("GET", path, ""), status, "")
	}
	s.f.put("orders", "x")
	h := handlesOf(s.want(s.do("GET", "/v1/topics/orders/consume", ""), 200, "").body)[0]
	for query, status := range map[string]int{"action=extend&for=11h59m59s": 204, "action=extend&for=12h": 204, "action=extend&for=12h1ns": 400, "action=nack&delay=12h1ns": 400} {
		s.want(s.post("/v1/topics/orders/ack?receipt_handle="+h+"&"+query, ""), status, "")
	}
	s.want(s.post("/v1/topics/orders/ack?receipt_handle="+h+"&action=nack&delay=12h", ""), 204, "")
}

// Connections that are being turned away are bounded too: beyond that they are
// closed without a word, and nobody waits for them.
func TestRefusalsAreBounded(t *testing.T) {
	s := start(t, limits(func(l *Limits) { l.Connections, l.RefusalsAtATime = 1, 1 }))
	ask := "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
	_, r := s.raw(ask)
	s.want(s.readAnswer(r, "GET"), 200, "")
	eventually(t, "a connection is closed without an answer", func() bool {
		lingering, r := s.raw(ask) // its refusal lasts for a second, since this side stays open
		defer lingering.Close()
		if _, err := r.ReadByte(); err != nil {
			return errors.Is(err, io.EOF)
		}
		next, r := s.raw("")
		defer next.Close()
		_, err := r.ReadByte()
		return errors.Is(err, io.EOF)
	})
}
