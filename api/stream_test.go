package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

const (
	asFrames = "Accept: " + mediaFrames
	asBatch  = "Accept: " + mediaBatch
	asEvents = "Accept: " + mediaEvents
)

// shown is one record of a body of frames.
type shown struct{ meta, value string }

// framesOf takes a body of frames apart.
func framesOf(tb testing.TB, body string) (out []shown) {
	tb.Helper()
	take := func() string {
		if len(body) < 4 || uint32(len(body)-4) < binary.BigEndian.Uint32([]byte(body)) {
			tb.Fatalf("a frame is cut off: %q", body)
		}
		n := 4 + int(binary.BigEndian.Uint32([]byte(body)))
		part := body[4:n]
		body = body[n:]
		return part
	}
	for body != "" {
		f := shown{meta: take()}
		f.value = take()
		out = append(out, f)
	}
	return out
}

// What each form of a stream looks like, byte for byte: records of every kind,
// the end, and the way to go on.
func TestStreamForms(t *testing.T) {
	s := start(t)
	s.f.append("orders",
		NewRecord{Key: []byte("u1"), Value: []byte("{\r\n\"a\": 1}"), Headers: []broker.Header{{Name: "Trace", Value: []byte("7f")}}},
		NewRecord{Value: []byte("two\nlines")},
		NewRecord{Key: []byte{0xff}, Value: []byte{0, 0xfe}},
		NewRecord{Value: nil})
	path := "/v1/topics/orders/partitions/0/records?to=4"

	a := s.want(s.do("GET", path, "", asEvents), 200, "")
	want := `id: 0
data: {"offset":0,"timestamp_ms":1700000000000,"key":"u1","payload":{  "a": 1},"headers":[{"name":"Trace","value":"7f"}]}

id: 1
data: {"offset":1,"timestamp_ms":1700000000001,"payload":"two\nlines"}

id: 2
data: {"offset":2,"timestamp_ms":1700000000002,"key":"/w==","key_encoding":"base64","payload":"AP4=","payload_encoding":"base64"}

id: 3
data: {"offset":3,"timestamp_ms":1700000000003,"payload":""}

event: end
data: {"end":true,"resume_offset":4}

`
	if a.body != want || a.Header.Get("Content-Type") != "text/event-stream" || a.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("events: %v\n%s", a.Header, a.body)
	}

	a = s.want(s.do("GET", path, "", asFrames), 200, "")
	got := framesOf(t, a.body)
	for i, f := range []shown{
		{`{"offset":0,"timestamp_ms":1700000000000,"key":"u1","headers":[{"name":"Trace","value":"7f"}]}`, "{\r\n\"a\": 1}"},
		{`{"offset":1,"timestamp_ms":1700000000001}`, "two\nlines"},
		{`{"offset":2,"timestamp_ms":1700000000002,"key":"/w==","key_encoding":"base64"}`, "\x00\xfe"},
		{`{"offset":3,"timestamp_ms":1700000000003}`, ""},
	} {
		if len(got) != 4 || got[i] != f {
			t.Fatalf("frame %d of %q, want %q", i, got, f)
		}
	}
	if a.Trailer.Get("Tidemark-Resume-Offset") != "4" || a.Header.Get("Tidemark-Resume-Offset") != "" || a.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("frames: header %v, trailer %v", a.Header, a.Trailer)
	}

	a = s.want(s.do("GET", path, "", asBatch), 200, "")
	if want := string(fakeBytes(s.f.stored("orders", 0))); a.body != want || a.Trailer.Get("Tidemark-Resume-Offset") != "4" {
		t.Errorf("raw: %q, trailer %v", a.body, a.Trailer)
	}
	for _, form := range []string{streamed, asEvents, asFrames, asBatch} {
		a := s.want(s.do("HEAD", path, "", form), 200, "")
		if got := a.Header.Get("Content-Type"); a.body != "" || got != strings.TrimPrefix(form, "Accept: ") {
			t.Errorf("HEAD %s: %q %q", form, got, a.body)
		}
	}
}

