package api

import (
	"net/http"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

func (s *Server) scrub(x *exchange) error {
	ctx, cancel := s.bounded()
	defer cancel()
	r, err := s.broker.Scrub(ctx)
	if err != nil {
		return err
	}
	return x.replyJSON(http.StatusOK, r)
}

// startScrub has a topic verified. It is accepted when it answers, not done.
func (s *Server) startScrub(x *exchange) error {
	if err := x.noBody(); err != nil {
		return err
	}
	topic, given := x.query.get("topic")
	if given && topic == "" {
		return errcode.New(errcode.InvalidArgument, "the parameter topic is empty: name a topic, or leave it out for all of them")
	}
	ctx, cancel := s.bounded()
	defer cancel()
	r, err := s.broker.StartScrub(ctx, topic)
	if err != nil {
		return err
	}
	return x.replyJSON(http.StatusAccepted, r)
}
