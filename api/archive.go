package api

import (
	"encoding/base64"
	"net/http"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// archiveStatus describes the archive, with one topic or a page of them.
func (s *Server) archiveStatus(x *exchange) error {
	req := ArchiveStatusRequest{}
	var one bool
	if req.Topic, one = x.query.get("topic"); one {
		for _, name := range []string{"limit", "page_token"} {
			if _, ok := x.query.get(name); ok {
				return errcode.New(errcode.InvalidArgument, "parameter %s does not go with topic, which is one", name)
			}
		}
		if err := broker.ValidateName("topic", req.Topic); err != nil {
			return err
		}
	}
	limit, err := x.query.whole("limit", topicPage, 1, topicPageMax)
	if err != nil {
		return err
	}
	req.Limit = int(limit)
	if req.After, err = x.pageToken(); err != nil {
		return err
	}
	ctx, cancel := s.bounded()
	defer cancel()
	status, more, err := s.broker.ArchiveStatus(ctx, req)
	if err != nil {
		return err
	}
	if n := len(status.Topics); more && n > 0 {
		status.NextPageToken = base64.RawURLEncoding.EncodeToString([]byte(status.Topics[n-1].Topic))
	}
	return x.replyJSON(http.StatusOK, status)
}

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
