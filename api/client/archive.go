package client

import (
	"context"
	"net/http"
	"net/url"

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

// Scrub says what the node has read again of what it stored, and what it found.
func (c *Client) Scrub(ctx context.Context) (broker.ScrubReport, error) {
	var r broker.ScrubReport
	_, err := c.call(ctx, request{method: http.MethodGet, path: path("v1", "archive", "scrub")}, &r)
	return r, err
}

// StartScrub has a topic verified, all of them when topic is "", and does not wait
// for the end: Scrub says in Asked what is left.
func (c *Client) StartScrub(ctx context.Context, topic string) (broker.ScrubReport, error) {
	var r broker.ScrubReport
	q := url.Values{}
	if topic != "" {
		q.Set("topic", topic)
	}
	_, err := c.call(ctx, request{method: http.MethodPost, path: path("v1", "archive", "scrub"), query: q}, &r)
	return r, err
}
