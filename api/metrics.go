package api

import (
	"net/http"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// metrics counts requests. Every label value comes from a closed list of this
// package or of errcode: nothing that a client sends becomes a label.
type metrics struct {
	requests    *prometheus.CounterVec
	seconds     *prometheus.HistogramVec
	bytesIn     *prometheus.CounterVec
	bytesOut    *prometheus.CounterVec
	refusals    *prometheus.CounterVec
	connections prometheus.Gauge
	turnedAway  prometheus.Counter
	handshakes  prometheus.Counter
	panics      prometheus.Counter
	unreturned  prometheus.Counter

	other sync.Map // method class -> *routeMetrics of requests without a route
}

// routeMetrics are the series of one method of one route.
type routeMetrics struct {
	byClass [6]prometheus.Counter // by status class; 0: aborted
	seconds prometheus.Observer
	in, out prometheus.Counter
}

var statusClasses = [6]string{"aborted", "1xx", "2xx", "3xx", "4xx", "5xx"}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	labels := []string{"route", "method"}
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_http_requests_total", Help: "Requests by route template, method and class of the status; aborted: the answer broke off.",
		}, []string{"route", "method", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tidemark_http_request_seconds", Help: "Time from the end of the request's headers to the end of its handler, waits included.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5, 10, 30},
		}, labels),
		bytesIn:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemark_http_body_bytes_in_total", Help: "Bytes of request bodies that were read."}, labels),
		bytesOut: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemark_http_body_bytes_out_total", Help: "Bytes of answers."}, labels),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_http_refusals_total", Help: "Requests that were answered with an error, by what they asked for and the error's code.",
		}, []string{"area", "cause"}),
		connections: prometheus.NewGauge(prometheus.GaugeOpts{Name: "tidemark_http_connections", Help: "Open connections."}),
		turnedAway:  prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_http_connections_refused_total", Help: "Connections beyond the bound, answered 503 and closed."}),
		handshakes:  prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_http_handshake_failures_total", Help: "Connections that ended before their TLS handshake was done, other than by closing."}),
		panics:      prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_http_panics_total", Help: "Handlers that panicked: each is a bug."}),
		unreturned:  prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_http_leases_released_total", Help: "Leased records that went back at once because their answer could not be written."}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{
		m.requests, m.seconds, m.bytesIn, m.bytesOut, m.refusals, m.connections, m.turnedAway, m.handshakes, m.panics, m.unreturned,
	} {
		if err := reg.Register(c); err != nil {
			return nil, errcode.Wrap(errcode.Internal, err, "register the metrics of the HTTP plane")
		}
	}
	return m, nil
}

// route makes the series of one method of one route.
func (m *metrics) route(method, template string) *routeMetrics {
	r := &routeMetrics{
		seconds: m.seconds.WithLabelValues(template, method),
		in:      m.bytesIn.WithLabelValues(template, method),
		out:     m.bytesOut.WithLabelValues(template, method),
	}
	for i, class := range statusClasses {
		r.byClass[i] = m.requests.WithLabelValues(template, method, class)
	}
	return r
}

// unrouted returns the series of requests that reached no route.
func (m *metrics) unrouted(method string) *routeMetrics {
	class := methodClass(method)
	if r, ok := m.other.Load(class); ok {
		return r.(*routeMetrics)
	}
	r, _ := m.other.LoadOrStore(class, m.route(class, otherRoute))
	return r.(*routeMetrics)
}

// methodClass maps what a client calls a method to a closed list.
func methodClass(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	default:
		return "other"
	}
}

func (r *routeMetrics) done(status int, seconds float64, in, out int64) {
	class := 0
	if status >= 100 && status < 600 {
		class = status / 100
	}
	r.byClass[class].Inc()
	r.seconds.Observe(seconds)
	r.in.Add(float64(in))
	r.out.Add(float64(out))
}

// Areas of refusals: what a refused request asked for.
const (
	areaProduce    = "produce"
	areaConsume    = "consume"
	areaAck        = "ack"
	areaRead       = "read" // of the log, by offset or time
	areaTopics     = "topics"
	areaAdmin      = "admin"
	areaConnection = "connection" // it was turned away, or is no HTTP
	areaOther      = "other"      // no route, and what belongs to none of these
)

// areaOf returns the area of a route.
func areaOf(template string) string {
	last := template[strings.LastIndexByte(template, '/')+1:]
	switch {
	case strings.Contains(template, "/produce"):
		return areaProduce
	case last == "consume":
		return areaConsume
	case last == "ack":
		return areaAck
	case last == "records", last == "offset":
		return areaRead
	case last == "topics", last == ":topic", last == "trim":
		return areaTopics
	case strings.HasPrefix(template, "/v1/"):
		return areaAdmin
	default:
		return areaOther
	}
}

func (m *metrics) refused(area string, code errcode.Code) {
	m.refusals.WithLabelValues(area, code.String()).Inc()
}
