package main

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/api/client"
	"github.com/tidemark-mq/tidemark/internal/certs"
)

const (
	defaultServer = "http://127.0.0.1:7942"
	// answerTime bounds the wait for the beginning of an answer. It is above the
	// longest wait that a node grants (30 s).
	answerTime = time.Minute
	// maxPasswordFile bounds what is read of a password file.
	maxPasswordFile = 4096
)

// connection is how commands reach a node.
type connection struct {
	p            *process
	server       string
	user         string
	passwordFile string
	caFile       string
	context      string
	http         *http.Client

	resolved bool
	to       target
	toErr    error
}

// flags adds the flags of commands that talk to a node.
func (c *connection) flags(cmd *cobra.Command) {
	f := cmd.PersistentFlags()
	f.StringVarP(&c.server, "server", "s", "", "node to talk to (TIDEMARK_SERVER) (default the current context's, else "+defaultServer+")")
	f.StringVar(&c.context, "context", "", "context to use instead of the current one (TIDEMARK_CONTEXT); see tidemark ctx")
	f.StringVar(&c.user, "user", "", "user to authenticate as (TIDEMARK_USER) (default admin, with a password)")
	f.StringVar(&c.passwordFile, "password-file", "", "file that holds the password, - asks for it (TIDEMARK_PASSWORD_FILE; or the password itself in TIDEMARK_PASSWORD)")
	f.StringVar(&c.caFile, "ca-file", "", "certificates in PEM that an https server is trusted by, instead of the system's (TIDEMARK_CA_FILE)")
	// It fails for a flag that is not there, or twice, and this one is new.
	_ = cmd.RegisterFlagCompletionFunc("context", c.p.completeContext)
}

// address returns the node's URL; when it cannot be found, open says why.
func (c *connection) address() string {
	t, _ := c.resolve()
	return t.server
}

// credentials returns user and password; both are "" without a password.
func (c *connection) credentials() (user, password string, err error) {
	t, err := c.resolve()
	return t.user, t.password, err
}

// open returns a client. Nothing is sent yet.
func (c *connection) open() (*client.Client, error) {
	t, err := c.resolve()
	if err != nil {
		return nil, err
	}
	hc, err := c.client()
	if err != nil {
		return nil, err
	}
	cl, err := client.New(t.server, client.Options{User: t.user, Password: t.password, HTTP: hc, Name: "tidemark-cli/" + version})
	if err != nil {
		return nil, usagef("--server: %w", err)
	}
	return cl, nil
}

// wire returns a client that shows records as the node writes them.
func (c *connection) wire() (*wire, error) {
	t, err := c.resolve()
	if err != nil {
		return nil, err
	}
	base := strings.TrimSuffix(t.server, "/")
	if err := checkServer(base); err != nil {
		return nil, err
	}
	hc, err := c.client()
	if err != nil {
		return nil, err
	}
	return &wire{base: base, user: t.user, password: t.password, http: hc}, nil
}

// checkServer refuses what is no node's address.
func checkServer(server string) error {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return usagef("--server: node address %q: write it as http://host:port or https://host:port", server)
	}
	return nil
}

// client returns the one HTTP client of a command.
func (c *connection) client() (*http.Client, error) {
	if c.http != nil {
		return c.http, nil
	}
	t, err := c.resolve()
	if err != nil {
		return nil, err
	}
	trust, err := certs.Client(t.caFile)
	if err != nil {
		return nil, usageError{err}
	}
	c.http = httpClient(trust)
	return c.http, nil
}

// close ends idle connections.
func (c *connection) close() {
	if c.http != nil {
		c.http.CloseIdleConnections()
	}
}

// httpClient has no overall timeout, which would end streams; the beginning of
// an answer has one.
func httpClient(trust *tls.Config) *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig:       trust,
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:   5 * time.Second,
		ResponseHeaderTimeout: answerTime,
		IdleConnTimeout:       30 * time.Second,
		MaxIdleConnsPerHost:   16,
		ForceAttemptHTTP2:     true,
	}}
}

// secret reads a secret from a file (by flag or variable) or from a variable.
// One line break at the end of the file is not part of it.
func (p *process) secret(file, fileVar, valueVar string) (string, error) {
	if file == "" {
		file = p.getenv(fileVar)
	}
	if file == "" {
		return p.getenv(valueVar), nil
	}
	b, err := readBounded(file, maxPasswordFile)
	if err != nil {
		return "", usagef("password file: %w", err)
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	if text == "" {
		return "", usagef("password file %s is empty", file)
	}
	if strings.ContainsAny(text, "\r\n") {
		return "", usagef("password file %s has several lines; it holds the password and nothing else", file)
	}
	return text, nil
}

// readBounded reads a file of at most most bytes.
func readBounded(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAtMost(f, path, most)
}
