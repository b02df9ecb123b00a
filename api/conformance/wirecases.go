package conformance

import (
	"fmt"
	"strings"
	"time"

	"github.com/tidemark-mq/tidemark/api"
)

// wireCases: what stands on the connection, byte by byte.
func wireCases(l api.Limits) []Case {
	const path = "/v1/topics/{t}/produce?partition=0&ack=committed"
	stored := func(value string) Step {
		return get("/v1/topics/{t}/consume?partition=0&offset=0", "Accept: application/octet-stream").is(200).exactly(value)
	}
	nothing := get("/v1/topics/{t}/partitions/0/records").is(200).field("high_watermark", "0")
	var pipelined strings.Builder
	answered := Talk{act{}}
	for i := range 20 {
		pipelined.WriteString(head1("POST", path, "Content-Length: 2") + fmt.Sprintf("%02d", i))
		answered = append(answered, answers("POST", ok(200).field("offset", fmt.Sprint(i))))
	}
	answered[0] = writes(pipelined.String())
	cases := []Case{
		{
			Rule: "Expect: 100-continue is answered before the body comes",
			Steps: steps(
				Talk{writes(head1("POST", path, "Expect: 100-continue", "Content-Length: 5")), answers("POST", ok(100)), writes("value"), answers("POST", ok(200))},
				stored("value"),
				post("/v1/topics/{t}/produce", "value", "Expect: 100-continue").is(202),
			),
		},
		{
			Rule: "a refusal comes instead of 100 Continue", Reports: []string{"B21"},
			Steps: steps(
				Talk{writes(head1("POST", "/v1/topics/{t}-none/produce", "Expect: 100-continue", "Content-Length: 5")), answers("POST", refused(404, "not_found"))},
				Talk{writes(head1("POST", path, "Expect: 100-continue", fmt.Sprintf("Content-Length: %d", l.RecordBytes+1))), answers("POST", refused(413, "too_large")), ends()},
				Talk{writes(head1("POST", path, "Expect: something-else", "Content-Length: 5") + "value"), answers("POST", refused(417, "invalid_argument")), ends()},
				nothing,
			),
		},
		{
			Rule: "chunked bodies are stored whole, or not at all",
			Steps: steps(
				Talk{writes(head1("POST", path, "Transfer-Encoding: chunked") + "2\r\nab\r\n1;ext=1\r\nc\r\n0\r\nTrailer: x\r\n\r\n"), answers("POST", ok(200))},
				stored("abc"),
				Talk{writes(head1("POST", path, "Transfer-Encoding: chunked") + "zz\r\n"), answers("POST", refused(400, "invalid_argument")), ends()},
				Talk{writes(head1("POST", path, "Transfer-Encoding: chunked") + "5\r\nab"), halfCloses(), answers("POST", refused(408, "canceled")), ends()},
				Talk{writes(head1("POST", path, "Transfer-Encoding: chunked") + "2\r\nabc\r\n"), answers("POST", refused(400, "invalid_argument")), ends()},
				get("/v1/topics/{t}/partitions/0/records").is(200).field("high_watermark", "1"),
			),
		},
		{
			Rule: "a body that breaks off is not stored",
			Steps: steps(
				Talk{writes(head1("POST", path, "Content-Length: 1000") + "abc"), halfCloses(), answers("POST", refused(408, "canceled")), ends()},
				nothing,
			),
		},
		{
			Rule: "HTTP 1.0 is served, and keeps its connection when it asks to", Reports: []string{"B27"},
			Steps: steps(
				produce(fill(4<<10)),
				Talk{
					writes("GET /v1/topics/{t}/consume?partition=0 HTTP/1.0\r\nConnection: keep-alive\r\n{auth}\r\n"), answers("GET", ok(200).field("delivery_count", "1").says(fill(4<<10))),
					writes("GET /v1/topics/{t}/consume?partition=0 HTTP/1.0\r\nConnection: keep-alive\r\n{auth}\r\n"), answers("GET", ok(204)),
					writes("GET /healthz HTTP/1.0\r\n\r\n"), answers("GET", ok(200)), ends(),
				},
				Talk{writes("POST /v1/topics/{t}/produce HTTP/1.0\r\nContent-Length: 1\r\n" + client + "\r\n{auth}\r\nx"), answers("POST", ok(202)), ends()},
			),
		},
		{
			Rule:  "pipelined requests are answered in order",
			Steps: steps(answered),
		},
		{
			Rule: "a client that has closed its sending side gets its answers",
			Steps: steps(
				Talk{writes(head1("POST", path, "Content-Length: 1") + "x"), halfCloses(), answers("POST", ok(200)), ends()},
				Talk{writes(head1("GET", "/v1/topics/{t}/consume?partition=0")), halfCloses(), answers("GET", ok(200).field("delivery_count", "1")), ends()},
				Talk{writes(head1("GET", "/v1/topics/{t}/partitions/0/records")), halfCloses(), answers("GET", ok(200)), ends()},
				Talk{writes(head1("GET", "/v1/topics/{t}/partitions/0/records", "Accept: application/x-ndjson")), answers("GET", ok(200).says(`"end":true`))},
			),
		},
		{
			Rule: "one that has closed it while it waits takes nothing with it",
			Steps: steps(
				Talk{writes(head1("GET", "/v1/topics/{t}/consume?wait=10s")), halfCloses(), endsAfter("GET", ok(204))},
				produce("x"),
				get("/v1/topics/{t}/consume").is(200).field("delivery_count", "1"),
			),
		},
		{
			Rule: "what is no HTTP is an error in JSON, and closed", Differs: "errors-json",
			Steps: steps(
				Talk{writes("NONSENSE\r\n\r\n"), answers("GET", refused(400, "invalid_argument")), ends()},
				Talk{writes("GET /healthz HTTP/1.1\r\n\r\n"), answers("GET", refused(400, "invalid_argument")), ends()},
				Talk{writes("GET /healthz HTTP/1.1\r\nHost: x\r\nBad Header: 1\r\n\r\n"), answers("GET", refused(400, "invalid_argument")), ends()},
				Talk{writes("GET /healthz HTTP/9.9\r\nHost: x\r\n\r\n"), answers("GET", refused(505, "invalid_argument")), ends()},
				Talk{writes("GET /healthz%zz HTTP/1.1\r\nHost: x\r\n\r\n"), answers("GET", refused(400, "invalid_argument")), ends()},
				Talk{writes("POST /v1/topics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n"), answers("POST", refused(501, "unsupported_type")), ends()},
				Talk{writes("POST /v1/topics HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"), answers("POST", refused(400, "invalid_argument")), ends()},
				Talk{writes("POST /v1/topics HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n"), answers("POST", refused(400, "invalid_argument")), ends()},
				Talk{writes("\xff\xfe /v1/topics HTTP/1.1\r\nHost: x\r\n\r\n"), answers("GET", refused(400, "invalid_argument")), ends()},
			),
		},
		{
			Rule: "a client that is still sending when it is refused can read why", Reports: []string{"B24"},
			Steps: steps(
				Talk{writes(head1("POST", path, fmt.Sprintf("Content-Length: %d", l.RecordBytes+4<<20))), pours(l.RecordBytes + 4<<20), answers("POST", refused(413, "too_large")), ends()},
				post(path, fill(l.RecordBytes+4<<20)).fails(413, "too_large").field("limit", fmt.Sprint(l.RecordBytes)),
				post(path, fill(l.RecordBytes+4<<20)).inChunks().fails(413, "too_large"),
				nothing,
			),
		},
		{
			Rule: "giant headers and URLs have a status", Reports: []string{"B26"},
			Steps: steps(
				Talk{writes("GET /healthz HTTP/1.1\r\nHost: x\r\nX-Big: " + fill(2<<20) + "\r\n\r\n"), answers("GET", refused(431, "header_too_large")), ends()},
				Talk{writes("POST /v1/topics/x/produce?key=" + fill(int64(l.HeaderBytes)) + " HTTP/1.1\r\nHost: x\r\n\r\n"), answers("GET", refused(431, "header_too_large")), ends()},
				get("/healthz").is(200),
			),
		},
	}
	return append(cases, slowCases(l)...)
}

