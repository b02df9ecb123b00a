package api

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// secure is a connection under TLS. Its handshake happens in the first read or
// write, within the deadline of that: for a read the time that headers have. A
// client that speaks plain HTTP to it is told so, in plain HTTP.
type secure struct {
	*tls.Conn
	l *listener
}

// secured puts TLS over a connection where the listener has it.
func (l *listener) secured(nc net.Conn) net.Conn {
	if l.tls == nil {
		return nc
	}
	return &secure{Conn: tls.Server(nc, l.tls), l: l}
}

// Read reads what was decrypted. A connection without a handshake is at its
// end: net/http has nothing to say to it.
func (c *secure) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil || c.ConnectionState().HandshakeComplete {
		return n, err
	}
	var header tls.RecordHeaderError
	switch {
	case errors.As(err, &header) && header.Conn != nil && looksLikeHTTP(header.RecordHeader):
		c.sayTLS(header.Conn)
	case !errors.Is(err, io.EOF):
		c.l.metrics.handshakes.Inc()
	}
	return 0, io.EOF
}

// looksLikeHTTP recognises the first bytes of a plain request.
func looksLikeHTTP(b [5]byte) bool {
	switch string(b[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO", "PATCH", "DELET":
		return true
	}
	return false
}

// sayTLS answers a plain request and lets its client read the answer.
func (c *secure) sayTLS(raw net.Conn) {
	f := failureOf(errcode.New(errcode.InvalidArgument, "this port speaks TLS and the request is plain HTTP; use https://"))
	c.l.metrics.refused(areaConnection, f.code)
	if raw.SetWriteDeadline(time.Now().Add(c.l.limits.WriteStep)) != nil {
		return
	}
	if _, err := raw.Write(rawAnswer("400 Bad Request", f)); err == nil {
		linger(raw, c.l.limits.LingerBytes, c.l.limits.LingerTime)
	}
}
