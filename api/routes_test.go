package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// B01: an encoded slash stays inside its segment: it is refused as a name and
// never reaches another route, and a name is unescaped exactly once.
func TestB01EncodedSlashIsNoSeparator(t *testing.T) {
	s := start(t)
	s.f.topic("a", 1)
	s.f.put("a", "x")
	for _, path := range []string{
		"/v1/topics/a%2Fb/produce", "/v1/topics/a%2fconsume/produce", "/v1/topics/..%2Fa/produce", "/v1/topics/a%252Fb/produce",
		"/v1/topics/%2e%2e/produce", "/v1/topics/a%00/produce", "/v1/topics/a%20b/produce", "/v1/topics/%C3%28/produce", "/v1/topics//produce",
	} {
		s.want(s.post(path, "stored?"), 400, "invalid_argument")
	}
	s.want(s.do("GET", "/v1/topics/a%2Fconsume", ""), 400, "invalid_argument")
	s.want(s.do("GET", "/v1/topics//consume", ""), 400, "invalid_argument")
	s.want(s.do("GET", "/v1/topics/a/partitions/0%2Frecords", ""), 404, "not_found")
	if n := s.f.count("a"); n != 1 {
		t.Fatalf("topic a has %d records, want the 1 it had", n)
	}
	s.want(s.post("/v1/topics/%61/produce", "by its escaped name"), 202, "")
	if n := s.f.count("a"); n != 2 {
		t.Fatalf("%%61 is a, but it has %d records", n)
	}
}

// B03, B05: one trailing slash means nothing, more are another path, and
// nothing is ever redirected, so that no body is lost on the way.
func TestB03TrailingSlashIsServed(t *testing.T) {
	s := start(t)
	s.c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	s.want(s.post("/v1/topics/orders/produce/", "x"), 202, "")
	if n := s.f.count("orders"); n != 1 {
		t.Fatalf("%d records, want 1", n)
	}
	s.want(s.do("GET", "/v1/topics/", ""), 200, "")
	s.want(s.do("GET", "/healthz/", ""), 200, "")
	for _, path := range []string{"/v1/topics/orders/produce//", "//v1/topics/orders/produce", "/V1/topics/orders/produce", "/v1/topics/orders/./produce", "/v1//topics", "/", ""} {
		s.want(s.post(path, "x"), 404, "not_found")
	}
	for _, path := range []string{"/v1/topics/orders/produce", "/v1/topics/orders/produce/"} {
		a := s.want(s.do("OPTIONS", path, "", "Origin: https://evil.example", "Access-Control-Request-Method: POST"), 204, "")
		for name := range a.Header {
			if strings.HasPrefix(name, "Access-Control") {
				t.Fatalf("CORS is approved by %s", name)
			}
		}
		if a.Header.Get("Allow") != "POST, OPTIONS" {
			t.Fatalf("Allow %q", a.Header.Get("Allow"))
		}
	}
	s.want(s.do("OPTIONS", "/nowhere", ""), 404, "not_found")
}

