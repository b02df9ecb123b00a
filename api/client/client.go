package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

const (
	// maxAnswer bounds what is read of an answer that is not a stream.
	maxAnswer = 128 << 20
	// callTime bounds one try of such a call, so that it ends when its answer
	// stops arriving; the beginning of an answer has headerWait.
	callTime = 2 * time.Minute
)

// Options say how to reach a node. The zero value asks without credentials and
// tries again as the zero Retry says.
type Options struct {
	User, Password string
	TLS            *tls.Config  // for https; nil: the system's roots. Not together with HTTP
	HTTP           *http.Client // nil: one of its own; a Timeout in it would end streams
	Name           string       // sent as X-Tidemark-Client; "" is "go"
	Retry          Retry        // of single calls; a Producer, a Consumer and Replay go on longer
}

// Client sends requests to one node. It is safe for concurrent use.
type Client struct {
	base  string
	auth  string // the header, "" = none
	name  string
	http  *http.Client
	retry Retry

	noFrames atomic.Bool // the node, or what stands before it, has no answers in frames
}

// New returns a client of the node at base, for example http://127.0.0.1:7942.
// Nothing is sent yet.
func New(base string, opts Options) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, errcode.New(errcode.InvalidArgument, "node address %q: write it as http://host:port or https://host:port", base)
	}
	if opts.HTTP != nil && opts.TLS != nil {
		return nil, errcode.New(errcode.InvalidArgument, "options HTTP and TLS do not go together: put the TLS configuration into the transport of HTTP")
	}
	if err := opts.Retry.validate(); err != nil {
		return nil, err
	}
	c := &Client{base: strings.TrimSuffix(u.String(), "/"), name: opts.Name, retry: opts.Retry.withDefaults()}
	if c.name == "" {
		c.name = "go"
	}
	if opts.User != "" || opts.Password != "" {
		c.auth = "Basic " + base64.StdEncoding.EncodeToString([]byte(opts.User+":"+opts.Password))
	}
	h := opts.HTTP
	if h == nil {
		h = newHTTP(opts.TLS)
	}
	c.http = faithful(h)
	return c, nil
}

// CloseIdleConnections closes the connections that no call uses.
func (c *Client) CloseIdleConnections() { c.http.CloseIdleConnections() }

// request is one call. Path segments are escaped by path.
type request struct {
	method      string
	path        string
	query       url.Values
	body        []byte
	stream      io.Reader // a body that can be read once; such a call is never repeated
	contentType string
	accept      string
	header      http.Header
	safety      safety // of a GET or HEAD: harmless, unless once
}

func (r *request) repeat() safety {
	switch {
	case r.stream != nil:
		return once
	case r.safety == whenRefused && (r.method == http.MethodGet || r.method == http.MethodHead):
		return harmless
	default:
		return r.safety
	}
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

// attempt sends a request once and returns its answer when that is a success;
// the caller closes its body. Everything else is an error with a code.
func (c *Client) attempt(ctx context.Context, r *request) (*http.Response, error) {
	var p progress
	req, err := c.request(httptrace.WithClientTrace(ctx, p.trace()), r)
	if err != nil {
		return nil, err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, transportError(ctx, err, r, p.notApplied())
	}
	if res.StatusCode >= 200 && res.StatusCode < 300 {
		return res, nil
	}
	defer func() { _ = res.Body.Close() }() // the answer's text is what counts
	if to := res.Header.Get("Location"); res.StatusCode < 400 && to != "" {
		return nil, errcode.New(errcode.InvalidArgument, "%s %s: redirected to %q as another call; use the address that does not redirect", r.method, r.path, to)
	}
	return nil, answerError(res, r)
}

func (c *Client) request(ctx context.Context, r *request) (*http.Request, error) {
	target := c.base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	body := r.stream
	if body == nil && r.body != nil {
		// A reader of its own for each try: net/http may read the last one still.
		body = bytes.NewReader(r.body)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, body)
	if err != nil {
		return nil, errcode.Wrap(errcode.InvalidArgument, err, "%s %s", r.method, r.path)
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	req.Header.Set("X-Tidemark-Client", c.name)
	if r.contentType != "" {
		req.Header.Set("Content-Type", r.contentType)
	}
	if r.accept != "" {
		req.Header.Set("Accept", r.accept)
	}
	if c.auth != "" {
		req.Header.Set("Authorization", c.auth)
	}
	return req, nil
}

// exchange sends a request, again where that is allowed, and hands each answer
// that is a success to take, which reads it. A try whose answer take could not
// read whole has failed.
func (c *Client) exchange(ctx context.Context, r *request, take func(*http.Response) error) error {
	return c.retry.again(ctx, r.repeat(), func(ctx context.Context) error { return c.once(ctx, r, take) })
}

// once is one try of exchange.
func (c *Client) once(ctx context.Context, r *request, take func(*http.Response) error) error {
	bounded, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	res, err := c.attempt(bounded, r)
	if err == nil {
		err = take(res)
		_ = res.Body.Close() // it has been read
	}
	if err != nil && ctx.Err() == nil && errcode.Is(err, errcode.Canceled) && bounded.Err() != nil {
		// The bound of one try, not the caller's.
		return transportError(ctx, err, r, false)
	}
	return err
}

// call sends a request and decodes the answer into out, unless out is nil. It
// returns the status.
func (c *Client) call(ctx context.Context, r request, out any) (status int, err error) {
	err = c.exchange(ctx, &r, func(res *http.Response) error {
		status = res.StatusCode
		if out == nil || status == http.StatusNoContent {
			_, _ = io.CopyN(io.Discard, res.Body, maxError) // so that the connection is used again
			return nil
		}
		return decodeBody(ctx, res, out, &r)
	})
	return status, err
}

// readBody reads the whole body of an answer.
func readBody(ctx context.Context, res *http.Response, r *request) ([]byte, error) {
	var b bytes.Buffer
	if n := res.ContentLength; n > 0 {
		b.Grow(int(min(n, 1<<20)) + bytes.MinRead) // what is declared is not believed beyond that
	}
	n, err := b.ReadFrom(io.LimitReader(res.Body, maxAnswer+1))
	if err != nil {
		return nil, transportError(ctx, fmt.Errorf("the answer broke off after %d bytes: %w", n, err), r, false)
	}
	if n > maxAnswer {
		return nil, errcode.New(errcode.TooLarge, "%s %s: the answer has more than %d bytes; is this a Tidemark node?", r.method, r.path, maxAnswer)
	}
	return b.Bytes(), nil
}

func decodeBody(ctx context.Context, res *http.Response, out any, r *request) error {
	text, err := readBody(ctx, res, r)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, out); err != nil {
		return errcode.New(errcode.Internal, "%s %s: decode the answer: %w", r.method, r.path, err)
	}
	return nil
}

// callJSON is call with a JSON body.
func (c *Client) callJSON(ctx context.Context, r request, in, out any) (status int, err error) {
	body, err := json.Marshal(in)
	if err != nil {
		return 0, errcode.Wrap(errcode.InvalidArgument, err, "encode the body of %s", r.path)
	}
	r.body, r.contentType = body, "application/json"
	return c.call(ctx, r, out)
}
