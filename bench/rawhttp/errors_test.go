package rawhttp

import (
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// Proves that a refusal keeps its status, its class of retry and its Retry-After in
// both forms, and that it says so when the answer says nothing.
func TestRefusedError(t *testing.T) {
	for _, c := range []struct {
		body, after string
		want        RefusedError
	}{
		{`{"error":"full","code":"overloaded","retry":"after"}`, "3", RefusedError{"POST /x", 503, "after", 3 * time.Second, "full"}},
		{`{"error":"wrong","retry":"never"}`, "", RefusedError{"POST /x", 503, "never", 0, "wrong"}},
		{`<html>`, "-1", RefusedError{"POST /x", 503, "", 0, `"<html>"`}},
		{``, "Sat, 01 Jan 2000 00:00:00 GMT", RefusedError{"POST /x", 503, "", 0, `""`}},
	} {
		a := Answer{Status: 503, Header: http.Header{"Retry-After": {c.after}}, Body: []byte(c.body)}
		var e *RefusedError
		if err := a.Refused(Request{Method: "POST", Path: "/x"}, 200); !errors.As(err, &e) || *e != c.want {
			t.Errorf("%s: %+v", c.body, e)
		}
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if d := retryAfter(http.Header{"Retry-After": {now.Add(7 * time.Second).Format(http.TimeFormat)}}, now); d != 7*time.Second {
		t.Errorf("a date seven seconds from now is %v", d)
	}
}

// Proves that a request without an answer in its time is one, that a connection
// which broke is another kind, that both say that the server may have done it, and that
// the next request works on a new connection.
func TestNoAnswer(t *testing.T) {
	var n atomic.Int64
	release := make(chan struct{})
	c := serve(t, t.Context(), func(w http.ResponseWriter, r *http.Request) {
		switch n.Add(1) {
		case 1:
			select {
			case <-release:
			case <-r.Context().Done():
			}
		case 3:
			panic(http.ErrAbortHandler)
		}
	})
	defer close(release)
	c.AnswerWithin(50 * time.Millisecond)
	for i, want := range []struct{ none, timeout bool }{{true, true}, {false, false}, {true, false}, {false, false}} {
		if i == 1 {
			c.AnswerWithin(time.Minute)
		}
		_, err := c.Do(Request{Method: http.MethodPost, Path: "/"})
		var e *NoAnswerError
		if errors.As(err, &e) != want.none || (err != nil) != want.none || want.none && (e.Timeout() != want.timeout || !e.Sent) {
			t.Errorf("request %d: %v", i+1, err)
		}
	}
}

// Proves that a server which is gone is told from one that may have done the work.
func TestNoConnection(t *testing.T) {
	c := serve(t, t.Context(), func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	if _, err := c.Do(Request{Method: http.MethodPost, Path: "/"}); err == nil {
		t.Fatal("no error")
	}
	c.target.host = "127.0.0.1:1"
	var e *NoAnswerError
	if _, err := c.Do(Request{Method: http.MethodPost, Path: "/"}); !errors.As(err, &e) || e.Sent || e.Timeout() {
		t.Errorf("%v", err)
	}
}
