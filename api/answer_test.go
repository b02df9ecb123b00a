package api

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// Proves that an answer which the connection puts together is the one that net/http
// writes for the same handler where the connection is not ours: status, headers,
// what becomes of the connection, and every byte of the body, below, at and above
// the size that is put together, in every version and for HEAD.
func TestAnswersAreThoseOfNetHTTP(t *testing.T) {
	sizes := []int{0, 1, 3000, wholeTo - 1, wholeTo, wholeTo + 1, 200 << 10}
	var requests []string
	add := func(method, path, proto string, headers ...string) {
		requests = append(requests, method+" "+path+" HTTP/"+proto+"\r\nHost: x\r\nX-Tidemark-Client: t\r\n"+strings.Join(append(headers, "\r\n"), "\r\n"))
	}
	for offset := range sizes {
		for _, accept := range []string{mediaBytes, mediaJSON, mediaFrames} {
			add("GET", fmt.Sprintf("/v1/topics/orders/consume?partition=0&offset=%d", offset), "1.1", "Accept: "+accept)
		}
	}
	for _, proto := range []string{"1.1", "1.0"} {
		for _, connection := range []string{"X-None: x", "Connection: close", "Connection: keep-alive"} {
			add("GET", "/v1/topics/orders/consume?partition=0&offset=2", proto, connection)
			add("GET", "/v1/topics/orders/consume?partition=1", proto, connection)
			add("HEAD", "/v1/topics/orders", proto, connection)
			add("GET", "/nowhere", proto, connection)
			add("PUT", "/v1/topics", proto, connection)
			add("OPTIONS", "/v1/topics", proto, connection)
			add("POST", "/v1/topics/orders/ack?receipt_handle=none", proto, connection, "Content-Length: 0")
			add("POST", "/v1/topics/orders/produce", proto, connection, "Content-Length: 100000000")
			add("POST", "/v1/topics/orders/produce?partition=2&ack=committed", proto, connection, "Content-Length: 0")
			add("GET", "/v1/topics/orders/partitions/0/records?max=2&wait=400h", proto, connection)
			add("GET", "/healthz", proto, connection)
		}
	}
	answers := func(handler bool) (list []string) {
		s := start(t)
		for _, size := range sizes {
			s.f.put("orders", strings.Repeat("v", size))
		}
		if handler {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			plain := &http.Server{Handler: s.s.Handler(), ReadHeaderTimeout: time.Minute}
			served := make(chan struct{})
			go func() { defer close(served); _ = plain.Serve(ln) }()
			defer func() { plain.Close(); <-served }()
			s.addr = ln.Addr().String()
		}
		for _, request := range requests {
			list = append(list, wholeAnswer(t, s, request))
		}
		return list
	}
	ours, theirs := answers(false), answers(true)
	for i := range requests {
		if read := i < 3*len(sizes); read && (!strings.Contains(ours[i], " 200 OK") || len(ours[i]) < sizes[i/3]) {
			t.Errorf("%.90q is answered %.300q", requests[i], ours[i])
		}
		if ours[i] != theirs[i] {
			t.Errorf("%.90q\nis answered %.600q\nand by net/http %.600q", requests[i], ours[i], theirs[i])
		}
	}
}

// wholeAnswer is the answer with its headers in order of their names and without
// its time, and whether the connection takes another request after it.
func wholeAnswer(t *testing.T, s *site, request string) string {
	t.Helper()
	nc, r := s.raw(request)
	defer nc.Close()
	var head []string
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("%q: %v after %q", request, err, head)
		}
		if line == "\r\n" {
			break
		}
		if !strings.HasPrefix(line, "Date: ") {
			head = append(head, line)
		}
	}
	slices.Sort(head[1:])
	res, err := http.ReadResponse(bufio.NewReader(io.MultiReader(strings.NewReader(strings.Join(head, "")+"\r\n"), r)), &http.Request{Method: request[:strings.IndexByte(request, ' ')]})
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	res.Body.Close()
	next := "open"
	if res.Close {
		next = "closed"
	}
	return fmt.Sprint(head, string(body), err, next)
}

// Proves that record headers, however many, stand in the head of a bare value, where
// that is put together by the connection: they may be longer than what net/http
// collects of a head.
func TestLongHeadOfABareValue(t *testing.T) {
	s := start(t)
	var headers []broker.Header
	for i := range 60 {
		headers = append(headers, broker.Header{Name: fmt.Sprintf("name-%02d", i), Value: []byte(strings.Repeat("v", 100))})
	}
	s.f.put("orders", "value")
	s.f.topics["orders"].parts[0].records[0].Headers = headers
	for range 2 { // the second one on the same connection
		a := s.want(s.do("GET", "/v1/topics/orders/consume?partition=0&offset=0", "", "Accept: "+mediaBytes), 200, "")
		for _, h := range headers {
			if got := a.Header.Get(headerPrefix + h.Name); got != string(h.Value) {
				t.Fatalf("%s is %q", h.Name, got)
			}
		}
		if a.body != "value" {
			t.Errorf("%q", a.body)
		}
	}
}
