package api

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// handleOf finds the receipt handles of an answer.
func handlesOf(body string) (list []string) {
	for _, part := range strings.Split(body, `"receipt_handle":"`)[1:] {
		list = append(list, part[:strings.IndexByte(part, '"')])
	}
	return list
}

// Lists, batch acks with one result per handle, extend and nack in both forms.
func TestConsumeAndSettleLists(t *testing.T) {
	s := start(t)
	s.f.put("orders", "1", "2", "3")
	a := s.want(s.post("/v1/topics/orders/consume?max=100", "{}"), 200, "")
	h := handlesOf(a.body)
	if len(h) != 3 || !strings.HasPrefix(a.body, `{"messages":[{"topic":"orders","partition":0,"offset":0,"payload":1,`) || a.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("list: %s", a.body)
	}
	s.want(s.post("/v1/topics/orders/consume?max=5&wait=1ms", ""), 204, "")
	for _, q := range []string{"action=extend&for=90s", "extend=true", "extend=1", "action=extend"} {
		s.want(s.post("/v1/topics/orders/ack?receipt_handle="+h[0]+"&"+q, ""), 204, "")
	}
	s.want(s.post("/v1/topics/orders/ack?receipt_handle="+h[1]+"&extend=0", ""), 204, "")
	a = s.want(s.post("/v1/topics/orders/ack", fmt.Sprintf(`{"receipt_handles":["%s","%s","nope","%s"]}`, h[0], h[1], h[2]), "Content-Type: application/json"), 200, "")
	if want := `{"results":[{"status":204},{"status":410,"error":"the lease is over","code":"gone","retry":"never"},{"status":400,"error":"\"nope\" is no receipt handle","code":"invalid_argument","retry":"never"},{"status":204}]}` + "\n"; a.body != want {
		t.Errorf("results: %s", a.body)
	}
	a = s.want(s.do("GET", "/v1/topics/orders/consume", ""), 200, "")
	if !strings.Contains(a.body, `"delivery_count":2`) {
		t.Errorf("nacked record: %s", a.body)
	}
	s.want(s.post("/v1/topics/orders/ack?receipt_handle="+handlesOf(a.body)[0]+"&action=nack&delay=1s", ""), 204, "")
	for _, c := range []struct{ query, body string }{
		{"", ""}, {"receipt_handle=", ""}, {"", "{}"}, {"", `{"receipt_handles":[]}`}, {"", `{"receipt_handles":[1]}`}, {"", `{"receipt_handles":[""]}`}, {"", `{"receipt_handles":"h"}`},
		{"", `{"receipt_handles":["h"],"receipt_handles":["h"]}`}, {"", `{"handles":["h"]}`}, {"", `{"receipt_handles":["h"]}x`}, {"", `{"receipt_handles":["h"]`}, {"receipt_handle=h", `{"receipt_handles":["h"]}`},
		{"receipt_handle=h&action=zap", ""}, {"receipt_handle=h&action=ack&extend=1", ""}, {"receipt_handle=h&extend=false", ""}, {"receipt_handle=h&for=1s", ""},
		{"receipt_handle=h&action=nack&for=1s", ""}, {"receipt_handle=h&action=extend&delay=1s", ""}, {"receipt_handle=h&action=extend&for=13h", ""}, {"receipt_handle=h&action=extend&for=0s", ""}, {"receipt_handle=h&action=nack&delay=13h", ""}, {"receipt_handle=h&receipt_handle=i", ""},
	} {
		s.want(s.post("/v1/topics/orders/ack?"+c.query, c.body, "Content-Type: application/json"), 400, "invalid_argument")
	}
	s.want(s.post("/v1/topics/none/ack?receipt_handle=h", ""), 404, "not_found")
	s.want(s.post("/v1/topics/orders/consume", `{"max":1}`), 400, "invalid_argument")
}

