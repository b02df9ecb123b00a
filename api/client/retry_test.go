package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// transport stands in for a node inside a bubble of synctest, where there is no
// network and time passes at once.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t := httptrace.ContextClientTrace(r.Context()); t != nil {
		t.GetConn("")
		t.GotConn(httptrace.GotConnInfo{})
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return f(r)
}

func answer(status int, body string, header ...string) (*http.Response, error) {
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return &http.Response{StatusCode: status, Status: fmt.Sprint(status), Header: h, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body))}, nil
}

// inside returns a client of f.
func inside(t *testing.T, f transport, retry Retry) *Client {
	t.Helper()
	c, err := New("http://node", Options{HTTP: &http.Client{Transport: f}, Retry: retry})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var errCut = errors.New("cut")

// Each retry class is repeated where it is safe and nowhere else; Retry-After is
// kept, in both of its forms; the bounds on tries and pauses hold.
func TestRetryClasses(t *testing.T) {
	refused := func(code, class string) string { return fmt.Sprintf(`{"error":"x","code":%q,"retry":%q}`, code, class) }
	call := map[string]func(context.Context, *Client) error{
		"produce": func(ctx context.Context, c *Client) error {
			_, err := c.Produce(ctx, "t", Record{}, ProduceOptions{Ack: AckCommitted})
			return err
		},
		"at least once": func(ctx context.Context, c *Client) error {
			_, err := c.Produce(ctx, "t", Record{}, ProduceOptions{AtLeastOnce: true})
			return err
		},
		"read":   func(ctx context.Context, c *Client) error { _, err := c.Topic(ctx, "t"); return err },
		"ack":    func(ctx context.Context, c *Client) error { return c.Ack(ctx, "t", "h") },
		"create": func(ctx context.Context, c *Client) error { _, err := c.CreateTopic(ctx, TopicSpec{}); return err },
		"ready":  func(ctx context.Context, c *Client) error { _, err := c.Ready(ctx); return err },
	}
	for _, tc := range []struct {
		name, call string
		fail       func(r *http.Request) (*http.Response, error)
		tries      int
		least      time.Duration
	}{
		{"refused", "produce", func(*http.Request) (*http.Response, error) { return answer(503, refused("overloaded", "after")) }, 4, 350 * time.Millisecond},
		{"moved", "create", func(*http.Request) (*http.Response, error) { return answer(503, refused("fenced", "redirect")) }, 4, 0},
		{"at a bound", "read", func(*http.Request) (*http.Response, error) {
			return answer(429, refused("too_many", "after"), "Retry-After", "3")
		}, 4, 9 * time.Second},
		{"a date", "read", func(*http.Request) (*http.Response, error) {
			return answer(503, "", "Retry-After", time.Now().Add(5*time.Second).UTC().Format(http.TimeFormat))
		}, 4, 12 * time.Second},
		{"too long a wait", "read", func(*http.Request) (*http.Response, error) { return answer(503, "", "Retry-After", "11") }, 1, 0},
		{"wrong", "read", func(*http.Request) (*http.Response, error) {
			return answer(400, refused("invalid_argument", "never"))
		}, 1, 0},
		{"unknown read", "read", func(*http.Request) (*http.Response, error) { return answer(500, refused("internal", "unknown")) }, 4, 0},
		{"unknown ack", "ack", func(*http.Request) (*http.Response, error) {
			return answer(504, refused("not_confirmed", "unknown"))
		}, 4, 0},
		{"unknown produce", "produce", func(*http.Request) (*http.Response, error) {
			return answer(504, refused("not_confirmed", "unknown"))
		}, 1, 0},
		{"unknown create", "create", func(*http.Request) (*http.Response, error) { return answer(500, "") }, 1, 0},
		{"unknown, allowed", "at least once", func(*http.Request) (*http.Response, error) { return answer(502, "<html>") }, 4, 0},
		{"of a newer node", "produce", func(*http.Request) (*http.Response, error) { return answer(418, refused("teapot", "after")) }, 4, 0},
		{"of a newer node, unknown", "produce", func(*http.Request) (*http.Response, error) { return answer(418, refused("teapot", "unknown")) }, 1, 0},
		{"lost answer", "produce", func(*http.Request) (*http.Response, error) { return nil, errCut }, 1, 0},
		{"lost answer of a read", "read", func(*http.Request) (*http.Response, error) { return nil, errCut }, 4, 0},
		{"lost answer of an ack", "ack", func(*http.Request) (*http.Response, error) { return nil, errCut }, 4, 0},
		{"half an answer", "read", func(*http.Request) (*http.Response, error) {
			res, err := answer(200, "")
			res.Body = io.NopCloser(io.MultiReader(strings.NewReader(`{"na`), failing{}))
			return res, err
		}, 4, 0},
		{"not sent", "produce", func(r *http.Request) (*http.Response, error) {
			httptrace.ContextClientTrace(r.Context()).WroteRequest(httptrace.WroteRequestInfo{Err: errCut})
			return nil, errCut
		}, 4, 0},
		{"not ready", "ready", func(*http.Request) (*http.Response, error) { return answer(503, "<html>") }, 1, 0},
		{"moved as a GET", "produce", func(*http.Request) (*http.Response, error) { return answer(302, "", "Location", "/elsewhere") }, 1, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				c := inside(t, func(r *http.Request) (*http.Response, error) { tries++; return tc.fail(r) }, Retry{})
				began := time.Now()
				if err := call[tc.call](t.Context(), c); err == nil {
					t.Error("no error")
				}
				if took := time.Since(began); tries != tc.tries || took < tc.least || took > tc.least+20*time.Second {
					t.Errorf("%d tries in %s, want %d in at least %s", tries, took, tc.tries, tc.least)
				}
			})
		})
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errCut }

