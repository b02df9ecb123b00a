package api

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	first       = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" // after it a connection rests
	commonProto = " HTTP/1.1\r\nHost: x\r\nX-Tidemark-Client: t\r\n"
)

// produceOf is a common request that produces value.
func produceOf(value string) string {
	return fmt.Sprintf("POST /v1/topics/orders/produce?partition=0%sContent-Length: %d\r\n\r\n%s", commonProto, len(value), value)
}

// pieces is a connection on which bytes arrive in given pieces, one a read.
type pieces struct {
	net.Conn
	mu   sync.Mutex
	end  time.Time // of reads
	next []string
	out  bytes.Buffer
	done chan struct{} // closed with the connection
	once sync.Once
}

func (p *pieces) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.end.IsZero() && time.Now().After(p.end) {
		return 0, os.ErrDeadlineExceeded
	}
	if len(p.next) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.next[0])
	if p.next[0] = p.next[0][n:]; p.next[0] == "" {
		p.next = p.next[1:]
	}
	return n, nil
}

func (p *pieces) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}
func (p *pieces) Close() error { p.once.Do(func() { close(p.done) }); return nil }
func (p *pieces) SetReadDeadline(t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end = t
	return nil
}
func (p *pieces) SetWriteDeadline(time.Time) error { return nil }
func (p *pieces) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (p *pieces) RemoteAddr() net.Addr             { return &net.TCPAddr{} }

// reset forgets the records of a topic.
func (f *fakeBroker) reset(topic string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.topics[topic].parts {
		p.records = nil
	}
}

// queue is a listener of connections that tests make.
type queue struct {
	conns chan net.Conn
	over  chan struct{}
	once  sync.Once
}

func (q *queue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.over:
		return nil, net.ErrClosed
	}
}
func (q *queue) Close() error   { q.once.Do(func() { close(q.over) }); return nil }
func (q *queue) Addr() net.Addr { return &net.TCPAddr{} }

