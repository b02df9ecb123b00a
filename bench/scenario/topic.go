package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/tidemark-mq/tidemark/bench/rawhttp"
)

const typeJSON = "application/json"

func topicPath(topic, rest string) string { return "/v1/topics/" + topic + rest }

// ask sends one request on a connection of its own.
func ask(ctx context.Context, t *rawhttp.Target, r rawhttp.Request, out any, want ...int) error {
	c, err := t.Dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	a, err := c.Do(r)
	if err != nil {
		return err
	}
	if err := a.Refused(r, want...); err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(a.Body, out); err != nil {
		return fmt.Errorf("%s %s: decode the answer: %w", r.Method, r.Path, err)
	}
	return nil
}

// createTopic makes a topic that takes records of that size.
func createTopic(ctx context.Context, t *rawhttp.Target, name string, partitions, size int) error {
	spec := map[string]any{"name": name, "partitions": partitions}
	if size > 1<<20 {
		spec["max_record_bytes"] = size
	}
	body, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return ask(ctx, t, rawhttp.Request{Method: http.MethodPost, Path: "/v1/topics", Type: typeJSON, Body: body}, nil, http.StatusCreated)
}

func deleteTopic(ctx context.Context, t *rawhttp.Target, name string) error {
	return ask(ctx, t, rawhttp.Request{Method: http.MethodDelete, Path: topicPath(name, "?force=true"), Type: typeJSON}, nil, http.StatusNoContent)
}
