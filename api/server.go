package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/julienschmidt/httprouter"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Options are what a Server needs besides its broker. The zero value serves
// without authentication, metrics or logs.
type Options struct {
	Limits Limits
	// Authenticate checks a user's password and names the identity that
	// bounds count by. Nil: everybody may do everything, as identity "".
	Authenticate func(user, password string) (identity string, ok bool)
	TLS          *tls.Config           // of every listener that is served; nil: plain HTTP
	Metrics      http.Handler          // answers /metrics; nil: 404
	Registerer   prometheus.Registerer // nil: the server's own metrics are not exported
	Logger       *slog.Logger          // nil: nothing is logged
}

// Server is the HTTP plane of one node. Its methods are safe for concurrent
// use.
type Server struct {
	broker  Broker
	opts    Options
	limits  Limits
	log     *slog.Logger
	metrics *metrics
	router  *httprouter.Router
	waiting *waiting
	http    *http.Server
	faults  *rate.Limiter // lines of the log about failed requests

	largeBodies atomic.Int64 // bytes of body buffers above Limits.LargeBody
	active      atomic.Int64 // requests in their handler
	exchanges   sync.Pool
	late        late
	turns       chan struct{} // one for each stream of the log that is at work

	// base ends when the server stops for good: calls into the broker that
	// must outlive their client's connection run under it. draining ends when
	// Shutdown begins: waits end then.
	base     context.Context
	stop     context.CancelFunc
	draining context.Context
	drain    context.CancelFunc

	mu struct {
		sync.Mutex
		listeners []*listener
	}
}

// Failed requests take this many lines of the log a second, and so many at once.
const (
	faultLines = 1
	faultBurst = 20
)

// New returns a server that answers with b. It fails when a limit is out of
// bounds or a metric is registered already.
func New(b Broker, opts Options) (*Server, error) {
	if err := opts.Limits.Validate(); err != nil {
		return nil, errcode.Wrap(errcode.InvalidArgument, err, "limits of the HTTP plane")
	}
	m, err := newMetrics(opts.Registerer)
	if err != nil {
		return nil, err
	}
	s := &Server{broker: b, opts: opts, limits: opts.Limits.withDefaults(), log: opts.Logger, metrics: m}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.waiting = newWaiting(s.limits.Waiting)
	s.turns = make(chan struct{}, s.limits.Streams)
	s.faults = rate.NewLimiter(faultLines, faultBurst)
	s.exchanges.New = func() any { return new(exchange) }
	s.base, s.stop = context.WithCancel(context.Background())
	s.draining, s.drain = context.WithCancel(s.base)
	s.buildRouter()
	s.http = &http.Server{
		Handler:           s,
		ReadHeaderTimeout: s.limits.HeaderTime,
		// Bounds the wait for the first bytes of a body; see exchange.collect.
		ReadTimeout: s.limits.HeaderTime + s.limits.BodyStep,
		IdleTimeout: s.limits.IdleTime,
		// net/http reads 4 KiB more than it is told to.
		MaxHeaderBytes: s.limits.HeaderBytes - 4<<10,
		// OPTIONS * is answered like every other path.
		DisableGeneralOptionsHandler: true,
		BaseContext:                  func(net.Listener) context.Context { return s.base },
		ConnContext:                  withConn,
		ConnState:                    noticeRest,
		// What net/http has to say is about single connections and caused by
		// clients: the metrics count it.
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// Handler returns the routes alone, for listeners of others. The bounds on
// connections, headers and written answers come with Serve.
func (s *Server) Handler() http.Handler { return s }

// Serve answers on ln until Shutdown, and returns nil then. It may be called
// for several listeners.
func (s *Server) Serve(ln net.Listener) error {
	l := newListener(ln, s)
	s.mu.Lock()
	s.mu.listeners = append(s.mu.listeners, l)
	s.mu.Unlock()
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP on %v: %w", ln.Addr(), err)
	}
	return nil
}

// Shutdown closes the listeners, lets waits end empty and everything else
// finish, and returns when no request is left. When ctx ends first, connections
// are closed and broker calls cancelled; it returns ctx's error then.
func (s *Server) Shutdown(ctx context.Context) error {
	s.drain()
	err := s.http.Shutdown(ctx)
	if err == nil {
		err = s.late.wait(ctx)
	}
	if err != nil {
		s.stop()
		_ = s.http.Close() // the connections are lost either way
		s.late.close()
	}
	s.awaitIdle()
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.mu.listeners {
		l.turned.Wait()
	}
	return err
}

// awaitIdle waits for handlers whose connections are closed already. Their
// broker calls are cancelled, so they end soon; a handler that does not end is
// left behind after AdminTime rather than keep the node from stopping.
func (s *Server) awaitIdle() {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	end := time.Now().Add(s.limits.AdminTime)
	for s.active.Load() > 0 && time.Now().Before(end) {
		<-tick.C
	}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.active.Add(1)
	x := s.exchanges.Get().(*exchange)
	x.reset(s, w, r)
	defer s.finish(x, time.Now())
	if err := s.dispatch(x); err != nil {
		x.fail(err)
	}
}

// finish counts the request and survives a panic of its handler.
func (s *Server) finish(x *exchange, started time.Time) {
	p := recover()
	if x.unwatch != nil {
		x.unwatch()
	}
	if p != nil && !isAbort(p) {
		s.metrics.panics.Inc()
		s.log.Error("a handler panicked: this is a bug, please report it",
			slog.String("route", x.template()), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
		if !x.wroteHeader {
			x.fail(errcode.New(errcode.Internal, "an internal error; it was logged on the node"))
			p = nil
		}
	}
	status := x.status
	if p != nil {
		status = 0 // aborted
	}
	now := time.Now()
	if x.conn != nil {
		x.conn.now = now // the answer leaves next
	}
	series := s.seriesOf(x)
	series.done(status, now.Sub(started).Seconds(), x.in, x.out)
	s.active.Add(-1)
	if p != nil {
		// Whatever the handler left behind is not used again.
		if x.charged > 0 {
			s.largeBodies.Add(-x.charged)
		}
		panic(http.ErrAbortHandler)
	}
	x.release()
	s.exchanges.Put(x)
}

// isAbort reports whether a panic is the way to break an answer off.
func isAbort(p any) bool {
	err, ok := p.(error)
	return ok && errors.Is(err, http.ErrAbortHandler)
}

func (s *Server) seriesOf(x *exchange) *routeMetrics {
	if x.route != nil {
		return x.route.metrics
	}
	return s.metrics.unrouted(x.r.Method)
}
