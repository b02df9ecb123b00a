package api

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/certs"
	"github.com/tidemark-mq/tidemark/internal/testkit/authority"
)

// startTLS starts a site whose listener speaks TLS, and a client that trusts it.
func startTLS(t *testing.T, change ...func(*Options)) (*site, *tls.Config) {
	t.Helper()
	a := authority.New(t)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	a.Issue(t, "site", cert, key, time.Now().Add(time.Hour))
	pair, err := certs.Load(cert, key, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	shown, err := certs.NewServer(pair, tls.VersionTLS12, nil)
	if err != nil {
		t.Fatal(err)
	}
	trusting, err := certs.Client(a.File)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, append(change, func(o *Options) { o.TLS = shown.Config() })...)
	tr := s.c.Transport.(*http.Transport)
	tr.TLSClientConfig, tr.ForceAttemptHTTP2 = trusting, true
	return s, trusting
}

// ask sends a request over TLS.
func ask(t *testing.T, s *site, method, path, body string) answer {
	t.Helper()
	req, err := http.NewRequest(method, "https://"+s.addr+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Tidemark-Client", "t")
	return s.send(req)
}

// Under TLS every route works as without: single records with their shortcuts,
// batches, large bodies and answers, errors, waits, many requests on one
// connection, and the older version too. The protocol is HTTP/1.1, also for a
// client that would rather speak HTTP/2.
func TestSecure(t *testing.T) {
	s, trusting := startTLS(t)
	for range 50 {
		a := s.want(ask(t, s, "POST", "/v1/topics/orders/produce", "x"), 202, "")
		if a.Proto != "HTTP/1.1" {
			t.Fatalf("protocol %s", a.Proto)
		}
	}
	large := strings.Repeat("large ", 150_000)
	s.want(ask(t, s, "POST", "/v1/topics/orders/produce", large), 202, "")
	if got := ask(t, s, "POST", "/v1/topics/orders/consume?max=100", ""); !strings.Contains(got.body, large) {
		t.Errorf("%d %.100s", got.StatusCode, got.body)
	}
	s.want(ask(t, s, "POST", "/v1/topics/no-such/produce", "x"), 404, "not_found")
	trusting.MaxVersion = tls.VersionTLS12
	s.c.Transport.(*http.Transport).CloseIdleConnections()
	s.want(ask(t, s, "GET", "/healthz", ""), 200, "")
}

// A client that speaks plain HTTP to the port reads an answer that says what to
// do, however much it sends; nothing is stored.
func TestPlainHTTPOnTheTLSPort(t *testing.T) {
	s, _ := startTLS(t)
	for _, body := range []string{"", "x", strings.Repeat("x", 200<<10)} {
		for _, method := range []string{"GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"} {
			nc, err := net.Dial("tcp", s.addr)
			if err != nil {
				t.Fatal(err)
			}
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				_, _ = fmt.Fprintf(nc, "%s /v1/topics/orders/produce HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", method, len(body), body)
			}()
			res, err := http.ReadResponse(bufio.NewReader(nc), nil)
			if err != nil {
				t.Fatalf("%s with %d bytes: %v", method, len(body), err)
			}
			text, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || res.StatusCode != 400 || !strings.Contains(string(text), "use https://") || !res.Close {
				t.Errorf("%s: %d %s %v", method, res.StatusCode, text, err)
			}
			<-sent
			nc.Close()
		}
	}
	if n := s.f.count("orders"); n != 0 {
		t.Errorf("%d records are stored", n)
	}
}

// What is neither TLS nor HTTP is closed and counted; who only looks whether the
// port is open is not. The others are served meanwhile.
func TestBrokenHandshakes(t *testing.T) {
	s, _ := startTLS(t, limits(func(l *Limits) { l.HeaderTime = time.Second }))
	for _, sends := range []string{"\x00\x01\x02\x03\x04\x05\x06", "\x16\x03\x01\x00\x05hello", "SSH-2.0-x\r\n", ""} {
		nc, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := nc.Write([]byte(sends)); err != nil {
			t.Fatal(err)
		}
		if sends == "" { // who never begins is closed in the time that headers have
			_ = nc.SetReadDeadline(time.Now().Add(30 * time.Second))
		}
		if b, err := io.ReadAll(nc); err != nil && !strings.Contains(err.Error(), "reset") || strings.Contains(string(b), "HTTP") {
			t.Errorf("%q is answered %q, %v", sends, b, err)
		}
		nc.Close()
	}
	looker, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	looker.Close()
	a := s.want(ask(t, s, "GET", "/metrics", ""), 200, "")
	if !strings.Contains(a.body, "tidemark_http_handshake_failures_total 4\n") {
		t.Errorf("broken handshakes are not counted: %s", lineOf(a.body, "tidemark_http_handshake"))
	}
}

// lineOf returns the lines of a text that begin so.
func lineOf(text, prefix string) (lines []string) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, prefix) {
			lines = append(lines, line)
		}
	}
	return lines
}

// Connections beyond the bound are told so under TLS too.
func TestTooManySecureConnections(t *testing.T) {
	s, trusting := startTLS(t, limits(func(l *Limits) { l.Connections = 1 }))
	held, err := tls.Dial("tcp", s.addr, trusting)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	// By hand: the answer may be there before a request is, which net/http takes
	// for a broken connection.
	refused, err := tls.Dial("tcp", s.addr, trusting)
	if err != nil {
		t.Fatal(err)
	}
	defer refused.Close()
	res, err := http.ReadResponse(bufio.NewReader(refused), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), `"code":"overloaded"`) {
		t.Errorf("%d %s, %v", res.StatusCode, body, err)
	}
}

// Shutdown does not wait long for a connection that never begins its handshake.
func TestShutdownWithOpenHandshake(t *testing.T) {
	s, _ := startTLS(t, limits(func(l *Limits) { l.HeaderTime = time.Second }))
	nc, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	// A second one proves that the first was accepted.
	s.want(ask(t, s, "GET", "/healthz", ""), 200, "")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := s.s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}