// A wait longer than the bound is clamped, and the answer says so in both
// dialects; a wait ends as soon as there is a record.
func TestWaitIsClamped(t *testing.T) {
	s := start(t, limits(func(l *Limits) { l.ConsumeWait = 20 * time.Millisecond }))
	a := s.want(s.do("GET", "/v1/topics/orders/consume?wait=10m", ""), 204, "")
	if a.Header.Get("Tidemark-Wait-Clamped") != "20ms" || a.Header.Get("X-Narad-Wait-Clamped") != "20ms" {
		t.Errorf("headers %v", a.Header)
	}
	if a := s.want(s.do("GET", "/v1/topics/orders/consume?wait=20ms", ""), 204, ""); a.Header.Get("Tidemark-Wait-Clamped") != "" {
		t.Error("a wait at the bound was clamped")
	}
	long := start(t)
	done := make(chan answer, 1)
	go func() { done <- long.do("GET", "/v1/topics/orders/consume?wait=10s", "") }()
	eventually(t, "the consume waits", func() bool { return long.s.active.Load() == 1 })
	long.f.put("orders", "now")
	if a := <-done; a.StatusCode != 200 {
		t.Errorf("status %d", a.StatusCode)
	}
}

// The bare form gives the stored bytes; what a header cannot carry is encoded,
// never lost.
func TestBareMessage(t *testing.T) {
	s := start(t)
	s.f.append("orders", NewRecord{Key: []byte("k1"), Value: []byte("<script>"), Headers: []broker.Header{{Name: "trace", Value: []byte("abc")}}})
	s.f.append("orders", NewRecord{Partition: 0, Key: []byte("\xff\r\n"), Value: nil, Headers: []broker.Header{{Name: "X-Upper", Value: []byte("1")}, {Name: "b", Value: []byte{0}}}})
	a := s.want(s.do("GET", "/v1/topics/orders/consume", "", "Accept: application/octet-stream"), 200, "")
	h := a.Header
	if a.body != "<script>" || h.Get("Tidemark-Key") != "k1" || h.Get("Tidemark-Header-Trace") != "abc" || h.Get("Tidemark-Offset") != "0" || h.Get("Tidemark-Partition") != "0" ||
		h.Get("Tidemark-Delivery-Count") != "1" || h.Get("Tidemark-Receipt-Handle") == "" || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Content-Type") != mediaBytes || h.Get("Tidemark-Timestamp-Ms") == "" {
		t.Errorf("first: %q %v", a.body, h)
	}
	a = s.want(s.do("GET", "/v1/topics/orders/consume", "", "Accept: text/html, application/octet-stream;q=0.9"), 200, "")
	key, _ := base64.StdEncoding.DecodeString(a.Header.Get("Tidemark-Key"))
	list, _ := base64.StdEncoding.DecodeString(a.Header.Get("Tidemark-Headers"))
	if string(key) != "\xff\r\n" || a.Header.Get("Tidemark-Key-Encoding") != "base64" || string(list) != `[{"name":"X-Upper","value":"1"},{"name":"b","value":"\u0000"}]` || a.body != "" {
		t.Errorf("second: %q %v %s", a.body, a.Header, list)
	}
	a = s.want(s.do("GET", "/v1/topics/orders/consume?partition=0&offset=0", "", "Accept: application/octet-stream"), 200, "")
	if a.body != "<script>" || a.Header.Get("Tidemark-Receipt-Handle") != "" {
		t.Errorf("replay: %q %v", a.body, a.Header)
	}
}

