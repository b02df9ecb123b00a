package api

import (
	"bytes"
	"errors"
	"net/http"
	"strconv"
)

// nextAnswer is what a conn knows of the next answer and net/http does not. For headers
// net/http takes two maps, copies them and sorts their names, and a body goes
// through two more buffers. So headers that handlers set with exchange.head are
// kept as the lines that they become. A whole answer of a common size is kept
// beside the 204 that net/http is told of: what that writes has the version, the
// time and what is to be said of the connection, and never a body. When it comes
// to be written, the rest is put behind it.
type nextAnswer struct {
	lines  []byte  // each with its end of line
	status int     // of a whole answer, else 0
	rest   *buffer // of a whole answer: room for net/http's part, lines, end of head, body
}

const (
	// headRoom is room for what net/http has to say.
	headRoom = 512
	// wholeTo is the largest body of a whole answer: it is copied once.
	wholeTo = 32 << 10
)

func (a *nextAnswer) set() bool { return a.status != 0 || len(a.lines) > 0 }

// forget drops what was kept.
func (a *nextAnswer) forget() {
	if a.rest != nil {
		a.rest.release()
	}
	*a = nextAnswer{lines: a.lines[:0]}
}

// keep makes a whole answer.
func (a *nextAnswer) keep(status int, body []byte) {
	a.status, a.rest = status, smallBuffers.Get().(*buffer)
	b := append(a.rest.b[:0], make([]byte, headRoom)...)
	b = append(append(b, a.lines...), "\r\n"...)
	a.rest.b = append(b, body...)
}

// write writes the answer whose head, and nothing else, net/http has made.
func (a *nextAnswer) write(c *conn, head []byte) error {
	defer a.forget()
	at := bytes.IndexByte(head, '\n') + 1 // behind the status line
	if a.status == 0 {
		buf := smallBuffers.Get().(*buffer)
		defer buf.release()
		buf.b = append(append(append(buf.b[:0], head[:at]...), a.lines...), head[at:]...)
		_, err := c.write(buf.b)
		return err
	}
	head, whole := bytes.CutSuffix(head, []byte("\r\n\r\n"))
	if !whole {
		return errHead
	}
	const version = len("HTTP/1.1 ")
	var first [headRoom]byte
	out := appendStatus(append(first[:0], head[:version]...), a.status)
	if at < len(head) {
		out = append(append(out, head[at:]...), "\r\n"...)
	}
	if len(out) > headRoom {
		return errHead
	}
	from := headRoom - len(out)
	copy(a.rest.b[from:], out)
	_, err := c.write(a.rest.b[from:])
	return err
}

// errHead cannot happen: what handlers put into the map of headers is short.
var errHead = errors.New("api: the head of an answer is not as net/http writes it")

// head adds a header to the answer. name is in canonical form, value visible ASCII
// with spaces inside at most.
func (x *exchange) head(name, value string) {
	if !x.direct {
		h := x.Header()
		h[name] = append(h[name], value)
		return
	}
	next := &x.conn.next
	next.lines = append(append(append(append(next.lines, name...), ": "...), value...), "\r\n"...)
}

// headInt is head for a whole number.
func (x *exchange) headInt(name string, value int64) {
	if !x.direct {
		x.head(name, strconv.FormatInt(value, 10))
		return
	}
	next := &x.conn.next
	next.lines = append(append(next.lines, name...), ": "...)
	next.lines = append(strconv.AppendInt(next.lines, value, 10), "\r\n"...)
}

// reply writes a whole answer. The length is always said, so that a client of
// HTTP/1.0 can keep its connection.
func (x *exchange) reply(status int, contentType []string, body []byte) {
	// A failed write is seen by the connection, which is closed then.
	_ = x.answer(status, contentType, body)
}

// send is reply for answers whose loss matters: it waits until the connection has
// taken it.
func (x *exchange) send(contentType []string, body []byte) error {
	if err := x.answer(http.StatusOK, contentType, body); err != nil {
		return err
	}
	return x.flush()
}

func (x *exchange) answer(status int, contentType []string, body []byte) error {
	if x.direct && len(body) <= wholeTo && !x.wroteHeader {
		x.head("Content-Type", contentType[0])
		x.headInt("Content-Length", int64(len(body)))
		x.conn.next.keep(status, body)
		x.wroteHeader, x.status, x.out = true, status, x.out+int64(len(body))
		x.w.WriteHeader(http.StatusNoContent)
		return nil
	}
	h := x.Header() // net/http has to know them
	h["Content-Type"] = contentType
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	x.WriteHeader(status)
	_, err := x.Write(body)
	return err
}
