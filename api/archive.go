package api

import "net/http"

func (s *Server) garbage(x *exchange) error {
	ctx, cancel := s.bounded()
	defer cancel()
	r, err := s.broker.Garbage(ctx)
	if err != nil {
		return err
	}
	return x.replyJSON(http.StatusOK, r)
}

// collectGarbage takes a turn. It may take as long as an administrative call
// may; what is left then comes with the next turn.
func (s *Server) collectGarbage(x *exchange) error {
	if err := x.noBody(); err != nil {
		return err
	}
	ctx, cancel := s.bounded()
	defer cancel()
	r, err := s.broker.CollectGarbage(ctx)
	if err != nil {
		return err
	}
	return x.replyJSON(http.StatusOK, r)
}