// B127, B128: raw batches begin with the one that holds from, end with the one that holds
// the last record asked for, and max counts whole batches; the trailer never
// skips what the reader has to trim. The same bounds hold for every form.
func TestStreamBounds(t *testing.T) {
	s := start(t)
	for i := range 10 {
		s.f.put("orders", fmt.Sprint(i))
	}
	path := "/v1/topics/orders/partitions/0/records?"
	for _, c := range []struct{ query, batches, lines, resume string }{
		{"", "[0: 0 1 2 3][4: 4 5 6 7][8: 8 9]", "0123456789", "10 10"},
		{"from=5", "[4: 4 5 6 7][8: 8 9]", "56789", "10 10"},
		{"from=5&to=7", "[4: 4 5 6 7]", "56", "7 7"},
		{"from=5&to=8", "[4: 4 5 6 7]", "567", "8 8"},
		{"from=5&to=5", "", "", "5 5"},
		{"from=10", "", "", "10 10"},
		{"max=1", "[0: 0 1 2 3]", "0", "4 1"},
		{"max=4", "[0: 0 1 2 3]", "0123", "4 4"},
		{"max=5", "[0: 0 1 2 3]", "01234", "4 5"},
		{"max=8", "[0: 0 1 2 3][4: 4 5 6 7]", "01234567", "8 8"},
		{"max_bytes=1", "[0: 0 1 2 3]", "0", "4 1"},
		{"max_bytes=23", "[0: 0 1 2 3]", "0123456789", "4 10"},
		{"max_bytes=24", "[0: 0 1 2 3][4: 4 5 6 7]", "0123456789", "8 10"},
		{"at=1700000000009", "[8: 8 9]", "9", "10 10"},
	} {
		raw := s.want(s.do("GET", path+c.query, "", asBatch), 200, "")
		lines := ""
		framed := s.want(s.do("GET", path+c.query, "", asFrames), 200, "")
		for _, f := range framesOf(t, framed.body) {
			lines += f.value
		}
		resume := raw.Trailer.Get("Tidemark-Resume-Offset") + " " + framed.Trailer.Get("Tidemark-Resume-Offset")
		if raw.body != c.batches || lines != c.lines || resume != c.resume {
			t.Errorf("%q: %q %q resume %s, want %q %q resume %s", c.query, raw.body, lines, resume, c.batches, c.lines, c.resume)
		}
	}
	for _, form := range []string{streamed, asEvents, asFrames, asBatch} {
		for query, status := range map[string]int{
			"from=11": 416, "from=-1": 400, "from=3&to=2": 400, "max=0": 400, "max_bytes=0": 400, "follow=2": 400, "follow&wait=1s": 400,
		} {
			s.want(s.do("GET", path+query, "", form), status, "")
		}
	}
	s.f.mu.Lock()
	p := s.f.topics["orders"].parts[0]
	p.records, p.oldest = p.records[2:], 2
	s.f.mu.Unlock()
	for _, form := range []string{streamed, asEvents, asFrames, asBatch} {
		if a := s.want(s.do("GET", path+"from=1", "", form), 410, "gone"); !strings.Contains(a.body, `"oldest_offset":2`) {
			t.Errorf("%s: %s", form, a.body)
		}
	}
}

// An event stream goes on after Last-Event-ID, whatever its query says, since a
// browser asks again with the same one; it always follows.
func TestEventStreamResumes(t *testing.T) {
	s := start(t)
	s.f.put("orders", "0", "1", "2")
	path := "/v1/topics/orders/partitions/0/records?"
	for _, query := range []string{"to=3", "from=0&to=3", "at=1700000000000&to=3"} {
		a := s.want(s.do("GET", path+query, "", asEvents, "Last-Event-ID: 1"), 200, "")
		if !strings.HasPrefix(a.body, "id: 2\n") {
			t.Errorf("%s: %s", query, a.body)
		}
	}
	for id, status := range map[string]int{"": 200, "2": 200, "3": 416, "x": 400, "-1": 400, "9223372036854775807": 400, "9223372036854775806": 416} {
		to := "&to=9223372036854775807"
		if status == 200 {
			to = "&to=3"
		}
		s.want(s.do("GET", path+"from=0"+to, "", asEvents, "Last-Event-ID: "+id), status, "")
	}
	s.want(s.do("GET", path+"follow=false", "", asEvents), 400, "invalid_argument")
	s.want(s.do("GET", path+"wait=1s", "", asEvents), 400, "invalid_argument")
	// Other forms know no events.
	if a := s.want(s.do("GET", path, "", streamed, "Last-Event-ID: 1"), 200, ""); !strings.HasPrefix(a.body, `{"offset":0,`) {
		t.Errorf("lines: %s", a.body)
	}
}

