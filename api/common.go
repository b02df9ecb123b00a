package api

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"time"
)

// A common request is what nearly all are: a POST below /v1/topics/ that came in one
// piece, with headers that only the handlers look at. Around the handler of such a
// request net/http spends more than the handler itself: a goroutine that watches, a
// context, header maps, two buffers. So its connection answers it, inside the read by
// which net/http waits for the next request, through the same [Server.ServeHTTP].
//
// Requests are taken whole or not at all: what is not common, or not there to its last
// byte, goes to net/http as it came. The first request of a connection does too; so
// net/http knows the connection as one that rests between two requests.
type common struct {
	r      *http.Request
	url    url.URL
	header http.Header
	values [commonHeaders]string // of header
	body   wholeBody
	w      commonWriter
}

const (
	// readAhead is how much net/http asks for when it has nothing of a request yet. With
	// another size no request would be common.
	readAhead = 4096
	// commonHeaders is the most that a common request has.
	commonHeaders = 24
	commonStart   = "POST /v1/topics/"
)

// phase is what net/http does with a connection, as far as that can be seen: it says
// that the connection rests, sets the deadline of the rest, reads, and sets the next
// deadline. Only its goroutine of the connection changes it.
type phase uint8

const (
	inRequest phase = iota
	answered        // it said that the connection rests
	waits           // for the next request
)

// noticeRest is called by net/http when the state of a connection changes.
func noticeRest(nc net.Conn, state http.ConnState) {
	if c, ok := nc.(*conn); ok && state == http.StateIdle {
		c.phase = answered
	}
}

// readNext reads until there is something for net/http, and answers what is not. b has
// readAhead bytes, so net/http has nothing of the next request.
func (c *conn) readNext(b []byte) (int, error) {
	for {
		n, err := c.readOn(b)
		if err != nil || !c.common(b[:n]) {
			return n, err
		}
		if err := c.answerCommon(); err != nil {
			return 0, err
		}
	}
}

// common reports whether b is a common request, and prepares its answer.
func (c *conn) common(b []byte) bool {
	s := c.l.server
	select {
	case <-s.draining.Done():
		return false // net/http knows what to do
	default:
	}
	if !bytes.HasPrefix(b, []byte(commonStart)) {
		return false
	}
	if c.requests == nil {
		c.requests = newCommon(withConn(s.base, c), c)
	}
	return c.requests.parse(b)
}

// answerCommon answers the request that was parsed. An error ends the connection.
func (c *conn) answerCommon() error {
	q := c.requests
	if !c.turn.CompareAndSwap(resting, serving) {
		return net.ErrClosed
	}
	c.reads.want.Store(0)
	keep := q.serve(c.l.server)
	c.reads.want.Store(sinceEpoch(q.w.at.Add(c.l.limits.IdleTime)))
	if !c.turn.CompareAndSwap(serving, resting) {
		c.l.server.late.left(c)
		return net.ErrClosed
	}
	if !keep {
		return net.ErrClosed // net/http closes it
	}
	return nil
}

func newCommon(ctx context.Context, c *conn) *common {
	q := &common{header: make(http.Header)}
	r := http.Request{Method: http.MethodPost, URL: &q.url, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: q.header}
	q.r = r.WithContext(ctx)
	q.w = commonWriter{c: c, header: make(http.Header)}
	return q
}

// serve calls the handlers and reports whether the connection takes more requests.
func (q *common) serve(s *Server) (keep bool) {
	defer func() {
		if p := recover(); p != nil && !isAbort(p) {
			panic(p)
		}
	}()
	q.w.reset()
	s.ServeHTTP(&q.w, q.r)
	return q.w.end() == nil && !q.w.closes
}

// parse makes b the request, and reports whether it is a common one. What it takes,
// net/http would have read in the same way: it is stricter wherever that is lenient.
func (q *common) parse(b []byte) bool {
	end := bytes.Index(b, []byte("\r\n\r\n"))
	if end < 0 {
		return false
	}
	head := string(b[:end+2]) // everything below points into it
	line, head, _ := strings.Cut(head, "\r\n")
	target, version, _ := strings.Cut(line[len("POST "):], " ")
	if version != "HTTP/1.1" || !q.target(target) {
		return false
	}
	clear(q.header)
	q.r.Host, q.r.ContentLength = "", -1
	for n := 0; head != ""; n++ {
		line, head, _ = strings.Cut(head, "\r\n")
		name, value, ok := strings.Cut(line, ":")
		if !ok || n == commonHeaders || !q.field(n, name, strings.Trim(value, " ")) {
			return false
		}
	}
	q.r.ContentLength = max(0, q.r.ContentLength)
	q.body.b = b[end+4:]
	q.r.Body = &q.body
	if len(q.body.b) == 0 {
		q.r.Body = http.NoBody
	}
	return q.r.Host != "" && q.r.ContentLength == int64(len(q.body.b))
}

