package client

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// CreateTopic creates a topic durably.
func (c *Client) CreateTopic(ctx context.Context, spec broker.TopicSpec) (broker.TopicInfo, error) {
	var info broker.TopicInfo
	_, err := c.callJSON(ctx, request{method: http.MethodPost, path: path("v1", "topics")}, spec, &info)
	return info, err
}

// Topic describes a topic with the numbers of its partitions.
func (c *Client) Topic(ctx context.Context, name string) (broker.TopicInfo, error) {
	var info broker.TopicInfo
	_, err := c.call(ctx, request{method: http.MethodGet, path: path("v1", "topics", name)}, &info)
	return info, err
}

// Topics returns one page of the topics by name. token is "" for the first
// page; next is "" on the last one. limit 0 leaves the size to the node.
func (c *Client) Topics(ctx context.Context, token string, limit int) (topics []broker.TopicInfo, next string, err error) {
	q := url.Values{}
	if token != "" {
		q.Set("page_token", token)
	}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	var page struct {
		Topics []broker.TopicInfo `json:"topics"`
		Next   string             `json:"next_page_token"`
	}
	_, err = c.call(ctx, request{method: http.MethodGet, path: path("v1", "topics"), query: q}, &page)
	return page.Topics, page.Next, err
}

// SetTopic changes the settings that change names, all of them or none; they
// hold when it returns. Name and partitions cannot be changed.
func (c *Client) SetTopic(ctx context.Context, name string, change broker.TopicSpec) (broker.TopicInfo, error) {
	var info broker.TopicInfo
	_, err := c.callJSON(ctx, request{method: http.MethodPatch, path: path("v1", "topics", name)}, change, &info)
	return info, err
}

// DeleteTopic deletes a topic and everything in it; without force only when
// every record is settled.
func (c *Client) DeleteTopic(ctx context.Context, name string, force bool) error {
	q := url.Values{}
	if force {
		q.Set("force", "true")
	}
	_, err := c.call(ctx, request{method: http.MethodDelete, path: path("v1", "topics", name), query: q}, nil)
	return err
}

// OffsetForTime returns the first offset of a partition whose record is at or
// after t, or the partition's end.
func (c *Client) OffsetForTime(ctx context.Context, topic string, partition uint32, t time.Time) (int64, error) {
	var out struct {
		Offset int64 `json:"offset"`
	}
	q := url.Values{"at": {t.UTC().Format(time.RFC3339Nano)}}
	_, err := c.call(ctx, request{method: http.MethodGet, path: partitionPath(topic, partition, "offset"), query: q}, &out)
	return out.Offset, err
}

// Trim removes the records of a partition below an offset, which is the first to
// keep, and returns where its log begins then.
func (c *Client) Trim(ctx context.Context, topic string, partition uint32, before int64) (oldest int64, err error) {
	var out struct {
		Oldest int64 `json:"oldest_offset"`
	}
	body := struct {
		Before int64 `json:"before"`
	}{before}
	_, err = c.callJSON(ctx, request{method: http.MethodPost, path: partitionPath(topic, partition, "trim")}, body, &out)
	return out.Oldest, err
}

func partitionPath(topic string, partition uint32, what string) string {
	return path("v1", "topics", topic, "partitions", strconv.FormatUint(uint64(partition), 10), what)
}

// Ready asks whether the node serves. A node that answers "not ready" is an
// answer with Ready false, not an error.
func (c *Client) Ready(ctx context.Context) (broker.Readiness, error) {
	var r broker.Readiness
	_, err := c.call(ctx, request{method: http.MethodGet, path: path("readyz"), safety: once}, &r)
	if errcode.Is(err, errcode.Unavailable) {
		// The body of a 503 is the readiness itself, which has no code.
		if facts, ok := factsOf(err); ok {
			return readinessOf(facts), nil
		}
	}
	return r, err
}

// factsOf returns the fields of an error answer that has a field ready.
func factsOf(err error) (map[string]any, bool) {
	var e *errcode.Error
	if !errors.As(err, &e) || e.Facts["ready"] == nil {
		return nil, false
	}
	return e.Facts, true
}

// readinessOf reads the fields as the answer of a node that is ready is read. What
// has another type, in an answer that a proxy has made, is left out.
func readinessOf(facts map[string]any) (r broker.Readiness) {
	body, err := json.Marshal(facts)
	if err == nil {
		_ = json.Unmarshal(body, &r) // it goes on behind a field that does not fit
	}
	return r
}
