package certs

import (
	"crypto/tls"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Server is the certificate of a listener.
type Server struct {
	current atomic.Pointer[shown]
}

// shown is what a handshake sees.
type shown struct {
	pair   *Pair
	config *tls.Config
}

// NewServer returns a server that shows pair and speaks no TLS older than
// minVersion. It exports when the certificate is over to reg, which may be nil.
func NewServer(pair *Pair, minVersion uint16, reg prometheus.Registerer) (*Server, error) {
	s := &Server{}
	s.Use(pair, minVersion)
	if reg != nil {
		err := reg.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "tidemark_tls_certificate_expiry_timestamp_seconds",
			Help: "Time at which the certificate of the HTTP API is over, in seconds since 1970.",
		}, func() float64 { return float64(s.current.Load().pair.NotAfter().Unix()) }))
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Use shows another pair, from the next handshake on.
func (s *Server) Use(pair *Pair, minVersion uint16) {
	s.current.Store(&shown{pair: pair, config: &tls.Config{
		MinVersion:   minVersion,
		Certificates: []tls.Certificate{pair.cert},
		// The HTTP plane is HTTP/1.1; a client that offers both gets it.
		NextProtos: []string{"http/1.1"},
	}})
}

// Config returns the configuration for a listener. It stays the same one: the
// keys of its session tickets outlive an exchange, and change by themselves.
func (s *Server) Config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.current.Load().config, nil },
	}
}
