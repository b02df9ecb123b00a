package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Errors of nodes, proxies and networks each have a code; what may have been
// applied says so.
func TestClientErrors(t *testing.T) {
	var status int
	var body string
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}))
	defer proxy.Close()
	c, err := New(proxy.URL, Options{Retry: Retry{Tries: 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseIdleConnections()
	ctx := context.Background()
	for _, want := range []struct {
		status int
		body   string
		code   errcode.Code
	}{
		{502, "<html>", errcode.Internal}, {503, "", errcode.Unavailable}, {401, "no", errcode.Unauthorized}, {404, "nginx", errcode.NotFound}, {400, "bad", errcode.InvalidArgument},
		{429, "[]", errcode.TooMany}, {403, `{"error":"x","code":"from_the_future"}`, errcode.Denied}, {504, `{"error":"x","code":"not_confirmed","retry":"unknown","offset":12345678901234567}`, errcode.NotConfirmed},
	} {
		status, body = want.status, want.body
		_, err := c.Produce(ctx, "t", broker.Record{}, ProduceOptions{})
		if errcode.Of(err) != want.code {
			t.Errorf("%d %q: %v", want.status, want.body, err)
		}
		var e *errcode.Error
		if want.code == errcode.NotConfirmed && (!errors.As(err, &e) || fmt.Sprint(e.Facts["offset"]) != "12345678901234567" || e.Wait != 7*time.Second) {
			t.Errorf("facts: %+v", e)
		}
	}
	status, body = 200, `{"ready":tru`
	if _, err := c.Topic(ctx, "t"); !errcode.Is(err, errcode.Internal) {
		t.Errorf("a broken answer: %v", err)
	}
	status, body = 503, `{"ready":false,"data":true,"control":false,"degraded":["no leader"],"causes":[{"cause":"metadata","blocks":"control","reason":"no leader"}],"more":[1]}`
	r, err := c.Ready(ctx)
	if err != nil || r.Ready || !r.Data || len(r.Degraded) != 1 || len(r.Causes) != 1 || r.Causes[0] != (ReadinessCause{Cause: "metadata", Blocks: "control", Reason: "no leader"}) {
		t.Errorf("readiness %+v %v", r, err)
	}
	body = `{"ready":false,"data":"yes","degraded":["no leader"]}`
	if r, err := c.Ready(ctx); err != nil || r.Ready || r.Data || len(r.Degraded) != 1 {
		t.Errorf("readiness with another type %+v %v", r, err)
	}
	status, body = 503, "<html>"
	if _, err := c.Ready(ctx); !errcode.Is(err, errcode.Unavailable) {
		t.Errorf("a proxy is not readiness: %v", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := c.Topic(ended, "t"); !errcode.Is(err, errcode.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	proxy.Close()
	if _, err := c.Topic(ctx, "t"); !errcode.Is(err, errcode.Unavailable) {
		t.Errorf("a read without an answer: %v", err)
	}
	for _, base := range []string{"", "localhost:7942", "ftp://x", "http://", "http://x?y", "://"} {
		if _, err := New(base, Options{}); err == nil {
			t.Errorf("address %q was taken", base)
		}
	}
}