// A call that cannot be repeated before its context ends fails at once and with
// the error that says why, not with the context's; one whose context ends while it
// waits stops waiting.
func TestRetryKeepsToContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		c := inside(t, func(*http.Request) (*http.Response, error) {
			tries++
			return answer(503, "", "Retry-After", "5")
		}, Retry{Tries: 100})
		ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
		defer cancel()
		began := time.Now()
		_, err := c.Topic(ctx, "t")
		if took := time.Since(began); !Is(err, Unavailable) || tries < 2 || took >= 12*time.Second {
			t.Errorf("%d tries, %s: %v", tries, took, err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		began = time.Now()
		time.AfterFunc(time.Second, cancel)
		if _, err := c.Topic(ctx, "t"); !Is(err, Unavailable) || time.Since(began) != time.Second {
			t.Errorf("%s: %v", time.Since(began), err)
		}
	})
}

// The pause doubles to its bound and keeps half of itself random; a shift does
// not overflow.
func TestRetryPause(t *testing.T) {
	r := Retry{}.withDefaults()
	for try := 1; try < 200; try++ {
		want := 10 * time.Second
		if try < 8 {
			want = min(want, 100*time.Millisecond<<(try-1))
		}
		for range 50 {
			if d, ok := r.pause(try, errCut); !ok || d < want/2 || d > want {
				t.Fatalf("try %d: %s, want %s to %s", try, d, want/2, want)
			}
		}
	}
}

// What is read of an answer has a bound, and what lies beyond it is an error.
func TestAnswersAreBounded(t *testing.T) {
	c := inside(t, func(*http.Request) (*http.Response, error) {
		res, err := answer(200, "")
		res.Body, res.ContentLength = io.NopCloser(zeros{}), 1<<50 // which is not believed
		return res, err
	}, Retry{Tries: 1})
	if _, err := c.Topic(t.Context(), "t"); !Is(err, TooLarge) {
		t.Error(err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// Over real connections: what was never sent is known from what may have
// arrived. A refused connection and one that breaks while the request is written
// have had no effect; one that breaks after it may have had.
func TestSentIsKnownFromUnsent(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var deaf atomic.Bool // reads a little, then resets the connection
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			buf := make([]byte, 1000)
			if deaf.Load() {
				_, _ = conn.Read(buf)
				_ = conn.(*net.TCPConn).SetLinger(0)
			} else {
				var got []byte
				for !bytes.Contains(got, []byte("whole")) {
					n, err := conn.Read(buf)
					if err != nil {
						break
					}
					got = append(got, buf[:n]...)
				}
			}
			_ = conn.Close()
		}
	}()
	c, err := New("http://"+ln.Addr().String(), Options{Retry: Retry{Tries: 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseIdleConnections()
	produce := func(value []byte) error {
		_, err := c.Produce(t.Context(), "t", Record{Value: value}, ProduceOptions{})
		return err
	}
	if err := produce([]byte("whole")); errcode.Of(err).Retry() != RetryUnknown || !errors.Is(err, ErrNoAnswer) {
		t.Errorf("cut after the request: %v", err)
	}
	deaf.Store(true)
	if err := produce(make([]byte, 64<<20)); !Is(err, Unavailable) || errors.Is(err, ErrNoAnswer) {
		t.Errorf("cut within the request: %v", err)
	}
	ln.Close()
	<-served
	if err := produce(nil); !Is(err, Unavailable) {
		t.Errorf("refused connection: %v", err)
	}
}

// An answer that breaks off within its records may have leased them; one within
// a read did no harm. Both are known as such.
func TestCutAnswers(t *testing.T) {
	for _, media := range []string{mediaFrames, "application/json"} {
		c := inside(t, func(*http.Request) (*http.Response, error) {
			res, _ := answer(http.StatusOK, "", "Content-Type", media)
			res.Body, res.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader("\x00\x00"), iotest.ErrReader(io.ErrUnexpectedEOF))), -1
			return res, nil
		}, Retry{Tries: 1})
		_, err := c.Consume(t.Context(), "t", ConsumeOptions{Max: 5})
		if !errors.Is(err, ErrNoAnswer) || errcode.Of(err).Retry() != RetryUnknown || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", media, err)
		}
		if _, _, err := c.Topics(t.Context(), "", 5); !errors.Is(err, ErrNoAnswer) || !Is(err, Unavailable) {
			t.Errorf("%s, a read: %v", media, err)
		}
	}
}

// B03: a redirect never loses a body. 307 carries a produce over, whole and once;
// 301 to 303, which would make a GET of it, are refused.
func TestRedirectsKeepTheCall(t *testing.T) {
	r := through(t, Options{}, TopicSpec{})
	target := "http://" + started.addr
	for status, stored := range map[int]bool{301: false, 302: false, 303: false, 307: true, 308: true} {
		r.on("/produce", func(int) fault {
			return fault{status: status, header: http.Header{"Location": {target + path("v1", "topics", r.topic, "produce")}}}
		})
		_, err := r.c.Produce(t.Context(), r.topic, Record{Value: []byte(fmt.Sprint(status))}, ProduceOptions{Ack: AckCommitted})
		if (err == nil) != stored {
			t.Errorf("%d: %v", status, err)
		}
	}
	r.on("", nil)
	if got := r.values(0); len(got) != 2 {
		t.Errorf("stored: %q", got)
	}
	r.on("/produce", func(int) fault { return fault{status: 307, header: http.Header{"Location": {"/produce"}}} })
	if _, err := r.c.Produce(t.Context(), r.topic, Record{}, ProduceOptions{}); err == nil || !strings.Contains(err.Error(), "redirected") {
		t.Errorf("in circles: %v", err)
	}
}
