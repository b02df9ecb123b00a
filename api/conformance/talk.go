package conformance

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// Talk is what happens on one connection, byte by byte, in order. The
// connection is closed at its end.
type Talk []act

// act is a part of a Talk: bytes that are written, an answer that is read, or
// an end.
type act struct {
	write  string
	size   int64 // zero bytes to write instead
	method string
	want   *expectation
	half   bool // close the sending side
	ends   bool // the server closes the connection
}

// writes sends text as it stands after its names are replaced.
func writes(text string) act { return act{write: text} }

// pours sends n zero bytes. The server may have stopped reading.
func pours(n int64) act { return act{size: n} }

// halfCloses ends the client's sending side.
func halfCloses() act { return act{half: true} }

// ends waits until the server has closed the connection.
func ends() act { return act{ends: true} }

// endsAfter waits as well; an answer may stand before the end.
func endsAfter(method string, like Request) act {
	return act{ends: true, method: method, want: &like.want}
}

// answers reads one answer to a request of the method and holds it against the
// expectation of like.
func answers(method string, like Request) act { return act{method: method, want: &like.want} }

// ok expects a status, refused an error.
func ok(status int) Request                   { return Request{}.is(status) }
func refused(status int, code string) Request { return Request{}.fails(status, code) }

// head1 is the head of a request of HTTP/1.1 by a program.
func head1(method, path string, header ...string) string {
	lines := append([]string{method + " " + path + " HTTP/1.1", "Host: {host}", client}, header...)
	return strings.Join(lines, "\r\n") + "\r\n{auth}\r\n"
}

// do implements Step.
func (k Talk) do(r *run) {
	nc, err := net.DialTimeout("tcp", r.target.host(), stepMax)
	if err != nil {
		r.t.Error(err)
		return
	}
	defer nc.Close()
	if err := nc.SetDeadline(time.Now().Add(stepMax)); err != nil {
		r.t.Error(err)
		return
	}
	said := bufio.NewReader(nc)
	for i, a := range k {
		if err := a.on(r, nc, said); err != nil {
			r.t.Errorf("step %d of a connection: %v\n\tit began with %.300q", i, err, r.name(k[0].write))
			return
		}
	}
}

func (a *act) on(r *run, nc net.Conn, said *bufio.Reader) error {
	switch {
	case a.half:
		return nc.(*net.TCPConn).CloseWrite()
	case a.size > 0:
		_, err := io.Copy(nc, io.LimitReader(zeros{}, a.size))
		if broken(err) {
			err = nil // an answer before the end of the body is allowed
		}
		return err
	case a.ends:
		if a.want != nil {
			if _, err := said.Peek(1); err == nil {
				if err := a.answer(r, said); err != nil {
					return err
				}
			}
		}
		rest, err := io.ReadAll(said)
		switch {
		case len(rest) > 0:
			return fmt.Errorf("the connection did not end but said %.200q", rest)
		case err != nil && !broken(err):
			return fmt.Errorf("the connection did not end: %w", err)
		}
		return nil
	case a.want != nil:
		return a.answer(r, said)
	}
	_, err := io.WriteString(nc, r.name(a.write))
	if broken(err) {
		err = nil
	}
	return err
}

// answer reads an answer; the interim ones before it are skipped, unless one of
// them is wanted.
func (a *act) answer(r *run, said *bufio.Reader) error {
	for {
		res, err := http.ReadResponse(said, &http.Request{Method: a.method})
		if err != nil {
			return fmt.Errorf("no answer where %d is expected: %w", a.want.status, err)
		}
		body, err := io.ReadAll(res.Body)
		if err = errors.Join(err, res.Body.Close()); err != nil {
			return fmt.Errorf("an answer %d broke off: %w", res.StatusCode, err)
		}
		if res.StatusCode < 200 && a.want.status >= 200 {
			continue
		}
		if faults := a.want.check(a.method, res, body, r.name); len(faults) > 0 {
			return fmt.Errorf("%s\n\tanswer: %s %v %.400s", strings.Join(faults, "\n\t"), res.Status, res.Header, bytes.TrimSpace(body))
		}
		return nil
	}
}

// broken says that the other side has closed.
func broken(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

type zeros struct{}

// Read implements io.Reader.
func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