// stream opens a stream on a socket of its own and returns its body as it is on
// the wire, after the head.
func (s *site) stream(query, form string) (net.Conn, *bufio.Reader, http.Header) {
	s.t.Helper()
	nc, r := s.raw("GET /v1/topics/orders/partitions/0/records?" + query + " HTTP/1.1\r\nHost: x\r\n" + form + "\r\n\r\n")
	var head bytes.Buffer
	for !bytes.HasSuffix(head.Bytes(), []byte("\r\n\r\n")) {
		line, err := r.ReadString('\n')
		if err != nil {
			s.t.Fatal(err)
		}
		head.WriteString(line)
	}
	res, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head.Bytes())), nil)
	if err != nil || res.StatusCode != 200 {
		s.t.Fatalf("%v: %s", err, head.String())
	}
	_ = res.Body.Close()
	return nc, r, res.Header
}

// On the wire a stream that breaks off has no last chunk, in every form, so that
// no client takes it for a whole one; the same stream that ends has one.
func TestBrokenStreamHasNoLastChunk(t *testing.T) {
	s := start(t)
	s.f.runLength = 1
	for range 12 {
		s.f.put("orders", strings.Repeat("x", 20<<10))
	}
	for _, form := range []string{streamed, asEvents, asFrames, asBatch} {
		for _, breaks := range []bool{false, true} {
			s.f.readErr = func(next int64) error {
				if breaks && next >= 8 {
					return errcode.New(errcode.ArchiveUnavailable, "the store is down")
				}
				return nil
			}
			_, r, _ := s.stream("to=12", form+"\r\nConnection: close")
			b, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			tail := string(b[max(0, len(b)-200):])
			whole := strings.HasSuffix(tail, "\r\n0\r\n\r\n") || strings.HasSuffix(tail, "\r\n0\r\nTidemark-Resume-Offset: 12\r\n\r\n")
			said := strings.Contains(tail, `"end":true,"resume_offset":12}`) || strings.Contains(tail, "Tidemark-Resume-Offset: 12")
			if whole == breaks || said == breaks || len(b) < 100<<10 {
				t.Errorf("%s: breaks off %v: %d bytes, last chunk %v, end %v: %q", form, breaks, len(b), whole, said, tail)
			}
		}
	}
	// An error before the first byte is an error answer in every form.
	s.f.readErr = func(int64) error { return errcode.New(errcode.ArchiveUnavailable, "the store is down") }
	for _, form := range []string{streamed, asFrames, asBatch} {
		a := s.want(s.do("GET", "/v1/topics/orders/partitions/0/records", "", form), 503, "archive_unavailable")
		if a.Header.Get("Trailer") != "" || a.Header.Get("X-Content-Type-Options") != "" {
			t.Errorf("%s: an error with the headers of a stream: %v", form, a.Header)
		}
	}
}

// HTTP/1.0 has no trailers, so what ends with one is refused; the other forms say
// their end themselves, and one that breaks off lacks it.
func TestStreamsOverHTTP10(t *testing.T) {
	s := start(t)
	s.f.put("orders", "1", "2")
	ask := func(form string) answer {
		_, r := s.raw("GET /v1/topics/orders/partitions/0/records?to=2 HTTP/1.0\r\n" + form + "\r\n\r\n")
		return s.readAnswer(r, "GET")
	}
	for _, form := range []string{asFrames, asBatch} {
		if a := s.want(ask(form), 415, "unsupported_type"); !strings.Contains(a.body, "HTTP/1.1") {
			t.Errorf("%s: %s", form, a.body)
		}
	}
	for _, form := range []string{streamed, asEvents} {
		if a := s.want(ask(form), 200, ""); !strings.Contains(a.body, `{"end":true,"resume_offset":2}`) {
			t.Errorf("%s: %s", form, a.body)
		}
	}
	s.f.runLength = 1
	s.f.readErr = func(next int64) error {
		if next > 0 {
			return errcode.New(errcode.ArchiveUnavailable, "the store is down")
		}
		return nil
	}
	_, r := s.raw("GET /v1/topics/orders/partitions/0/records HTTP/1.0\r\n" + streamed + "\r\n\r\n")
	if b, err := io.ReadAll(r); err != nil || strings.Contains(string(b), `"end"`) {
		t.Errorf("a broken stream: %v %q", err, b)
	}
}