// served serves pieces and returns the answers.
func (s *site) served(q *queue, list ...string) string {
	s.t.Helper()
	p := &pieces{next: list, done: make(chan struct{})}
	q.conns <- p
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		s.t.Fatalf("%q is not served", list)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

func (s *site) queue() *queue {
	q := &queue{conns: make(chan net.Conn), over: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.s.Serve(q) // its listener is closed, if it did not stop before
	}()
	s.t.Cleanup(func() { q.Close(); <-ended })
	return q
}

// Proves that however requests are cut into reads, each byte belongs to the request that
// it was sent in: a body that looks like a request is a body, the rest of a head that
// looks like one is the rest of a head. The stream is cut at every place, alone, and
// together with the places where one of its requests looks whole.
func TestRequestsCutAnywhere(t *testing.T) {
	s := start(t)
	q := s.queue()
	inner := produceOf("smuggled")
	values := []string{inner, "plain", inner + inner, inner}
	parts := []string{first}
	for _, v := range values {
		parts = append(parts, produceOf(v))
	}
	stream := strings.Join(parts, "")
	var places []int // where a part, or what looks like a request, begins
	for at := len(first); at < len(stream); at++ {
		if strings.HasPrefix(stream[at:], "POST ") {
			places = append(places, at)
		}
	}
	check := func(cuts ...int) {
		t.Helper()
		s.f.reset("orders")
		var list []string
		from := 0
		for _, cut := range append(cuts, len(stream)) {
			if cut > from {
				list, from = append(list, stream[from:cut]), cut
			}
		}
		answers := s.served(q, list...)
		if n := strings.Count(answers, "HTTP/1.1 202 Accepted\r\n"); n != len(values) {
			t.Fatalf("cut at %v: %d answers of %d\n%s", cuts, n, len(values), answers)
		}
		got := s.f.stored("orders", 0)
		if len(got) != len(values) {
			t.Fatalf("cut at %v: %d records of %d", cuts, len(got), len(values))
		}
		for i, v := range values {
			if string(got[i].Value) != v {
				t.Fatalf("cut at %v: record %d is %q", cuts, i, got[i].Value)
			}
		}
	}
	check(places...)
	for at := 1; at < len(stream); at++ {
		check(at)
		var all []int
		for i, place := range places {
			if at > place && (i+1 == len(places) || at < places[i+1]) {
				all = append(append(append(all, places[:i+1]...), at), places[i+1:]...)
			}
		}
		check(all...)
	}
}

// Proves that the rest of a head is none of its own, whatever it looks like, when its
// begin came with the request before it, in any number of bytes.
func TestRestOfAHeadIsNoRequest(t *testing.T) {
	s := start(t)
	q := s.queue()
	for _, begin := range []string{"X", "GE", "PUT", "GET ", "POST /v1/topics/orders/ack HTTP/1.1\r\n", "POST /v1/topics/orders/ack HTTP/1.1\r\nHost: x\r\n", "POST /v1/topics/orders/ack HTTP/1.1\r\nHost: x\r\nX-Tidemark-Header-A: "} {
		s.f.reset("orders")
		answers := s.served(q, first+begin, produceOf("smuggled"))
		if got := s.f.stored("orders", 0); len(got) > 0 || strings.Contains(answers, " 202 ") {
			t.Errorf("%q before it: %d records; %s", begin, len(got), answers)
		}
	}
}

// Proves that common requests, and requests that are nearly common, have the answers
// of net/http alone, and that the connection is in the same state after them.
func TestCommonAnswersAreThoseOfNetHTTP(t *testing.T) {
	sizes := []int{0, 1, 3000, wholeTo, wholeTo + 1, 200 << 10}
	var requests []string
	add := func(path, proto string, rest string) { requests = append(requests, "POST "+path+" "+proto+"\r\n"+rest) }
	const own = "Host: x\r\nX-Tidemark-Client: t\r\n"
	for i := range sizes {
		for _, accept := range []string{mediaBytes, mediaJSON, mediaFrames} {
			add(fmt.Sprintf("/v1/topics/sizes/consume?wait=0s&partition=%d", i), "HTTP/1.1", own+"Accept: "+accept+"\r\n\r\n")
		}
	}
	for _, path := range []string{
		"/v1/topics/orders/consume", "/v1/topics/orders/consume?wait=30ms", "/v1/topics/orders/consume?max=3", "/v1/topics/orders/consume/", "/v1/topics/none/consume",
		"/v1/topics/orders/ack?receipt_handle=none", "/v1/topics/orders/ack", "/v1/topics//ack", "/v1/topics/orders/nothing", "/v1/topics/orders/consume?",
		"/v1/topics/orders/consume??", "/v1/topics/orders/consume?wait=%30s", "/v1/topics/or%64ers/consume", "/v1/topics/orders/consume#x", "/v1/topics/orders/consume?wait=0s#x",
		"/v1/topics/../topics/orders/consume", "/v1/topics/orders/consume?a;b", "/v1/topics/orders/consume?wait=0s&wait=0s", "/v1/topics/orders/cons\"ume", "/v1/topics/orders/cons\x01ume",
	} {
		add(path, "HTTP/1.1", own+"\r\n")
	}
	for _, proto := range []string{"HTTP/1.0", "HTTP/1.2", "HTTP/2.0", "http/1.1", "HTTP/1.1 "} {
		add("/v1/topics/orders/ack", proto, own+"\r\n")
	}
	for _, head := range []string{
		"", "Host: x\r\nHost: y\r\n", "Host: \r\n", "Host: a b\r\n", "Host: a/b\r\n", "host: x\r\n", "Host : x\r\n", "Host: x\r\n folded\r\n", "Host: x\r\nno colon\r\n",
		"Host: x\r\n: x\r\n", "Host: x\r\nA B: x\r\n", "Host: x\r\nTidemark-Header-A B: x\r\n", "Host: x\r\nAccept: a\x01b\r\n", "Host: x\r\nAccept: a\tb\r\n", "Host: x\r\nAccept: \t a \t\r\n", "Host: x\r\nAccept: é\r\n",
		"Host: x\r\nConnection: close\r\n", "Host: x\r\nConnection: Keep-Alive\r\n", "Host: x\r\nConnection: keep-alive\r\n", "Host: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n", "Host: x\r\nExpect: 100-continue\r\n", "Host: x\r\nExpect: x\r\n",
		"Host: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n", "Host: x\r\nContent-Length: 1, 1\r\n", "Host: x\r\nContent-Length: +1\r\n", "Host: x\r\nContent-Length: -1\r\n", "Host: x\r\nContent-Length: 01\r\n", "Host: x\r\nContent-Length: \r\n",
		"Host: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n", "Host: x\r\nTransfer-Encoding: identity\r\n", "Host: x\r\nContent-Type: text/plain\r\nContent-Type: text/plain\r\n", "Host: x\r\nIdempotency-Key: x\r\n",
	} {
		body := ""
		if strings.Contains(head, "Content-Length") {
			body = "v"
		}
		add("/v1/topics/orders/produce?partition=1", "HTTP/1.1", head+"X-Tidemark-Client: t\r\n\r\n"+body)
	}
	for _, path := range []string{"produce", "produce?partition=2&ack=committed", "produce?partition=9", "ack", "consume?wait=0s", "produce/batch"} {
		for _, body := range []string{"{}", "", `{"x":1}`, "[]", strings.Repeat("v", 3000), strings.Repeat("v", 70<<10)} {
			add("/v1/topics/orders/"+path, "HTTP/1.1", own+fmt.Sprintf("Tidemark-Header-A: b\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
		}
	}
	answers := func(alone bool) (list []string) {
		for _, request := range requests {
			s := start(t)
			s.f.topic("sizes", uint32(len(sizes)))
			for i, size := range sizes {
				s.f.append("sizes", NewRecord{Partition: int32(i), Value: []byte(strings.Repeat("v", size))})
			}
			q := s.queue()
			if alone {
				q = s.handlerOnly()
			}
			list = append(list, plainOf(t, s.served(q, first, request, first), request))
		}
		return list
	}
	ours, theirs := answers(false), answers(true)
	for i := range requests {
		if ours[i] != theirs[i] {
			t.Errorf("%.150q\nis answered %.900q\nand by net/http %.900q", requests[i], ours[i], theirs[i])
		}
	}
}

// handlerOnly serves the site's handler by net/http alone.
func (s *site) handlerOnly() *queue {
	q := &queue{conns: make(chan net.Conn), over: make(chan struct{})}
	plain := &http.Server{Handler: s.s.Handler(), ReadHeaderTimeout: time.Minute}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = plain.Serve(q) }()
	s.t.Cleanup(func() { plain.Close(); <-ended })
	return q
}

// plainOf is what an answer says, without its time and with headers in order.
func plainOf(t *testing.T, text, request string) string {
	t.Helper()
	r := bufio.NewReader(strings.NewReader(text))
	out := ""
	for range 3 {
		res, err := http.ReadResponse(r, &http.Request{Method: "GET"})
		if err != nil {
			return out + err.Error()
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if res.Header.Get("Content-Type") == "text/plain; charset=utf-8" || bytes.HasPrefix(body, []byte(`{"error":"the request is not HTTP`)) || res.StatusCode == http.StatusExpectationFailed || res.StatusCode == http.StatusNotImplemented {
			// What net/http says by itself has other words here.
			return out + fmt.Sprint(res.StatusCode)
		}
		res.Header.Del("Date")
		out += fmt.Sprint(res.Proto, res.Status, res.Header, res.ContentLength, res.Close, string(body), err, "\n")
	}
	if rest, _ := io.ReadAll(r); len(rest) > 0 {
		t.Errorf("%.100q: behind the answers stands %q", request, rest)
	}
	return out
}

// Proves that the end of a server waits for the answer to a common request, says in it
// that the connection closes, and closes it.
func TestShutdownWaitsForACommonRequest(t *testing.T) {
	s := start(t, limits(func(l *Limits) { l.AdminTime = time.Millisecond }))
	entered, release := make(chan struct{}), make(chan struct{})
	s.f.produceHook = func(context.Context, ProduceRequest) { close(entered); <-release }
	nc, r := s.raw(first)
	s.want(s.readAnswer(r, "GET"), 200, "")
	if _, err := io.WriteString(nc, produceOf("v")); err != nil {
		t.Fatal(err)
	}
	<-entered
	stopped := make(chan error, 1)
	go func() { stopped <- s.s.Shutdown(context.Background()) }()
	eventually(t, "its end is put off", func() bool { return s.s.late.count() == 1 })
	select {
	case err := <-stopped:
		t.Fatalf("it stopped before the answer: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	close(release)
	a := s.want(s.readAnswer(r, "POST"), 202, "")
	if !a.Close {
		t.Error("the answer does not say that the connection closes")
	}
	if _, err := r.ReadByte(); err != io.EOF {
		t.Errorf("after the answer: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// Proves that a stop that waits no longer ends a common request and its connection,
// be its handler at work or its answer on the way to a client that does not read.
func TestForcedShutdownOfACommonRequest(t *testing.T) {
	s := start(t, limits(func(l *Limits) { l.WriteStep = time.Minute }))
	s.f.put("orders", strings.Repeat("v", 32<<20))
	nc, r := s.raw(first)
	s.want(s.readAnswer(r, "GET"), 200, "")
	if _, err := io.WriteString(nc, "POST /v1/topics/orders/consume"+commonProto+"Accept: application/octet-stream\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ReadByte(); err != nil { // the answer is on its way
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := s.s.Shutdown(ctx); err == nil {
		t.Error("a forced shutdown says so")
	}
	if n := s.s.active.Load(); n != 0 {
		t.Errorf("%d requests are left", n)
	}
	if n := s.f.releasedCount(); n != 1 {
		t.Errorf("%d leases went back, of a record whose answer broke off", n)
	}
}

// Proves that a connection which sends common requests is closed when it rests for
// IdleTime, counted from the last of them, and that a common wait is not.
func TestCommonRequestsAndDeadlines(t *testing.T) {
	s := start(t, limits(func(l *Limits) {
		l.HeaderTime, l.IdleTime, l.BodyStep = 300*time.Millisecond, 300*time.Millisecond, 300*time.Millisecond
	}))
	nc, r := s.raw(first)
	s.want(s.readAnswer(r, "GET"), 200, "")
	var begun time.Time
	for range 3 {
		begun = time.Now()
		if _, err := io.WriteString(nc, "POST /v1/topics/orders/consume?wait=500ms"+commonProto+"\r\n"); err != nil {
			t.Fatal(err)
		}
		s.want(s.readAnswer(r, "POST"), 204, "")
		if took := time.Since(begun); took < 500*time.Millisecond {
			t.Errorf("it waited for %v", took)
		}
	}
	begun = time.Now()
	if _, err := r.ReadByte(); err != io.EOF {
		t.Errorf("a connection that rests: %v", err)
	}
	if took := time.Since(begun); took < 200*time.Millisecond {
		t.Errorf("it rested for %v", took)
	}
}

// FuzzCommon proves that what is taken for a common request is the request that
// net/http reads there, and that nothing stands behind it.
func FuzzCommon(f *testing.F) {
	f.Add([]byte(produceOf("value")))
	f.Add([]byte("POST /v1/topics/a/ack?receipt_handle=x HTTP/1.1\r\nhost: [::1]:80\r\nauthorization: Basic eDp5\r\nTidemark-Header-a: b\r\n\r\n"))
	f.Add([]byte("POST /v1/topics/a/consume? HTTP/1.1\r\nHost: x\r\nHost: y\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"))
	// Each is one that a parser with a rule less would take for another than net/http does.
	const rest = " HTTP/1.1\r\nHost: x\r\n"
	for _, near := range []string{
		"a%41/produce" + rest + "\r\n", "a#b" + rest + "\r\n", "a?b#c" + rest + "\r\n", "a HTTP/1.0\r\nHost: x\r\n\r\n", "a HTTP/1.1\r\n\r\n",
		"a" + rest + "Host: y\r\n\r\n", "a HTTP/1.1\r\nHost: x y\r\n\r\n", "a" + rest + "Content-Length: 1\r\nContent-Length: 1\r\n\r\nb",
		"a" + rest + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0", "a" + rest + "Content-Length: +1\r\n\r\nb", "a" + rest + "Content-Length: 1\r\n\r\nbc",
		"a" + rest + "Content-Length: 2\r\n\r\nb", "a" + rest + "Accept: b\r\n c\r\n\r\n", "a" + rest + "Accept: b\nHost: y\r\n\r\n", "a" + rest + "Accept : b\r\n\r\n",
		"a" + rest + "Accept: b\r\nAccept: c\r\n\r\n", "a" + rest + "Accept: \tb\r\n\r\n", "a" + rest + "Tidemark-Header-a b: c\r\n\r\n", "a" + rest + "Expect: 100-continue\r\nContent-Length: 1\r\n\r\nb",
	} {
		f.Add([]byte(commonStart + near))
	}
	q := newCommon(context.Background(), nil)
	f.Fuzz(func(t *testing.T, b []byte) {
		if !bytes.HasPrefix(b, []byte(commonStart)) || !q.parse(b) {
			return
		}
		in := bufio.NewReader(bytes.NewReader(b))
		r, err := http.ReadRequest(in)
		if err != nil {
			t.Fatalf("%q: %v", b, err)
		}
		body, err := io.ReadAll(r.Body)
		if err != nil || in.Buffered() > 0 {
			t.Fatalf("%q: %v, %d bytes behind it", b, err, in.Buffered())
		}
		r.Header.Del("Content-Length")
		r.Header.Del("Connection")
		own, _ := io.ReadAll(q.r.Body)
		want := fmt.Sprintf("%q %q %q %q %q %q %d %v %v %q %q", r.Method, r.URL.Path, r.URL.EscapedPath(), r.URL.RawQuery, r.Host, r.RequestURI, r.ContentLength, r.Close, r.TransferEncoding, r.Header, body)
		got := fmt.Sprintf("%q %q %q %q %q %q %d %v %v %q %q", q.r.Method, q.r.URL.Path, q.r.URL.EscapedPath(), q.r.URL.RawQuery, q.r.Host, q.r.RequestURI, q.r.ContentLength, q.r.Close, q.r.TransferEncoding, q.r.Header, own)
		if got != want {
			t.Fatalf("%q\nis %s\nand by net/http %s", b, got, want)
		}
	})
}