// target takes a path without escapes, and a query.
func (q *common) target(text string) bool {
	path, query, _ := strings.Cut(text, "?")
	for i := range len(path) {
		if c := path[i]; c != '/' && !tokenByte(c) {
			return false
		}
	}
	for i := range len(query) {
		if c := query[i]; c <= ' ' || c > '~' || c == '#' {
			return false
		}
	}
	q.url.Path, q.url.RawQuery, q.r.RequestURI = path, query, text
	return true
}

// tokenByte reports whether c stands for itself in paths and in names of headers.
func tokenByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || isDigit(c) || c == '-' || c == '_' || c == '.'
}

// field takes header number n.
func (q *common) field(n int, name, value string) bool {
	for i := range len(value) {
		if value[i] < ' ' || value[i] > '~' {
			return false
		}
	}
	switch name = textproto.CanonicalMIMEHeaderKey(name); name {
	case "Host":
		first := q.r.Host == ""
		q.r.Host = value
		return first && plainHost(value)
	case "Content-Length":
		length, err := parseWhole(value)
		first := q.r.ContentLength < 0
		q.r.ContentLength = length
		return first && err == nil
	case "Connection":
		return value == "keep-alive" // as it is kept anyway
	case "Accept", "Accept-Encoding", "Accept-Language", "Authorization", "Content-Type", "Traceparent", "Tracestate", "User-Agent",
		"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Narad-Client", "X-Real-Ip", "X-Request-Id", "X-Tidemark-Client":
	default:
		if !strings.HasPrefix(name, headerPrefix) {
			return false
		}
		for i := range len(name) {
			if !tokenByte(name[i]) {
				return false
			}
		}
	}
	if q.header[name] != nil {
		return false
	}
	q.values[n] = value
	q.header[name] = q.values[n : n+1 : n+1]
	return true
}

// plainHost reports whether a Host header is a name or an address.
func plainHost(host string) bool {
	for i := range len(host) {
		if c := host[i]; !tokenByte(c) && c != ':' && c != '[' && c != ']' {
			return false
		}
	}
	return host != ""
}

// wholeBody is a body that is there.
type wholeBody struct{ b []byte }

func (w *wholeBody) Read(p []byte) (int, error) {
	n := copy(p, w.b)
	if w.b = w.b[n:]; len(w.b) == 0 {
		return n, io.EOF
	}
	return n, nil
}

func (w *wholeBody) Close() error { return nil }

// commonWriter writes the answers of common requests. What is kept in conn.next goes
// the same way as under net/http.
type commonWriter struct {
	c      *conn
	header http.Header
	at     time.Time // when the answer began to leave
	head   []byte    // room for its head
	status int
	begun  bool
	closes bool // the connection ends with the answer
	err    error
}

func (w *commonWriter) reset() {
	clear(w.header)
	w.status, w.begun, w.closes, w.err = 0, false, false, nil
}

func (w *commonWriter) Header() http.Header { return w.header }

func (w *commonWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

func (w *commonWriter) Write(b []byte) (int, error) {
	if err := w.begin(true); err != nil {
		return 0, err
	}
	return w.c.write(b)
}

// FlushError is what http.ResponseController calls.
func (w *commonWriter) FlushError() error { return w.begin(true) }

// SetReadDeadline is for bodies, and this one is there.
func (w *commonWriter) SetReadDeadline(time.Time) error { return nil }

// end writes an answer that has no body.
func (w *commonWriter) end() error { return w.begin(false) }

// begin writes the head, once. more says that a body may follow.
func (w *commonWriter) begin(more bool) error {
	if w.begun {
		return w.err
	}
	w.WriteHeader(http.StatusOK)
	w.begun = true
	if w.at = w.c.now; w.at.IsZero() {
		w.at = time.Now()
		w.c.now = w.at // the write needs no other
	}
	_, w.err = w.c.Write(w.lines(more))
	return w.err
}

// lines is the head of an answer as net/http makes it.
func (w *commonWriter) lines(more bool) []byte {
	b := appendStatus(append(w.head[:0], "HTTP/1.1 "...), w.status)
	b = appendDate(b, w.at)
	switch {
	case w.c.next.status != 0, w.header["Content-Length"] != nil, w.status == http.StatusNoContent:
	case more:
		w.closes = true // where it ends, nothing else says
	default:
		b = append(b, "Content-Length: 0\r\n"...)
	}
	if w.c.l.server.draining.Err() != nil || w.header["Connection"] != nil {
		w.closes = true
	}
	if w.closes {
		w.header["Connection"] = connClose
	}
	if len(w.header) > 0 {
		var rest bytes.Buffer
		_ = w.header.Write(&rest) // memory
		b = append(b, rest.Bytes()...)
	}
	w.head = append(b, "\r\n"...)
	return w.head
}
