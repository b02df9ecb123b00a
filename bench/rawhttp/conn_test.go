package rawhttp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve returns a connection to a server with that handler.
func serve(t *testing.T, ctx context.Context, h http.HandlerFunc) *Conn {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return dial(t, ctx, srv.URL)
}

func dial(t *testing.T, ctx context.Context, url string) *Conn {
	t.Helper()
	target, err := NewTarget(url+"/below/", "u", "p w")
	if err != nil {
		t.Fatal(err)
	}
	c, err := target.Dial(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Proves that requests arrive as they were meant, small and large, and that answers
// of each kind of body are read whole on one connection, also after one that the
// server closes.
func TestDo(t *testing.T) {
	c := serve(t, t.Context(), func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		user, password, _ := r.BasicAuth()
		if err != nil || r.URL.Path != "/below/x" || user != "u" || password != "p w" || r.Header.Get("X-Tidemark-Client") == "" || r.Header.Get("Accept") != "a/b" {
			t.Errorf("%s %s %v: %v", r.Method, r.URL, r.Header, err)
		}
		switch r.URL.Query().Get("as") {
		case "chunks":
			_, _ = w.Write(body)
			w.(http.Flusher).Flush()
		case "close":
			w.Header().Set("Connection", "close")
		case "nothing":
			w.WriteHeader(http.StatusNoContent)
			return
		}
		_, _ = w.Write(body)
	})
	for _, size := range []int{0, 10, smallBody, smallBody + 1, 3 << 20} {
		for as, times := range map[string]int{"length": 1, "chunks": 2, "close": 1, "nothing": 0} {
			body := bytes.Repeat([]byte("x"), size)
			a, err := c.Do(Request{Method: http.MethodPost, Path: "/x?as=" + as, Accept: "a/b", Type: "text/plain", Body: body})
			if err != nil || len(a.Body) != size*times {
				t.Errorf("%d bytes, %s: %d came back, %v", size, as, len(a.Body), err)
			}
			if err := a.Refused(Request{}, 200, 204); err != nil {
				t.Error(err)
			}
		}
	}
}

// Proves that an answer that breaks off, that is no HTTP, or that is too large is
// an error, that a refusal says the server's words, and that the end of the context
// ends a wait.
func TestFailures(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	for _, raw := range []string{"", "nonsense\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = nc.Read(make([]byte, 4096))
			_, _ = nc.Write([]byte(raw))
			nc.Close()
		}()
		if a, err := dial(t, ctx, "http://"+ln.Addr().String()).Do(Request{Method: "GET", Path: "/"}); err == nil {
			t.Errorf("%q is an answer: %+v", raw, a)
		}
		<-done
		ln.Close()
	}
	c := serve(t, ctx, func(w http.ResponseWriter, _ *http.Request) {
		for range maxAnswer>>20 + 1 {
			_, _ = w.Write(make([]byte, 1<<20))
		}
	})
	if _, err := c.Do(Request{Method: "GET", Path: "/"}); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("an answer over the bound: %v", err)
	}
	c = serve(t, ctx, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(503)
		_, _ = w.Write([]byte(`{"error":"the disk is full"}`))
	})
	a, err := c.Do(Request{Method: "GET", Path: "/"})
	if err != nil || a.Refused(Request{}, 200, 503) != nil || !strings.Contains(a.Refused(Request{}, 200).Error(), "503: the disk is full") {
		t.Errorf("%+v %v", a, err)
	}
	asked := make(chan struct{})
	c = serve(t, ctx, func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	})
	enough := errors.New("enough")
	go func() {
		<-asked
		cancel(enough)
	}()
	if _, err := c.Do(Request{Method: "GET", Path: "/"}); !errors.Is(err, enough) {
		t.Errorf("at the end of the context: %v", err)
	}
	for _, bad := range []string{"", "127.0.0.1:1", "ftp://h", "http://", "http://h?x=1", "http://h#f"} {
		if _, err := NewTarget(bad, "", ""); err == nil {
			t.Errorf("%q is a target", bad)
		}
	}
	for url, want := range map[string]string{"http://h": "h:80", "https://h/": "h:443", "http://h:1/p": "h:1"} {
		if target, err := NewTarget(url, "", ""); err != nil || target.host != want {
			t.Errorf("%s: %v %v", url, target, err)
		}
	}
}

// Proves that a small request costs few allocations, most of them the answer's
// headers: the generator shares the machine with what it measures.
func TestDoAllocates(t *testing.T) {
	c := serve(t, t.Context(), func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	r := Request{Method: http.MethodPost, Path: "/", Body: make([]byte, 1024)}
	out := testing.AllocsPerRun(50, func() {
		c.out = c.target.appendHead(c.out[:0], r)
	})
	if out > 0 {
		t.Errorf("%v allocations to write a request", out)
	}
	if _, err := c.Do(r); err != nil {
		t.Fatal(err)
	}
}
