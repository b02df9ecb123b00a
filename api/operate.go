package api

import (
	"net/http"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// health says that the process answers; it asks nobody.
func (s *Server) health(x *exchange) error {
	x.reply(http.StatusOK, typeJSON, healthy)
	return nil
}

var healthy = []byte("{\"status\":\"ok\"}\n")

// ready says whether the node should get traffic. A server that drains should
// not.
func (s *Server) ready(x *exchange) error {
	r := s.broker.Readiness()
	if s.draining.Err() != nil {
		// What is asked still works, but none should be sent here.
		r.Degrade(broker.CauseStopping, "", "this node is shutting down")
		r.Ready = false
	}
	status := http.StatusOK
	if !r.Ready {
		status = http.StatusServiceUnavailable
	}
	return x.replyJSON(status, r)
}

func (s *Server) serveMetrics(x *exchange) error {
	if s.opts.Metrics == nil {
		return errcode.New(errcode.NotFound, "metrics are not served on this listener")
	}
	s.opts.Metrics.ServeHTTP(x, x.r)
	return nil
}
