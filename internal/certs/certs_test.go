package certs

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/tidemark-mq/tidemark/internal/testkit/authority"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// issue returns the files of a certificate of that name.
func issue(t *testing.T, a *authority.Authority, name string, until time.Time) (cert, key string) {
	t.Helper()
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	a.Issue(t, name, cert, key, until)
	return cert, key
}

func load(t *testing.T, cert, key string) *Pair {
	t.Helper()
	p, err := Load(cert, key, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// handshake returns the name that a server shows to a client.
func handshake(t *testing.T, s *Server, client *tls.Config) (name string, version uint16, err error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		c, err := ln.Accept()
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, tls.Server(c, s.Config())) // the handshake, and all to the client's end
		_ = c.Close()
	}()
	defer func() { _ = ln.Close(); <-served }()
	c, err := tls.Dial("tcp", ln.Addr().String(), client)
	if err != nil {
		return "", 0, err
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0].Subject.CommonName, c.ConnectionState().Version, nil
}

// Proves that a client that trusts the authority sees the certificate, that one
// that trusts others does not, that an exchange shows from the next handshake
// on, that the least version holds, and that the end of the certificate is
// exported.
func TestServerShowsAndExchanges(t *testing.T) {
	a := authority.New(t)
	until := time.Now().Add(100 * time.Hour).Truncate(time.Second)
	cert, key := issue(t, a, "first", until)
	reg := prometheus.NewRegistry()
	s, err := NewServer(load(t, cert, key), tls.VersionTLS12, reg)
	if err != nil {
		t.Fatal(err)
	}
	trusting, err := Client(a.File)
	if err != nil {
		t.Fatal(err)
	}
	trusting.ServerName = "localhost"
	if name, version, err := handshake(t, s, trusting); err != nil || name != "first" || version != tls.VersionTLS13 {
		t.Errorf("%q by %x: %v", name, version, err)
	}
	stranger, err := Client(authority.New(t).File)
	if err != nil {
		t.Fatal(err)
	}
	stranger.ServerName = "localhost"
	if _, _, err := handshake(t, s, stranger); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("a client of another authority: %v", err)
	}
	old := trusting.Clone()
	old.MaxVersion = tls.VersionTLS12
	if _, version, err := handshake(t, s, old); err != nil || version != tls.VersionTLS12 {
		t.Errorf("TLS 1.2: %x %v", version, err)
	}
	cert, key = issue(t, a, "second", until.Add(time.Hour))
	s.Use(load(t, cert, key), tls.VersionTLS13)
	if name, _, err := handshake(t, s, trusting); err != nil || name != "second" {
		t.Errorf("after the exchange %q: %v", name, err)
	}
	if _, _, err := handshake(t, s, old); err == nil {
		t.Error("TLS 1.2 is spoken though 1.3 is the least")
	}
	families, err := reg.Gather()
	if err != nil || len(families) != 1 || families[0].GetMetric()[0].GetGauge().GetValue() != float64(until.Add(time.Hour).Unix()) {
		t.Errorf("%v %v", families, err)
	}
}

// Proves that a pair which no client would accept is refused with the name of
// the file, and that the same pair is recognised.
func TestLoadRefuses(t *testing.T) {
	a := authority.New(t)
	now := time.Now()
	cert, key := issue(t, a, "one", now.Add(time.Hour))
	otherCert, otherKey := issue(t, a, "other", now.Add(time.Hour))
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, bytes.Repeat([]byte("x"), maxPEM+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cert, key string
		now       time.Time
		says      string
	}{
		{cert, otherKey, now, "does not match"},
		{text, key, now, "failed to find any PEM data"},
		{cert, text, now, "failed to find any PEM data"},
		{"/no/such", key, now, "/no/such"},
		{cert, "/no/such", now, "/no/such"},
		{large, key, now, "larger than 1 MiB"},
		{cert, key, now.Add(2 * time.Hour), "is over since"},
		{cert, key, now.Add(-25 * time.Hour), "is not valid before"},
	} {
		if _, err := Load(c.cert, c.key, c.now); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s with %s: %v; want %s", c.cert, c.key, err, c.says)
		}
	}
	one := load(t, cert, key)
	if !one.Equal(load(t, cert, key)) || one.Equal(load(t, otherCert, otherKey)) || one.Equal(nil) {
		t.Error("pairs are compared wrongly")
	}
	if one.Subject() != "CN=one" {
		t.Errorf("subject %s", one.Subject())
	}
}

// Proves what a client trusts: the system without a file, nobody else with one,
// and that a file without certificates is an error.
func TestClient(t *testing.T) {
	if c, err := Client(""); err != nil || c.RootCAs != nil {
		t.Errorf("without a file: %v %v", c.RootCAs, err)
	}
	_, key := issue(t, authority.New(t), "x", time.Now().Add(time.Hour))
	if _, err := Client(key); err == nil || !strings.Contains(err.Error(), "holds no certificate") {
		t.Errorf("a key as CA file: %v", err)
	}
	if _, err := Client("/no/such"); err == nil || !strings.Contains(err.Error(), "/no/such") {
		t.Errorf("a missing CA file: %v", err)
	}
}
