package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Bounds of what is read of an answer.
const (
	maxAnswer = 256 << 20
	maxError  = 64 << 10
)

// Options say how to reach a node. The zero value asks without credentials.
type Options struct {
	User, Password string
	HTTP           *http.Client // nil: one of its own; a Timeout in it would end streams
	Name           string       // sent as X-Tidemark-Client; "" is "go"
}

// Client sends requests to one node.
type Client struct {
	base string
	opts Options
}

// New returns a client of the node at base, for example http://127.0.0.1:7942.
func New(base string, opts Options) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, errcode.New(errcode.InvalidArgument, "node address %q: write it as http://host:port or https://host:port", base)
	}
	if opts.HTTP == nil {
		opts.HTTP = newHTTP()
	}
	if opts.Name == "" {
		opts.Name = "go"
	}
	return &Client{base: strings.TrimSuffix(u.String(), "/"), opts: opts}, nil
}

// headerWait is longer than the longest wait that a node allows.
const headerWait = time.Minute

// newHTTP returns a client that does not wait for ever for an answer to begin.
// How long it lasts is for the caller's context: streams have no end.
func newHTTP() *http.Client {
	tr := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: headerWait,
		IdleConnTimeout:       30 * time.Second,
		MaxIdleConnsPerHost:   64,
		ForceAttemptHTTP2:     true,
	}
	return &http.Client{Transport: tr}
}

// CloseIdleConnections closes the connections that no call uses.
func (c *Client) CloseIdleConnections() { c.opts.HTTP.CloseIdleConnections() }

// request is one call. Path segments are escaped by path.
type request struct {
	method      string
	path        string
	query       url.Values
	body        io.Reader
	contentType string
	accept      string
	header      http.Header
}

// path joins segments, each escaped, so that a name can never be a separator.
func path(segments ...string) string {
	var b strings.Builder
	for _, s := range segments {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(s))
	}
	return b.String()
}

// send returns the answer of a request that succeeded; the caller closes its
// body. Everything else is an error with a code.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	target := c.base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, r.body)
	if err != nil {
		return nil, errcode.Wrap(errcode.InvalidArgument, err, "%s %s", r.method, r.path)
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	req.Header.Set("X-Tidemark-Client", c.opts.Name)
	if r.contentType != "" {
		req.Header.Set("Content-Type", r.contentType)
	}
	if r.accept != "" {
		req.Header.Set("Accept", r.accept)
	}
	if c.opts.User != "" || c.opts.Password != "" {
		req.SetBasicAuth(c.opts.User, c.opts.Password)
	}
	res, err := c.opts.HTTP.Do(req)
	if err != nil {
		return nil, transportError(err, r)
	}
	if res.StatusCode >= 200 && res.StatusCode < 300 {
		return res, nil
	}
	defer func() { _ = res.Body.Close() }() // the answer's text is what counts
	return nil, answerError(res, r)
}

// transportError is an error without an answer. Only a request that changes
// nothing is safe to repeat then.
func transportError(err error, r request) error {
	code := errcode.Internal // retry unknown: it may have been applied
	if r.method == http.MethodGet || r.method == http.MethodHead {
		code = errcode.Unavailable
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		code = errcode.Canceled
	}
	return errcode.Wrap(code, err, "%s %s: no answer", r.method, r.path)
}

var codes = func() map[string]errcode.Code {
	m := map[string]errcode.Code{}
	for c := errcode.Code(0); !strings.HasPrefix(c.String(), "code_"); c++ {
		m[c.String()] = c
	}
	return m
}()

// answerError turns an error answer into the error that the node meant.
func answerError(res *http.Response, r request) error {
	body, readErr := io.ReadAll(io.LimitReader(res.Body, maxError))
	var fields map[string]any
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	if readErr != nil || dec.Decode(&fields) != nil {
		return errcode.New(foreignCode(res.StatusCode), "%s %s: %s, and no JSON error: %.200s", r.method, r.path, res.Status, body)
	}
	text, _ := fields["error"].(string)
	name, _ := fields["code"].(string)
	code, known := codes[name]
	if !known {
		code = foreignCode(res.StatusCode)
	}
	e := errcode.New(code, "%s", text)
	for fact, value := range fields {
		if fact != "error" && fact != "code" && fact != "retry" {
			e = e.With(fact, value)
		}
	}
	if seconds, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && seconds > 0 {
		e = e.After(time.Duration(seconds) * time.Second)
	}
	return e
}

// foreignCode guesses the code of an answer that a proxy gave, or a newer node.
func foreignCode(status int) errcode.Code {
	switch status {
	case http.StatusUnauthorized:
		return errcode.Unauthorized
	case http.StatusForbidden:
		return errcode.Denied
	case http.StatusNotFound:
		return errcode.NotFound
	case http.StatusTooManyRequests:
		return errcode.TooMany
	case http.StatusServiceUnavailable:
		return errcode.Unavailable
	default:
		if status >= 500 {
			return errcode.Internal
		}
		return errcode.InvalidArgument
	}
}

// call sends a request and decodes the answer into out, unless out is nil. It
// returns the status.
func (c *Client) call(ctx context.Context, r request, out any) (status int, err error) {
	res, err := c.send(ctx, r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }() // it has been read
	if out == nil || res.StatusCode == http.StatusNoContent {
		return res.StatusCode, nil
	}
	return res.StatusCode, decodeBody(res.Body, out, r)
}

func decodeBody(body io.Reader, out any, r request) error {
	text, err := io.ReadAll(io.LimitReader(body, maxAnswer))
	if err != nil {
		return transportError(fmt.Errorf("the answer broke off: %w", err), r)
	}
	if err := json.Unmarshal(text, out); err != nil {
		return errcode.Wrap(errcode.Internal, err, "%s %s: decode the answer", r.method, r.path)
	}
	return nil
}

// callJSON is call with a JSON body.
func (c *Client) callJSON(ctx context.Context, r request, in, out any) (status int, err error) {
	body, err := json.Marshal(in)
	if err != nil {
		return 0, errcode.Wrap(errcode.InvalidArgument, err, "encode the body of %s", r.path)
	}
	r.body, r.contentType = bytes.NewReader(body), "application/json"
	return c.call(ctx, r, out)
}
