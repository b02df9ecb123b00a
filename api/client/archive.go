package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// ArchivePage says which topics ArchiveStatus is to list. The zero value is the
// first page of all.
type ArchivePage struct {
	Topic string // only this one, with its partitions
	Limit int    // topics of a page; 0: the node's default
	Token string // NextPageToken of the page before
}

// ArchiveStatus says how far the archive is behind the node, and what it costs.
// NotFound: the node has no archive, or not this topic.
func (c *Client) ArchiveStatus(ctx context.Context, page ArchivePage) (broker.ArchiveStatus, error) {
	q := url.Values{}
	if page.Topic != "" {
		q.Set("topic", page.Topic)
	}
	if page.Limit > 0 {
		q.Set("limit", strconv.Itoa(page.Limit))
	}
	if page.Token != "" {
		q.Set("page_token", page.Token)
	}
	var s broker.ArchiveStatus
	_, err := c.call(ctx, request{method: http.MethodGet, path: path("v1", "archive"), query: q}, &s)
	return s, err
}

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