// slowCases: clients that do not send what they began. Each takes as long as
// its bound.
func slowCases(l api.Limits) []Case {
	const path = "/v1/topics/{t}/produce?partition=0"
	if l.HeaderTime+l.BodyStep > stepMax/2 {
		return nil // the node is more patient than the suite
	}
	var silent Beside
	for range 20 {
		silent = append(silent, Talk{writes(head1("POST", path, "Expect: 100-continue", "Content-Length: 1000")), answers("POST", ok(100)), answers("POST", refused(408, "canceled")), ends()})
	}
	for _, head := range []string{"GET /healthz", "DELETE /v1/topics/{t}", "OPTIONS /v1/topics", "GET /nowhere"} {
		method, at, _ := strings.Cut(head, " ")
		silent = append(silent, Talk{writes(head1(method, at, "Transfer-Encoding: chunked")), act{method: method, want: &expectation{status: slowStatus(head)}}, ends()})
	}
	return []Case{
		{Rule: "a body that stops arriving is 408", Reports: []string{"B21"}, Steps: steps(silent, get("/v1/topics/{t}/consume").is(204))},
		{
			Rule: "headers that stop arriving end the connection, and others do not notice", Reports: []string{"B22"},
			Steps: steps(Beside{
				// Half a line may be answered as a whole one that is wrong.
				Talk{writes("POST /v1/topics/{t}/pro"), endsAfter("POST", refused(400, "invalid_argument"))}, Talk{writes("GET"), endsAfter("GET", refused(400, "invalid_argument"))},
				Talk{writes("GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: a"), ends()},
				produce("x"),
			}, get("/v1/topics/{t}/consume").is(200)),
		},
		{
			Rule:  fmt.Sprintf("a connection is kept for its next request, until it was idle for %v", l.IdleTime.Round(time.Second)),
			Steps: steps(Talk{writes(head1("GET", "/healthz")), answers("GET", ok(200)), writes(head1("GET", "/healthz")), answers("GET", ok(200))}),
		},
	}
}

// slowStatus is what a request whose body never comes is answered: where the
// route is not served, the body is not waited for.
func slowStatus(head string) int {
	switch {
	case strings.HasPrefix(head, "OPTIONS"):
		return 204
	case strings.HasSuffix(head, "/nowhere"):
		return 404
	default:
		return 408
	}
}