// Who follows gets the head at once, each record when it is there, and the end
// when the server drains, in every form.
func TestFollowInEveryForm(t *testing.T) {
	for form, want := range map[string][3]string{
		streamed: {`{"offset":0,"timestamp_ms":1700000000000,"payload":10}` + "\n", `{"offset":1,"timestamp_ms":1700000000001,"payload":11}` + "\n", `{"end":true,"resume_offset":2}` + "\n"},
		asEvents: {"id: 0\ndata: {\"offset\":0,\"timestamp_ms\":1700000000000,\"payload\":10}\n\n", "id: 1\ndata: {\"offset\":1,\"timestamp_ms\":1700000000001,\"payload\":11}\n\n", "event: end\ndata: {\"end\":true,\"resume_offset\":2}\n\n"},
		asFrames: {"\x00\x00\x00\x29{\"offset\":0,\"timestamp_ms\":1700000000000}\x00\x00\x00\x0210", "\x00\x00\x00\x29{\"offset\":1,\"timestamp_ms\":1700000000001}\x00\x00\x00\x0211", ""},
		asBatch:  {"[0: 10]", "[0: 10 11]", ""},
	} {
		s := start(t)
		_, r := s.raw("GET /v1/topics/orders/partitions/0/records?follow HTTP/1.1\r\nHost: x\r\n" + form + "\r\n\r\n")
		res, err := http.ReadResponse(r, nil)
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("%v %v", res, err)
		}
		for i, value := range []string{"10", "11"} {
			s.f.put("orders", value)
			got := make([]byte, len(want[i]))
			if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != want[i] {
				t.Fatalf("%s: %q %v, want %q", form, got, err, want[i])
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		if err := s.s.Shutdown(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
		rest, err := io.ReadAll(res.Body)
		if err != nil || string(rest) != want[2] {
			t.Errorf("%s: the end is %q %v", form, rest, err)
		}
		if got := res.Trailer.Get("Tidemark-Resume-Offset"); want[2] == "" && got != "2" {
			t.Errorf("%s: trailer %v", form, res.Trailer)
		}
		_ = res.Body.Close()
	}
}

// An event stream that has nothing to say says so, again and again, and its
// comments are no events.
func TestEventStreamStaysAlive(t *testing.T) {
	s := start(t, limits(func(l *Limits) { l.KeepAlive = time.Millisecond }))
	s.f.put("orders", "1")
	nc, r := s.raw("GET /v1/topics/orders/partitions/0/records HTTP/1.1\r\nHost: x\r\n" + asEvents + "\r\n\r\n")
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	defer nc.Close() // else closing the body reads on
	lines := bufio.NewScanner(res.Body)
	comments, ids := 0, ""
	for comments < 6 && lines.Scan() {
		switch line := lines.Text(); {
		case line == ":":
			if comments++; comments == 3 {
				s.f.put("orders", "2")
			}
		case strings.HasPrefix(line, "id: "):
			ids += line[4:]
		}
	}
	if ids != "01" || comments != 6 {
		t.Errorf("events %q between %d comments", ids, comments)
	}
}

// Streams at work are bounded: one more waits its turn, and is 503 when none
// comes; a stream that waits for a record has no turn.
func TestStreamsTakeTurns(t *testing.T) {
	s := start(t, limits(func(l *Limits) { l.Streams, l.WriteStep = 2, 300*time.Millisecond }))
	path := "/v1/topics/orders/partitions/0/records"
	for range 5 { // all of them wait
		s.stream("follow", streamed)
	}
	eventually(t, "nobody has a turn", func() bool { return len(s.s.turns) == 0 })
	s.f.put("orders", "1")
	for range 2 {
		s.s.turns <- struct{}{}
	}
	s.want(s.do("GET", path, "", streamed), 503, "overloaded")
	got := make(chan answer, 1)
	go func() { got <- s.do("GET", path, "", asBatch) }()
	<-s.s.turns
	if a := <-got; a.StatusCode != 200 || a.body != "[0: 1]" {
		t.Errorf("its turn has come: %d %s", a.StatusCode, a.body)
	}
	<-s.s.turns
	eventually(t, "all turns are back", func() bool { return len(s.s.turns) == 0 })
}

// A run over the bound of small answers counts in the budget while it is
// written, and a stream waits for room where a single answer is refused.
func TestStreamsWaitForTheBudget(t *testing.T) {
	s := start(t, limits(func(l *Limits) { l.LargeBodyBytes, l.WriteStep = 3<<20, 10*time.Second }))
	s.f.put("orders", strings.Repeat("x", 2<<20))
	for _, form := range []string{streamed, asFrames, asBatch} {
		s.s.largeBodies.Add(2 << 20)
		got := make(chan answer, 1)
		go func() { got <- s.do("GET", "/v1/topics/orders/partitions/0/records", "", form) }()
		eventually(t, "it waits", func() bool { return len(s.s.turns) == 1 })
		s.s.largeBodies.Add(-2 << 20)
		if a := <-got; a.StatusCode != 200 || len(a.body) < 2<<20 {
			t.Errorf("%s: %d with %d bytes", form, a.StatusCode, len(a.body))
		}
		eventually(t, "nothing is counted any more", func() bool { return s.s.largeBodies.Load() == 0 })
	}
}

// A follower that does not read is dropped after the time for a step, and holds
// no turn then.
func TestSlowFollowerIsDropped(t *testing.T) {
	s := start(t, limits(func(l *Limits) { l.WriteStep = 100 * time.Millisecond }))
	s.stream("follow", streamed)
	value := strings.Repeat("x", 1<<20)
	eventually(t, "it is at work", func() bool {
		s.f.put("orders", value)
		return len(s.s.turns) == 1
	})
	for range 16 { // more than the sockets between them hold
		s.f.put("orders", value)
	}
	eventually(t, "it is gone", func() bool { return s.s.active.Load() == 0 && len(s.s.turns) == 0 })
}

// Leases as frames: one record or many, with all that the JSON form says; they go
// back when the answer is not taken.
func TestConsumeFrames(t *testing.T) {
	s := start(t)
	s.f.append("orders",
		NewRecord{Key: []byte("k"), Value: []byte("{ }"), Headers: []broker.Header{{Name: "h", Value: []byte{1}}}},
		NewRecord{Value: []byte("\xff")},
		NewRecord{Value: []byte("3")})
	one := s.want(s.post("/v1/topics/orders/consume", "", asFrames), 200, "")
	many := s.want(s.post("/v1/topics/orders/consume?max=5", "", asFrames), 200, "")
	replay := s.want(s.do("GET", "/v1/topics/orders/consume?partition=0&offset=1", "", asFrames), 200, "")
	if one.Header.Get("Content-Type") != mediaFrames || one.ContentLength != int64(len(one.body)) {
		t.Errorf("header %v", one.Header)
	}
	for i, c := range []struct {
		body string
		want []shown
	}{
		{one.body, []shown{{`{"topic":"orders","partition":0,"offset":0,"key":"k","timestamp":1700000000,"timestamp_ms":1700000000000,"headers":[{"name":"h","value":"\u0001"}],"delivery_count":1,"receipt_handle":"h-0-0-1"}`, "{ }"}}},
		{many.body, []shown{
			{`{"topic":"orders","partition":0,"offset":1,"timestamp":1700000000,"timestamp_ms":1700000000001,"delivery_count":1,"receipt_handle":"h-0-1-2"}`, "\xff"},
			{`{"topic":"orders","partition":0,"offset":2,"timestamp":1700000000,"timestamp_ms":1700000000002,"delivery_count":1,"receipt_handle":"h-0-2-3"}`, "3"},
		}},
		{replay.body, []shown{{`{"topic":"orders","partition":0,"offset":1,"timestamp":1700000000,"timestamp_ms":1700000000001}`, "\xff"}}},
	} {
		if got := framesOf(t, c.body); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%d: %q, want %q", i, got, c.want)
		}
	}
	s.want(s.post("/v1/topics/orders/consume?max=5", "", asFrames), 204, "")
}

// B84: leases whose answer as frames cannot be written go back at once, and do
// not count.
func TestB84UnwrittenFramesGoBack(t *testing.T) {
	s := start(t, limits(func(l *Limits) { l.WriteStep = 100 * time.Millisecond; l.ConsumeBytes = 64 << 20 }))
	for range 16 {
		s.f.put("orders", strings.Repeat("x", 1<<20))
	}
	nc, _ := s.raw("POST /v1/topics/orders/consume?max=16 HTTP/1.1\r\nHost: x\r\nX-Tidemark-Client: t\r\n" + asFrames + "\r\n\r\n")
	eventually(t, "all go back", func() bool { return s.f.releasedCount() == 16 })
	nc.Close()
	a := s.want(s.post("/v1/topics/orders/consume", "", asFrames), 200, "")
	if !strings.Contains(a.body, `"delivery_count":1`) {
		t.Error("the delivery that did not arrive was counted")
	}
}