// B27: an HTTP/1.0 client that wants to keep its connection gets lengths, and
// its record is leased once.
func TestB27LengthForHTTP10(t *testing.T) {
	s := start(t)
	s.f.put("orders", strings.Repeat("x", 4096), "second")
	nc, r := s.raw("GET /v1/topics/orders/consume HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
	a := s.readAnswer(r, "GET")
	if a.ContentLength < 4096 || int(a.ContentLength) != len(a.body) || a.Header.Get("Connection") != "keep-alive" || !strings.Contains(a.body, `"delivery_count":1`) {
		t.Fatalf("%d %v", a.ContentLength, a.Header)
	}
	if _, err := io.WriteString(nc, "GET /v1/topics/orders/consume HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if a := s.readAnswer(r, "GET"); !strings.Contains(a.body, "second") {
		t.Fatalf("%s", a.body)
	}
	for _, path := range []string{"/v1/topics", "/v1/topics/orders", "/v1/topics/orders/partitions/0/records", "/nowhere", "/healthz"} {
		if a := s.do("GET", path, ""); a.ContentLength != int64(len(a.body)) {
			t.Errorf("%s: Content-Length %d of %d", path, a.ContentLength, len(a.body))
		}
	}
}

// B84: a client that goes away while it waits does not take the next record
// with it. It may have produced on the same connection before, which is not
// watched for its end during a produce.
func TestB84DeadPollerReleases(t *testing.T) {
	s := start(t)
	s.f.topic("other", 1)
	nc, r := s.raw("POST /v1/topics/other/produce HTTP/1.1\r\nHost: x\r\nX-Tidemark-Client: t\r\nContent-Length: 1\r\n\r\nx")
	s.want(s.readAnswer(r, "POST"), 202, "")
	if _, err := nc.Write([]byte("GET /v1/topics/orders/consume?wait=10s HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the poll waits", func() bool { return s.s.active.Load() == 1 })
	if err := nc.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the poll ends", func() bool { return s.s.active.Load() == 0 })
	s.f.put("orders", "x")
	a := s.want(s.do("GET", "/v1/topics/orders/consume?wait=1s", ""), 200, "")
	if !strings.Contains(a.body, `"delivery_count":1`) {
		t.Errorf("%s", a.body)
	}
}

// lateBroker leases although the context of a wait has ended, as a broker may that
// finds a record in the same moment.
type lateBroker struct{ *fakeBroker }

func (b lateBroker) Consume(ctx context.Context, req ConsumeRequest) ([]Message, error) {
	if req.Wait == 0 {
		return nil, nil
	}
	<-ctx.Done()
	req.Wait = 0
	return b.fakeBroker.Consume(context.Background(), req)
}

// B84: records that were leased in the moment the client went away go back at
// once, and their delivery does not count.
func TestB84LeasedTooLateGoesBack(t *testing.T) {
	s := start(t)
	s.s.broker = lateBroker{s.f}
	s.f.put("orders", "x")
	nc, _ := s.raw("GET /v1/topics/orders/consume?wait=10s HTTP/1.1\r\nHost: x\r\n\r\n")
	eventually(t, "the poll waits", func() bool { return s.s.active.Load() == 1 })
	nc.Close()
	eventually(t, "the lease is given back", func() bool { return s.f.releasedCount() == 1 })
	eventually(t, "the poll ends", func() bool { return s.s.active.Load() == 0 })
	s.s.broker = s.f
	if a := s.want(s.do("GET", "/v1/topics/orders/consume", ""), 200, ""); !strings.Contains(a.body, `"delivery_count":1`) {
		t.Errorf("%s", a.body)
	}
}

// B84: an answer that the client does not take is an answer it never had, be it
// the first one on its connection or a later one.
func TestB84UnwrittenAnswerGoesBack(t *testing.T) {
	for _, earlier := range []int{0, 2} {
		s := start(t, limits(func(l *Limits) { l.WriteStep = 2 * time.Second; l.ConsumeBytes = 64 << 20 }))
		for range 20 {
			s.f.put("orders", strings.Repeat("x", 1<<20))
		}
		const consume = "POST /v1/topics/orders/consume?max=20 HTTP/1.1\r\nHost: x\r\nX-Tidemark-Client: t\r\nContent-Length: 0\r\n\r\n"
		_, r := s.raw(strings.Repeat("GET /v1/topics HTTP/1.1\r\nHost: x\r\n\r\n", earlier) + consume)
		for range earlier {
			s.want(s.readAnswer(r, "GET"), 200, "")
		}
		eventually(t, "the leases are given back", func() bool { return s.f.releasedCount() == 20 })
		// What did arrive never looks complete.
		res, err := http.ReadResponse(r, nil)
		if err == nil {
			_, err = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		if err == nil {
			t.Errorf("the broken answer after %d others looked complete", earlier)
		}
	}
}

// A half-closed client still gets what is there at once.
func TestHalfClosedClient(t *testing.T) {
	s := start(t)
	s.f.put("orders", "x")
	for _, text := range []string{
		"GET /v1/topics/orders/consume HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /v1/topics/orders/produce HTTP/1.1\r\nHost: x\r\nX-Tidemark-Client: t\r\nContent-Length: 1\r\n\r\ny",
		"GET /v1/topics/orders/partitions/0/records HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		nc, r := s.raw(text)
		if err := nc.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if a := s.readAnswer(r, "GET"); a.StatusCode >= 300 {
			t.Errorf("%.30q: %d %s", text, a.StatusCode, a.body)
		}
	}
}

// What does not fit into an answer goes back without a count; the first record
// always fits.
func TestConsumeAnswerIsBounded(t *testing.T) {
	s := start(t, limits(func(l *Limits) { l.ConsumeBytes = 100 }))
	s.f.put("orders", strings.Repeat("a", 300), strings.Repeat("b", 60), strings.Repeat("c", 40), "d")
	for _, want := range []int{1, 2, 1} {
		a := s.want(s.post("/v1/topics/orders/consume?max=10", ""), 200, "")
		if got := len(handlesOf(a.body)); got != want || strings.Contains(a.body, `"delivery_count":2`) {
			t.Fatalf("%d records, want %d: %s", got, want, a.body)
		}
	}
}

// B127, B128: every offset has a documented answer, below the start and above
// the end differ, and both bounds are named.
func TestB127B128OffsetRange(t *testing.T) {
	s := start(t)
	s.f.put("orders", "0", "1", "2", "3", "4")
	s.f.mu.Lock()
	p := s.f.topics["orders"].parts[0]
	p.records, p.oldest = p.records[2:], 2
	s.f.mu.Unlock()
	for _, c := range []struct {
		offset string
		replay int
		page   int
	}{
		{"-1", 400, 400}, {"1", 410, 410}, {"0", 410, 410}, {"2", 200, 200}, {"4", 200, 200}, {"5", 416, 200}, {"6", 416, 416},
		{fmt.Sprint(int64(math.MaxInt64)), 416, 416}, {"9223372036854775808", 400, 400}, {"abc", 400, 400}, {"1e3", 400, 400}, {"", 400, 400}, {"+2", 400, 400}, {"2.0", 400, 400},
	} {
		for _, r := range []struct {
			path string
			want int
		}{{"consume?partition=0&offset=" + c.offset, c.replay}, {"partitions/0/records?from=" + c.offset, c.page}} {
			a := s.want(s.do("GET", "/v1/topics/orders/"+strings.ReplaceAll(r.path, "+", "%2B"), ""), r.want, "")
			if (r.want == 410 || r.want == 416) && (!strings.Contains(a.body, `"oldest_offset":2`) || !strings.Contains(a.body, `"high_watermark":5`)) {
				t.Errorf("%s: bounds are missing: %s", r.path, a.body)
			}
		}
	}
	a := s.want(s.do("GET", "/v1/topics/orders/consume?partition=0&offset=3", ""), 200, "")
	if want := `{"topic":"orders","partition":0,"offset":3,"payload":3,"timestamp":1700000000,"timestamp_ms":1700000000003}` + "\n"; a.body != want {
		t.Errorf("replay: %s", a.body)
	}
	for _, q := range []string{"offset=3", "partition=0&offset=3&max=1", "partition=0&offset=3&wait=1s", "partition=0&offset=3&group=default"} {
		s.want(s.do("GET", "/v1/topics/orders/consume?"+q, ""), 400, "invalid_argument")
	}
	s.want(s.post("/v1/topics/orders/consume?partition=0&offset=3", ""), 400, "invalid_argument")
	s.want(s.do("GET", "/v1/topics/orders/partitions/3/records", ""), 404, "not_found")
	s.want(s.do("GET", "/v1/topics/orders/partitions/x/records", ""), 400, "invalid_argument")
	s.want(s.do("GET", "/v1/topics/none/partitions/0/records", ""), 404, "not_found")
}

// Pages: bounds by records and bytes, resume offsets that join, times.
func TestPages(t *testing.T) {
	s := start(t)
	s.f.runLength = 3
	for i := range 10 {
		s.f.put("orders", fmt.Sprintf(`"%d"`, i))
	}
	path := "/v1/topics/orders/partitions/0/records?"
	for _, c := range []struct{ query, want string }{
		{"max=4", `0 1 2 3 resume 4`}, {"max=3", `0 1 2 resume 3`}, {"from=8&max=4", `8 9 resume 10`}, {"from=2&to=5", `2 3 4 resume 5`}, {"from=5&to=5", `resume 5`},
		{"from=10", `resume 10`}, {"from=10&wait=1ms", `resume 10`}, {"max_bytes=1", `0 resume 1`}, {"max_bytes=6", `0 1 resume 2`}, {"max_bytes=8", `0 1 resume 2`},
		{"at=1700000000007", `7 8 9 resume 10`}, {"at=2023-11-14T22:13:20.008Z", `8 9 resume 10`}, {"at=2023-11-14T22:13:20.0080001Z", `9 resume 10`}, {"at=9999999999999", `resume 10`},
	} {
		a := s.want(s.do("GET", path+c.query, ""), 200, "")
		var got []string
		for _, part := range strings.Split(a.body, `"payload":"`)[1:] {
			got = append(got, part[:1])
		}
		_, resume, _ := strings.Cut(a.body, `"resume_offset":`)
		got = append(got, "resume", resume[:strings.IndexByte(resume, ',')])
		if g := strings.Join(got, " "); g != c.want {
			t.Errorf("%s: %s, want %s", c.query, g, c.want)
		}
		if !strings.Contains(a.body, `"high_watermark":10,"oldest_offset":0}`) {
			t.Errorf("%s: bounds: %s", c.query, a.body)
		}
	}
	for _, q := range []string{"max=0", "max=1001", "max_bytes=0", "max_bytes=16777217", "from=5&to=4", "from=1&at=5", "at=yesterday", "at=-5", "follow", "follow=2", "to=-1", "wait=-1s"} {
		s.want(s.do("GET", path+q, ""), 400, "invalid_argument")
	}
	s.want(s.do("GET", path+"follow&wait=1s", "", "Accept: application/x-ndjson"), 400, "invalid_argument")
	a := s.want(s.do("GET", "/v1/topics/orders/partitions/0/offset?at=1700000000004", ""), 200, "")
	if a.body != `{"topic":"orders","partition":0,"offset":4}`+"\n" {
		t.Errorf("offset: %s", a.body)
	}
	s.want(s.do("GET", "/v1/topics/orders/partitions/0/offset", ""), 400, "invalid_argument")
	s.f.readErr = func(next int64) error {
		if next >= 6 {
			return errcode.New(errcode.ArchiveUnavailable, "the store is down")
		}
		return nil
	}
	if a := s.want(s.do("GET", path+"from=3", ""), 200, ""); !strings.Contains(a.body, `"resume_offset":6`) {
		t.Errorf("a page ends before an error: %s", a.body)
	}
	s.want(s.do("GET", path+"from=6", ""), 503, "archive_unavailable")
}

const streamed = "Accept: application/x-ndjson"

// A stream that meets an error before its first byte is an error; after it the
// connection is aborted, so that a broken stream never looks whole.
func TestStreamErrors(t *testing.T) {
	s := start(t)
	s.f.runLength = 1
	for range 6 {
		s.f.put("orders", `"`+strings.Repeat("x", 40<<10)+`"`)
	}
	path := "/v1/topics/orders/partitions/0/records"
	a := s.want(s.do("GET", path+"?max=2", "", streamed), 200, "")
	if !strings.HasSuffix(a.body, "\n{\"end\":true,\"resume_offset\":2}\n") {
		t.Errorf("max ends a stream: %s", a.body[len(a.body)-60:])
	}
	a = s.want(s.do("GET", path+"?max_bytes=100000", "", streamed), 200, "")
	if !strings.HasSuffix(a.body, "\n{\"end\":true,\"resume_offset\":2}\n") {
		t.Errorf("max_bytes ends a stream: %s", a.body[len(a.body)-60:])
	}
	fail := int64(0)
	s.f.readErr = func(next int64) error {
		if next >= fail {
			return errcode.New(errcode.ArchiveUnavailable, "the store is down")
		}
		return nil
	}
	s.want(s.do("GET", path, "", streamed), 503, "archive_unavailable")
	fail = 5
	res, err := s.c.Do(func() *http.Request {
		r, _ := http.NewRequest("GET", "http://"+s.addr+path, nil)
		r.Header.Set("Accept", mediaNDJSON)
		return r
	}())
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil || strings.Contains(string(b), `"end":true`) || len(b) == 0 {
		t.Errorf("a broken stream: %d bytes, error %v", len(b), err)
	}
	if got := s.metric(`tidemark_http_requests_total{method="GET",route="/v1/topics/:topic/partitions/:partition/records",status="aborted"}`); got != "1" {
		t.Errorf("aborted: %q", got)
	}
}

// follow begins at once, delivers what comes, and ends with its marker when
// the server drains; the ready probe turns away first.
func TestFollowEndsWithItsMarker(t *testing.T) {
	s := start(t)
	_, r := s.raw("GET /v1/topics/orders/partitions/0/records?follow HTTP/1.1\r\nHost: x\r\nAccept: application/x-ndjson\r\n\r\n")
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("%v %v", res, err)
	}
	defer res.Body.Close()
	s.f.put("orders", "{\n\"a\":1}")
	line := make([]byte, 256)
	n, err := res.Body.Read(line)
	if err != nil || string(line[:n]) != `{"offset":0,"timestamp_ms":1700000000000,"payload":{ "a":1}}`+"\n" {
		t.Fatalf("%q %v", line[:n], err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.s.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(res.Body)
	if err != nil || string(rest) != `{"end":true,"resume_offset":1}`+"\n" {
		t.Fatalf("%q %v", rest, err)
	}
}

// Shutdown lets waits end empty and does not wait for them.
func TestShutdownEndsWaits(t *testing.T) {
	s := start(t)
	done := make(chan answer, 1)
	go func() { done <- s.do("GET", "/v1/topics/orders/consume?wait=10s", "") }()
	eventually(t, "the consume waits", func() bool { return s.s.active.Load() == 1 })
	begun := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.s.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	if a := <-done; a.StatusCode != 204 {
		t.Errorf("status %d", a.StatusCode)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
}

// A produce outlives its client's connection, and a forced shutdown cancels
// it: every request ends.
func TestForcedShutdownCancels(t *testing.T) {
	s := start(t)
	entered := make(chan struct{})
	s.f.produceHook = func(ctx context.Context, _ ProduceRequest) {
		close(entered)
		<-ctx.Done()
	}
	nc, _ := s.raw("POST /v1/topics/orders/produce HTTP/1.1\r\nHost: x\r\nX-Tidemark-Client: t\r\nContent-Length: 1\r\n\r\ny")
	<-entered
	nc.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := s.s.Shutdown(ctx); err == nil {
		t.Error("a forced shutdown says so")
	}
	if n := s.s.active.Load(); n != 0 {
		t.Errorf("%d requests are left", n)
	}
}

// A wait outlasts every deadline of the socket: those for headers, bodies and
// idle connections are not its own.
func TestWaitOutlastsSocketDeadlines(t *testing.T) {
	s := start(t, limits(func(l *Limits) {
		l.HeaderTime, l.IdleTime, l.BodyStep, l.WriteStep = 200*time.Millisecond, 200*time.Millisecond, 200*time.Millisecond, 200*time.Millisecond
	}))
	done := make(chan answer, 2)
	go func() { done <- s.do("GET", "/v1/topics/orders/consume?wait=10s", "") }()
	go func() { done <- s.post("/v1/topics/orders/consume?wait=10s", " {} ") }()
	eventually(t, "both wait", func() bool { return s.s.active.Load() == 2 })
	for range 2 { // the server cuts a slow header off: that long has passed
		_, r := s.raw("GET /heal")
		if _, err := io.Copy(io.Discard, r); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.s.active.Load(); n != 2 {
		t.Fatalf("%d still wait", n)
	}
	s.f.put("orders", "1", "2")
	for range 2 {
		s.want(<-done, 200, "")
	}
}
