package rawhttp

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"
)

// Target is a server and how to reach it.
type Target struct {
	base *url.URL
	host string // host:port
	head string // of every request: Host, client, credentials
}

// NewTarget returns the server at base, for example http://127.0.0.1:7942. User
// and password may be "".
func NewTarget(base, user, password string) (*Target, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("node address %q: write it as http://host:port or https://host:port", base)
	}
	t := &Target{base: u, host: u.Host}
	if u.Port() == "" {
		t.host = net.JoinHostPort(u.Hostname(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	}
	t.head = "Host: " + u.Host + "\r\nX-Tidemark-Client: tidemark-bench\r\n"
	if user != "" || password != "" {
		t.head += "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password)) + "\r\n"
	}
	return t, nil
}

// String is the address without credentials.
func (t *Target) String() string { return t.base.Scheme + "://" + t.base.Host + t.prefix() }

func (t *Target) prefix() string { return strings.TrimSuffix(t.base.EscapedPath(), "/") }

// dial opens a connection.
func (t *Target) dial(ctx context.Context) (net.Conn, error) {
	d := &net.Dialer{Timeout: 5 * time.Second}
	if t.base.Scheme == "https" {
		return (&tls.Dialer{NetDialer: d, Config: &tls.Config{ServerName: t.base.Hostname(), MinVersion: tls.VersionTLS12}}).DialContext(ctx, "tcp", t.host)
	}
	return d.DialContext(ctx, "tcp", t.host)
}
