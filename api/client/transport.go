package client

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

const (
	// headerWait is longer than the longest wait that a node allows.
	headerWait = time.Minute
	// idleTime is shorter than the time after which a node closes a connection
	// that is not used, so that a call does not meet one that is just closing.
	idleTime = 30 * time.Second
	// idleConns is how many unused connections are kept for the next calls. Fewer
	// than the calls at a time would mean a new connection for many of them.
	idleConns = 512
	ioBuffer  = 16 << 10 // of each connection and direction
	redirects = 5        // of one try
)

// newHTTP returns a client that does not wait for ever for an answer to begin.
// How long it lasts is for the caller's context: streams have no end.
func newHTTP(config *tls.Config) *http.Client {
	return &http.Client{Transport: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig:       config,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: headerWait,
		IdleConnTimeout:       idleTime,
		MaxIdleConns:          idleConns,
		MaxIdleConnsPerHost:   idleConns,
		WriteBufferSize:       ioBuffer,
		ReadBufferSize:        ioBuffer,
		DisableCompression:    true, // a node does not compress answers by itself
		ForceAttemptHTTP2:     true,
	}}
}

// faithful returns h with a rule for redirects, unless it has one: a call is
// sent on as it is or not at all. What net/http does by itself turns a POST that
// is moved into a GET without a body, whose success would mean nothing.
func faithful(h *http.Client) *http.Client {
	if h.CheckRedirect != nil {
		return h
	}
	out := *h
	out.CheckRedirect = func(next *http.Request, via []*http.Request) error {
		if len(via) > redirects {
			return errcode.New(errcode.Unavailable, "redirected %d times, lastly to %s", len(via), next.URL.Redacted())
		}
		if next.Method != via[0].Method {
			return http.ErrUseLastResponse
		}
		return nil
	}
	return &out
}

// How far a request came. Only what is certain is said: a node never acts on a
// request whose headers or body are not complete.
const (
	noConnection int32 = iota
	perhapsSent
	cutOff // the connection did not take all of it
)

// progress follows one request through net/http.
type progress struct{ state atomic.Int32 }

func (p *progress) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		// A redirect begins anew: the first server has answered.
		GetConn: func(string) { p.state.Store(noConnection) },
		GotConn: func(httptrace.GotConnInfo) { p.state.Store(perhapsSent) },
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err != nil {
				p.state.CompareAndSwap(perhapsSent, cutOff)
			}
		},
	}
}

// notApplied reports whether the request cannot have had an effect.
func (p *progress) notApplied() bool { return p.state.Load() != perhapsSent }

// idleBody ends an answer whose bytes stop arriving: cancel is called when one
// read takes longer than most.
type idleBody struct {
	io.ReadCloser
	most  time.Duration
	timer *time.Timer
}

var errIdle = errors.New("the answer stopped arriving")

func newIdleBody(body io.ReadCloser, most time.Duration, cancel context.CancelCauseFunc) *idleBody {
	b := &idleBody{ReadCloser: body, most: most, timer: time.AfterFunc(most, func() { cancel(errIdle) })}
	b.timer.Stop()
	return b
}

func (b *idleBody) Read(p []byte) (int, error) {
	b.timer.Reset(b.most)
	n, err := b.ReadCloser.Read(p)
	b.timer.Stop()
	return n, err
}
