package client

import (
	"context"
	"net/http"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// Garbage says what the archive holds that nothing needs any more. NotFound:
// the node has no archive.
func (c *Client) Garbage(ctx context.Context) (broker.GarbageReport, error) {
	var r broker.GarbageReport
	_, err := c.call(ctx, request{method: http.MethodGet, path: path("v1", "archive", "garbage")}, &r)
	return r, err
}

// CollectGarbage makes the node delete what is due now, and says what is left.
func (c *Client) CollectGarbage(ctx context.Context) (broker.GarbageReport, error) {
	var r broker.GarbageReport
	_, err := c.call(ctx, request{method: http.MethodPost, path: path("v1", "archive", "garbage")}, &r)
	return r, err
}
