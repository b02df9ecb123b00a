package api

import (
	"io"
	"net"
	"testing"
)

// Proves that a request which comes while the one before it waits neither ends the
// wait nor is lost, in one piece with it or after it, more than once, for common
// requests too.
func TestNextRequestDuringAWait(t *testing.T) {
	for _, method := range []string{"GET", "POST"} {
		nextDuringAWait(t, method+" /v1/topics/orders/consume?wait=20s"+commonProto+"\r\n")
	}
}

func nextDuringAWait(t *testing.T, wait string) {
	t.Helper()
	s := start(t)
	const next = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
	nc, r := s.raw(wait + next)
	for round := range 3 {
		eventually(t, "it waits", func() bool { return s.s.active.Load() == 1 })
		if round > 0 {
			if _, err := io.WriteString(nc, next); err != nil {
				t.Fatal(err)
			}
		}
		s.f.put("orders", "x")
		s.want(s.readAnswer(r, "GET"), 200, "")
		s.want(s.readAnswer(r, "GET"), 200, "")
		if round < 2 {
			if _, err := io.WriteString(nc, wait); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Proves that a wait ends when its client goes, be it for good or only to send no
// more, after a wait on the same connection that did not; and that a connection
// whose waits end by themselves serves on.
func TestClientLeavesDuringAWait(t *testing.T) {
	for _, leave := range []func(net.Conn) error{
		func(nc net.Conn) error { return nc.Close() },
		func(nc net.Conn) error { return nc.(*net.TCPConn).CloseWrite() },
	} {
		s := start(t)
		nc, r := s.raw("")
		for range 3 {
			if _, err := io.WriteString(nc, "POST /v1/topics/orders/consume?wait=2ms"+commonProto+"\r\n"); err != nil {
				t.Fatal(err)
			}
			s.want(s.readAnswer(r, "GET"), 204, "")
		}
		for _, path := range []string{"consume?wait=20s", "partitions/0/records?wait=20s"} {
			nc, _ := s.raw("GET /v1/topics/orders/" + path + " HTTP/1.1\r\nHost: x\r\n\r\n")
			eventually(t, "it waits", func() bool { return s.s.active.Load() == 1 })
			if err := leave(nc); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the wait ends", func() bool { return s.s.active.Load() == 0 })
		}
		left, lr := s.raw(first)
		s.want(s.readAnswer(lr, "GET"), 200, "")
		if _, err := io.WriteString(left, "POST /v1/topics/orders/consume?wait=20s"+commonProto+"\r\n"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a common request waits", func() bool { return s.s.active.Load() == 1 })
		if err := leave(left); err != nil {
			t.Fatal(err)
		}
		eventually(t, "its wait ends", func() bool { return s.s.active.Load() == 0 })
		if _, err := io.WriteString(nc, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		s.want(s.readAnswer(r, "GET"), 200, "")
	}
}
