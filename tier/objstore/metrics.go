package objstore

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Metrics count what reaches the store, attempt by attempt. All labels come from
// closed lists: operation, class and cause of the call, and the error's code
// ("ok" without one).
type Metrics struct {
	requests *prometheus.CounterVec
	sent     *prometheus.CounterVec
	received *prometheus.CounterVec
	broken   *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	dollars  *prometheus.CounterVec
	usage    usage
}

// What the requests of an operation cost, in dollars, at the list price of S3
// Standard in its first region. It is an estimate: other stores have other
// prices, retention in them and traffic out of them are not in it.
const (
	PutPrice = 0.005 / 1000 // and list; deletes are free
	GetPrice = 0.0004 / 1000
)

func priceOf(op string) float64 {
	switch op {
	case "put", "list":
		return PutPrice
	case "delete":
		return 0
	}
	return GetPrice
}

// NewMetrics returns the metrics of a node's stores, registered with reg unless
// it is nil.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "objstore", Name: name, Help: help}, labels)
	}
	m := &Metrics{
		requests: counter("requests_total", "Requests to the object store by operation, class, cause and result.", "operation", "class", "cause", "code"),
		sent:     counter("sent_bytes_total", "Bytes of objects that were put.", "class", "cause"),
		received: counter("received_bytes_total", "Bytes of objects that were read.", "class", "cause"),
		dollars:  counter("request_dollars_total", "Estimated price of the requests by cause, at list prices of S3.", "cause"),
		broken:   counter("broken_bodies_total", "Answers that ended before the object did, by class, cause and error.", "class", "cause", "code"),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "tidemark", Subsystem: "objstore", Name: "request_seconds",
			Help:    "Time to the end of a request, for a get to the beginning of its body.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"operation", "class"}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.requests, m.sent, m.received, m.broken, m.seconds, m.dollars} {
		if err := reg.Register(c); err != nil {
			return nil, errcode.Wrap(errcode.Internal, err, "register the object store's metrics")
		}
	}
	return m, nil
}

// observe counts one request that began at start.
func (m *Metrics) observe(ctx context.Context, op string, start time.Time, err error) {
	cause := CauseOf(ctx)
	m.usage.request(cause, op)
	m.requests.WithLabelValues(op, cause.Class().String(), cause.String(), resultOf(err)).Inc()
	m.dollars.WithLabelValues(cause.String()).Add(priceOf(op))
	m.seconds.WithLabelValues(op, cause.Class().String()).Observe(time.Since(start).Seconds())
}

func resultOf(err error) string {
	if err == nil {
		return "ok"
	}
	return errcode.Of(err).String()
}

func (m *Metrics) addSent(ctx context.Context, n int64) {
	cause := CauseOf(ctx)
	m.usage.sent[known(cause)].Add(n)
	m.sent.WithLabelValues(cause.Class().String(), cause.String()).Add(float64(n))
}

func (m *Metrics) addReceived(ctx context.Context, n int64) {
	cause := CauseOf(ctx)
	m.usage.received[known(cause)].Add(n)
	m.received.WithLabelValues(cause.Class().String(), cause.String()).Add(float64(n))
}

// WithMetrics counts the calls on s in m.
func WithMetrics(s Store, m *Metrics) Store { return &measured{s, m} }

type measured struct {
	store Store
	m     *Metrics
}

func (d *measured) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, opts PutOptions) error {
	start := time.Now()
	err := d.store.Put(ctx, key, body, size, opts)
	d.m.observe(ctx, "put", start, err)
	if err == nil {
		d.m.addSent(ctx, size)
	}
	return err
}

func (d *measured) Get(ctx context.Context, key string) (io.ReadCloser, Info, error) {
	start := time.Now()
	body, info, err := d.store.Get(ctx, key)
	d.m.observe(ctx, "get", start, err)
	if err != nil {
		return nil, Info{}, err
	}
	return &measuredBody{ReadCloser: body, ctx: ctx, m: d.m}, info, nil
}

func (d *measured) GetRange(ctx context.Context, key string, p []byte, off int64) (int, error) {
	start := time.Now()
	n, err := d.store.GetRange(ctx, key, p, off)
	d.m.observe(ctx, "get_range", start, err)
	d.m.addReceived(ctx, int64(n))
	return n, err
}

func (d *measured) Head(ctx context.Context, key string) (Info, error) {
	start := time.Now()
	info, err := d.store.Head(ctx, key)
	d.m.observe(ctx, "head", start, err)
	return info, err
}

func (d *measured) List(ctx context.Context, prefix, startAfter string, limit int) (Page, error) {
	start := time.Now()
	page, err := d.store.List(ctx, prefix, startAfter, limit)
	d.m.observe(ctx, "list", start, err)
	return page, err
}

func (d *measured) Delete(ctx context.Context, keys []string) error {
	start := time.Now()
	err := d.store.Delete(ctx, keys)
	d.m.observe(ctx, "delete", start, err)
	return err
}

func (d *measured) Capabilities() Capabilities { return d.store.Capabilities() }
func (d *measured) Close() error               { return d.store.Close() }

// Unwrap returns the store below.
func (d *measured) Unwrap() Store { return d.store }

// measuredBody counts the bytes that a body gave when it ends or is closed.
type measuredBody struct {
	io.ReadCloser
	ctx  context.Context
	m    *Metrics
	n    int64
	done bool
}

func (b *measuredBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n += int64(n)
	if err != nil {
		b.settle(err)
	}
	return n, err
}

func (b *measuredBody) Close() error {
	b.settle(nil)
	return b.ReadCloser.Close()
}

func (b *measuredBody) settle(err error) {
	if b.done {
		return
	}
	b.done = true
	b.m.addReceived(b.ctx, b.n)
	if err != nil && !errors.Is(err, io.EOF) {
		cause := CauseOf(b.ctx)
		b.m.broken.WithLabelValues(cause.Class().String(), cause.String(), resultOf(err)).Inc()
	}
}