// OPTIONS * is about the server, and HTTP knows it without a path.
func TestOptionsStar(t *testing.T) {
	s := start(t)
	_, r := s.raw("OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	a := s.readAnswer(r, "OPTIONS")
	if a.StatusCode != 204 || a.Header.Get("Allow") != "DELETE, GET, HEAD, PATCH, POST, OPTIONS" {
		t.Fatalf("%d %v", a.StatusCode, a.Header)
	}
}

// B06: a wrong method on a path that exists is 405 with the real ones; HEAD is
// served exactly where GET has no effect.
func TestB06WrongMethod(t *testing.T) {
	s := start(t)
	for _, c := range []struct{ method, path, allow string }{
		{"PUT", "/v1/topics/orders", "DELETE, GET, HEAD, PATCH, OPTIONS"},
		{"PATCH", "/v1/topics/orders/produce", "POST, OPTIONS"},
		{"GET", "/v1/topics/orders/produce", "POST, OPTIONS"},
		{"HEAD", "/v1/topics/orders/consume", "GET, POST, OPTIONS"},
		{"PUT", "/v1/topics", "GET, HEAD, POST, OPTIONS"},
		{"DELETE", "/healthz", "GET, HEAD, OPTIONS"},
		{"POST", "/v1/topics/orders/partitions/0/records", "GET, HEAD, OPTIONS"},
		{"BREW", "/v1/topics/orders/ack", "POST, OPTIONS"},
	} {
		a := s.want(s.do(c.method, c.path, "", "X-Tidemark-Client: t"), 405, "method_not_allowed")
		if a.Header.Get("Allow") != c.allow {
			t.Errorf("%s %s: Allow %q, want %q", c.method, c.path, a.Header.Get("Allow"), c.allow)
		}
	}
	s.want(s.do("PATCH", "/v1/nothing", ""), 404, "not_found")
	for _, path := range []string{"/v1/topics", "/v1/topics/orders", "/v1/topics/orders/partitions/0/records", "/v1/topics/orders/partitions/0/offset?at=0", "/healthz", "/readyz", "/metrics"} {
		if a := s.want(s.do("HEAD", path, ""), 200, ""); a.body != "" {
			t.Errorf("HEAD %s has a body", path)
		}
	}
	a := s.want(s.do("HEAD", "/v1/topics/orders/partitions/0/records", "", "Accept: application/x-ndjson"), 200, "")
	if a.Header.Get("Content-Type") != mediaNDJSON {
		t.Errorf("HEAD of a stream: %v", a.Header)
	}
}

// What a later build has is refused by its name, never ignored.
func TestLaterFeaturesAreNamed(t *testing.T) {
	s := start(t)
	for _, c := range []struct {
		a      answer
		status int
		names  string
	}{
		{s.post("/v1/topics/orders/produce?delay=3s", "x"), 400, "delay"},
		{s.post("/v1/topics/orders/produce?deliver_at=2027-01-01T00:00:00Z", "x"), 400, "deliver_at"},
		{s.post("/v1/topics/orders/produce/batch?delay=3s", "x"), 400, "delay"},
		{s.post("/v1/topics/orders/produce", "x", "Idempotency-Key: 1"), 400, "Idempotency-Key"},
		{s.post("/v1/topics/orders/produce/batch", "x", "Idempotency-Key: 1", "Content-Type: application/json"), 400, "Idempotency-Key"},
		{s.post("/v1/topics", `{"name":"x","schema":{}}`), 400, "schema"},
		{s.post("/v1/topics", `{"name":"x","parent":"orders"}`), 400, "parent"},
		{s.post("/v1/topics", `{"name":"x","max_deliveries":3}`), 400, "max_deliveries"},
		{s.post("/v1/topics/orders/children", `{}`), 404, "children"},
		{s.do("GET", "/v1/topics/orders/groups/g", ""), 404, "groups"},
		{s.do("GET", "/v1/topics/orders/schema", ""), 404, "schemas"},
		{s.do("GET", "/v1/users", ""), 404, "users"},
		{s.do("GET", "/v1/cluster/members", ""), 404, "cluster"},
		{s.do("GET", "/v1/archive/snapshots", ""), 404, "snapshots"},
		{s.do("PATCH", "/v1/topics/orders", `{"schema":{}}`, "Content-Type: application/json"), 400, "schema"},
		{s.post("/v1/topics/orders/consume?group=billing", ""), 400, "billing"},
		{s.post("/v1/topics/orders/consume?start=latest", ""), 400, "start"},
		{s.post("/v1/topics/orders/ack?receipt_handle=h&group=billing", ""), 400, "billing"},
		{s.post("/v1/topics/orders/ack?receipt_handle=h&action=dead_letter", ""), 400, "dead_letter"},
		{s.post("/v1/topics/orders/produce/batch", `{"messages":[{"payload":1,"delay":"3s"}]}`, "Content-Type: application/json"), 400, "delay"},
		{s.do("GET", "/v1/topics/orders/consume", "", "Accept: application/vnd.kafka.record-batch"), 415, "record-batch"},
		{s.do("GET", "/v1/topics/orders/consume", "", "Accept: text/event-stream"), 415, "event-stream"},
	} {
		s.want(c.a, c.status, "")
		if !strings.Contains(c.a.body, "not in this build") || !strings.Contains(c.a.body, c.names) {
			t.Errorf("%s %s: %s", c.a.Request.Method, c.a.Request.URL, c.a.body)
		}
	}
	if s.f.produces != 0 {
		t.Fatalf("%d produces reached the broker", s.f.produces)
	}
}

// B11: each content type has one documented answer, and what is accepted is
// stored byte for byte; a type that says something is kept as a header.
func TestB11ContentTypes(t *testing.T) {
	s := start(t)
	const body = `{"a": 1}`
	for _, c := range []struct {
		headers []string
		status  int
		kept    string
	}{
		{nil, 415, ""},
		{[]string{"Content-Type: text/plain"}, 415, ""},
		{[]string{"Content-Type: multipart/form-data; boundary=x"}, 415, ""},
		{[]string{"Content-Type: application/json"}, 202, ""},
		{[]string{"Content-Type: application/json; charset=UTF-8"}, 202, ""},
		{[]string{"Content-Type: APPLICATION/JSON"}, 202, ""},
		{[]string{"Content-Type: application/octet-stream"}, 202, ""},
		{[]string{"Content-Type: application/x-ndjson"}, 202, "application/x-ndjson"},
		{[]string{"X-Tidemark-Client: curl"}, 202, ""},
		{[]string{"X-Narad-Client: go"}, 202, ""},
		{[]string{"X-Tidemark-Client: curl", "Content-Type: text/plain; charset=latin1"}, 202, "text/plain; charset=latin1"},
		{[]string{"Content-Type: text/plain", "Content-Type: application/json"}, 400, ""},
	} {
		before := len(s.f.stored("orders", 0))
		s.want(s.do("POST", "/v1/topics/orders/produce?partition=0", body, c.headers...), c.status, "")
		got := s.f.stored("orders", 0)[before:]
		if c.status != 202 {
			if len(got) != 0 {
				t.Errorf("%v: stored although refused", c.headers)
			}
			continue
		}
		if len(got) != 1 || string(got[0].Value) != body {
			t.Errorf("%v: stored %v", c.headers, got)
		}
		kept := ""
		for _, h := range got[0].Headers {
			kept += h.Name + "=" + string(h.Value)
		}
		if c.kept != "" {
			c.kept = "content-type=" + c.kept
		}
		if kept != c.kept {
			t.Errorf("%v: record headers %q, want %q", c.headers, kept, c.kept)
		}
	}
}

// B12: a form is never parsed: it is refused, or stored as it is.
func TestB12FormBodiesStayBytes(t *testing.T) {
	s := start(t)
	const form = "key=value&x=%41"
	s.want(s.do("POST", "/v1/topics/orders/produce?partition=0", form, "Content-Type: application/x-www-form-urlencoded"), 415, "unsupported_type")
	s.want(s.post("/v1/topics/orders/produce?partition=0", form, "Content-Type: application/x-www-form-urlencoded"), 202, "")
	got := s.f.stored("orders", 0)
	if len(got) != 1 || string(got[0].Value) != form || got[0].Key != nil {
		t.Fatalf("stored %+v", got)
	}
}

// B14: a query that another reader could take differently is refused.
func TestB14StrictQuery(t *testing.T) {
	s := start(t)
	for _, q := range []string{
		"key=a;b", "key=a;partition=0", "partition=0;x", "key=%zz", "key=%", "%gg=1", "key=a&key=b", "Key=a", "unknown=1",
		"partition=", "partition=-1", "partition=3", "partition=1e0", "partition=+1", "partition=%201", "partition=99999999999999999999",
		"ack=", "ack=durable", "wait=5", "wait=-1s", "wait=31s", "wait=1e3", "key_field=/a", "offset=1",
	} {
		s.want(s.post("/v1/topics/orders/produce?"+q, "x"), 400, "invalid_argument")
	}
	for _, q := range []string{"partition=0;x", "max=0", "max=101", "max=a", "wait=x", "partition=7", "offset=1", "from=1"} {
		s.want(s.post("/v1/topics/orders/consume?"+q, ""), 400, "invalid_argument")
	}
	for _, path := range []string{"/v1/topics?limit=0", "/v1/topics?limit=1001", "/v1/topics?page_token=!", "/v1/topics?x", "/v1/topics/orders?partition=3", "/healthz?x=1", "/readyz?x"} {
		s.want(s.do("GET", path, ""), 400, "invalid_argument")
	}
	s.want(s.do("DELETE", "/v1/topics/orders?force=maybe", ""), 400, "invalid_argument")
	if n := s.f.count("orders"); n != 0 {
		t.Fatalf("%d records were stored", n)
	}
	s.want(s.post("/v1/topics/orders/produce?&key=a%3Bb%26+c&&partition=0&", "x"), 202, "")
	if got := s.f.stored("orders", 0); string(got[0].Key) != "a;b& c" {
		t.Fatalf("key %q", got[0].Key)
	}
}

// withUser turns authentication on.
func withUser(o *Options) {
	o.Authenticate = func(user, password string) (string, bool) { return user, user == "ann" && password == "secret" }
}

// B237, B238: credentials come first: without them nothing is routed, decoded,
// inflated or read, on any path; only the two probes are open.
func TestB237CredentialsFirst(t *testing.T) {
	s := start(t, withUser)
	huge := "{}" + strings.Repeat("[", 1<<20)
	for _, path := range []string{"/v1/topics", "/v1/topics/orders/produce", "/v1/topics/orders/produce/batch", "/v1/topics/a%2Fb/produce", "/nowhere", "/metrics", "/v1/topics?broken;"} {
		for _, headers := range [][]string{
			{"Content-Type: application/json"},
			{"Content-Type: text/plain"},
			{"Content-Type: application/json", "Content-Encoding: gzip"},
		} {
			a := s.want(s.do("POST", path, huge, headers...), 401, "unauthorized")
			if a.Header.Get("Www-Authenticate") != `Basic realm="tidemark"` {
				t.Fatalf("%s: no challenge", path)
			}
		}
	}
	s.want(s.do("OPTIONS", "/v1/topics", ""), 401, "unauthorized")
	s.want(s.do("GET", "/v1/topics", "", "Authorization: Basic !!"), 401, "unauthorized")
	s.want(s.do("GET", "/v1/topics", "", "Authorization: Bearer x"), 401, "unauthorized")
	s.want(s.do("GET", "/healthz", ""), 200, "")
	s.want(s.do("GET", "/readyz", ""), 200, "")
	req, _ := http.NewRequest("POST", "http://"+s.addr+"/v1/topics/orders/produce", strings.NewReader("x"))
	req.SetBasicAuth("ann", "secret")
	s.want(s.send(req), 415, "unsupported_type") // authenticated, so the guard speaks
	if got := s.s.metrics; got == nil || s.f.produces != 0 {
		t.Fatal("something was produced")
	}
	s.c.CloseIdleConnections()
}

// The guard for consumes: a GET with max needs a program's header, a page of
// another site is refused, and a POST needs what every POST needs.
func TestConsumeGuard(t *testing.T) {
	s := start(t)
	s.f.put("orders", "x")
	s.want(s.do("GET", "/v1/topics/orders/consume?max=1", ""), 400, "invalid_argument")
	s.want(s.do("GET", "/v1/topics/orders/consume", "", "Sec-Fetch-Site: cross-site"), 403, "denied")
	s.want(s.do("GET", "/v1/topics/orders/consume?max=1", "", "Sec-Fetch-Site: cross-site", "X-Tidemark-Client: t"), 403, "denied")
	s.want(s.do("POST", "/v1/topics/orders/consume", ""), 415, "unsupported_type")
	s.want(s.do("POST", "/v1/topics/orders/ack?receipt_handle=x", ""), 415, "unsupported_type")
	s.want(s.do("GET", "/v1/topics/orders/consume?max=1", "", "X-Narad-Client: t"), 200, "")
}

// B242: nothing that a client sends becomes a label, and /metrics parses.
func TestB242BoundedLabels(t *testing.T) {
	s := start(t)
	for _, line := range []string{
		"\xff\xfe /v1/topics HTTP/1.1", "GET /\xc0\xaf HTTP/1.1", strings.Repeat("M", 1024) + " /v1/topics HTTP/1.1", "BREW /v1/topics/orders HTTP/1.1",
		"GET /v1/topics/\xc3\x28 HTTP/1.1", "GET /v1/topics/%C0%AF HTTP/1.1", "CONNECT example.com:80 HTTP/1.1",
	} {
		_, r := s.raw(line + "\r\nHost: x\r\nConnection: close\r\n\r\n")
		if a := s.readAnswer(r, "GET"); a.StatusCode < 400 || strings.HasPrefix(a.code(), "no JSON") {
			t.Errorf("%.30q: %d %s", line, a.StatusCode, a.body)
		}
	}
	body := s.want(s.do("GET", "/metrics", ""), 200, "").body
	if strings.Contains(body, "BREW") || strings.Contains(body, "MMMM") || strings.Contains(body, `\x`) {
		t.Fatal("a method of a client became a label")
	}
	if got := s.metric(`tidemark_http_requests_total{method="other",route="other",status="4xx"}`); got == "" || got == "0" {
		t.Fatalf("unrouted requests: %q", got)
	}
}

// A panic in a handler is one answer, one log entry and one count; the server
// goes on.
func TestPanicIsAnswered(t *testing.T) {
	s := start(t)
	s.f.produceHook = func(context.Context, ProduceRequest) { panic("boom") }
	a := s.want(s.post("/v1/topics/orders/produce", "x"), 500, "internal")
	if strings.Contains(a.body, "boom") {
		t.Error("the panic's text went to the client")
	}
	s.f.produceHook = nil
	s.want(s.post("/v1/topics/orders/produce", "x"), 202, "")
	if n := strings.Count(s.log.String(), "boom"); n != 1 {
		t.Errorf("logged %d times", n)
	}
	if got := s.metric("tidemark_http_panics_total"); got != "1" {
		t.Errorf("counted %q", got)
	}
}

// Every code has a status, waiting classes say how long, and facts stand in
// the error object without replacing its own fields.
func TestErrorsSayWhatHelps(t *testing.T) {
	s := start(t)
	for _, c := range []struct {
		err    error
		status int
		after  string
	}{
		{errcode.New(errcode.Storage, "the disk is full"), 503, "1"},
		{errcode.New(errcode.Poisoned, "fsync failed"), 503, "1"},
		{errcode.New(errcode.NotConfirmed, "waited"), 504, ""},
		{errcode.New(errcode.TooMany, "slow down").After(2500 * 1e6), 429, "3"},
		{errcode.New(errcode.Conflict, "no").With("error", "mine").With("blocked_at", 7), 409, ""},
		{errcode.New(errcode.ArchiveUnavailable, "no store"), 503, "1"},
		{fmt.Errorf("plain: %w", io.ErrUnexpectedEOF), 500, ""},
	} {
		s.f.produceErr = c.err
		a := s.want(s.post("/v1/topics/orders/produce?ack=committed&partition=1", "x"), c.status, errcode.Of(c.err).String())
		if a.Header.Get("Retry-After") != c.after {
			t.Errorf("%v: Retry-After %q, want %q", c.err, a.Header.Get("Retry-After"), c.after)
		}
		if c.status == 409 && !strings.Contains(a.body, `"error":"no","code":"conflict","retry":"never","blocked_at":7,`) {
			t.Errorf("facts: %s", a.body)
		}
		if c.status == 504 && !strings.Contains(a.body, `"retry":"unknown","offset":2,"partition":1,"topic":"orders"`) {
			t.Errorf("where it may stand: %s", a.body)
		}
	}
	if n := strings.Count(s.log.String(), "level=ERROR"); n != 1 {
		t.Errorf("%d errors logged, want the one that nobody classified: %s", n, s.log)
	}
}

// Topics: pages with tokens, strict bodies, and what the probes say.
func TestTopicsAndProbes(t *testing.T) {
	s := start(t)
	for i := range 5 {
		s.want(s.do("POST", "/v1/topics", fmt.Sprintf(`{"name":"t%d"}`, i), "Content-Type: application/json"), 201, "")
	}
	seen, path := "", "/v1/topics?limit=2"
	for path != "" {
		a := s.want(s.do("GET", path, ""), 200, "")
		for _, part := range strings.Split(a.body, `"name":"`)[1:] {
			seen += part[:strings.IndexByte(part, '"')] + " "
		}
		_, token, more := strings.Cut(a.body, `"next_page_token":"`)
		path = ""
		if more {
			path = "/v1/topics?limit=2&page_token=" + token[:strings.IndexByte(token, '"')]
		}
	}
	if seen != "orders t0 t1 t2 t3 t4 " {
		t.Fatalf("pages: %s", seen)
	}
	for _, body := range []string{
		"", " ", "[]", `"x"`, "{", `{"name":"a"}{}`, `{"name":"a"} x`, `{"name":"a","name":"b"}`, `{"Name":"a"}`, `{"name":"a","nope":1}`,
		`{"name":"a","partitions":"3"}`, `{"name":"a","partitions":1e999999999}`, `{"name":"a","partitions":-1}`, `{"name":"a","partitions":0}`, `{"name":1}`,
		`{"name":"a/b"}`, `{"name":""}`, `{}`, `{"name":".."}`, "{\"name\":\"\xc3\x28\"}", `{"name":"a","x` + "\xff" + `":1}`, `{"name":"a",}`, `{"name":"` + strings.Repeat("a", 201) + `"}`,
	} {
		s.want(s.do("POST", "/v1/topics", body, "Content-Type: application/json"), 400, "invalid_argument")
	}
	s.want(s.do("POST", "/v1/topics", `{"name":"ORDERS"}`, "Content-Type: application/json"), 409, "exists")
	a := s.want(s.do("GET", "/v1/topics/orders?partition=1", ""), 200, "")
	if strings.Count(a.body, `"index":`) != 1 || !strings.Contains(a.body, `"index":1`) {
		t.Errorf("one partition: %s", a.body)
	}
	s.want(s.do("GET", "/v1/topics/none", ""), 404, "not_found")
	s.f.mu.Lock()
	s.f.readiness = Readiness{Degraded: []string{"no leader"}}
	s.f.mu.Unlock()
	if a := s.want(s.do("GET", "/readyz", ""), 503, ""); !strings.Contains(a.body, `"ready":false`) || !strings.Contains(a.body, "no leader") {
		t.Errorf("readyz: %s", a.body)
	}
	s.want(s.do("GET", "/healthz", ""), 200, "")
}
