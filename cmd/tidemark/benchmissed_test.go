package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// wayward is a node behind a proxy that hands each request on a path, with its number
// from 1 on, to wrong; the request goes on when that returns true.
func wayward(t *testing.T, node, path string, wrong func(n int64, w http.ResponseWriter, r *http.Request) bool) string {
	t.Helper()
	u, err := url.Parse(node)
	if err != nil {
		t.Fatal(err)
	}
	pass := httputil.NewSingleHostReverseProxy(u)
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	pass.Transport = transport
	var n atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, path) || wrong(n.Add(1), w, r) {
			pass.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() {
		srv.Close()
		transport.CloseIdleConnections()
	})
	return srv.URL
}

// refuse answers with a status and an error of the API.
func refuse(w http.ResponseWriter, r *http.Request, status int, retry string) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Retry-After", "2")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, `{"error":"too much at once","code":"overloaded","retry":"`+retry+`"}`)
}

// Proves that the open loop counts what is refused for now, by status and with the
// longest Retry-After, what gets no answer in time, and what begins late, in the
// report and its JSON, and goes on; that records of requests without an answer may be
// there once and refused ones may not; and that delivery is measured with refused
// consumes and acks in it.
func TestBenchGoesOn(t *testing.T) {
	t.Parallel()
	s := devServe(t, t.TempDir())
	sometimes := func(n int64, w http.ResponseWriter, r *http.Request) bool {
		switch n % 8 {
		case 1:
			refuse(w, r, http.StatusTooManyRequests, "after")
		case 2:
			refuse(w, r, http.StatusServiceUnavailable, "after")
		default:
			return true
		}
		return false
	}
	once := func(n int64, w http.ResponseWriter, r *http.Request) bool {
		if n == 3 {
			refuse(w, r, http.StatusServiceUnavailable, "after")
		}
		return n != 3
	}
	for _, c := range []struct {
		args, path string
		wrong      func(n int64, w http.ResponseWriter, r *http.Request) bool
		measure    string
		least      map[string]float64 // figures of a run
		says       string
	}{
		{"produce --rate 200 --warmup 0s", "/produce", sometimes, "set rate", map[string]float64{"refused, 429": 1, "refused, 503": 1, "longest Retry-After": 2}, "Retry-After up to 2s"},
		{"batch --rate 40 --duration 500ms --warmup 0s", "/produce/batch", sometimes, "set rate", map[string]float64{"refused, 429": 1, "refused, 503": 1}, "refused, none of them seen"},
		{"e2e", "/produce", sometimes, "produce, due to answered", map[string]float64{"refused, 429": 1}, "were refused"},
		{"e2e", "/ack", once, "produce, due to answered", nil, "consumes were refused, and sent again"},
		{"e2e", "/consume", once, "produce, due to answered", nil, "consumes were refused, and sent again"},
		// The node stores the record, and its answer gets lost: an unknown fate.
		{"produce --rate 50 --warmup 0s --timeout 300ms --connections 8", "/produce", func(n int64, w http.ResponseWriter, r *http.Request) bool {
			if n%5 != 0 {
				return true
			}
			forward, err := http.NewRequestWithContext(r.Context(), http.MethodPost, s.url(r.URL.RequestURI()), r.Body)
			if err != nil {
				t.Error(err)
				return false
			}
			forward.Header = r.Header.Clone()
			res, err := http.DefaultClient.Do(forward)
			if err != nil {
				t.Error(err)
				return false
			}
			res.Body.Close()
			<-r.Context().Done() // the benchmark has given up
			return false
		}, "set rate", map[string]float64{"timeouts": 1}, "without an answer"},
		{"produce --rate 100 --warmup 0s --connections 8", "/produce", func(n int64, _ http.ResponseWriter, _ *http.Request) bool {
			if n%5 == 0 {
				panic(http.ErrAbortHandler)
			}
			return true
		}, "set rate", map[string]float64{"broken connections": 1}, "connection broke"},
	} {
		words := strings.Fields(c.args)
		args := append(append([]string{words[0]}, brief[words[0]]...), words[1:]...)
		rep, r := runBench(t, command{}, append(args, "--runs", "1", "--server", wayward(t, s.url(""), c.path, c.wrong))...)
		if r.code != exitOK || rep.Report == nil || rep.Check == nil || !rep.Check.OK() || rep.Check.Accepted == 0 {
			t.Errorf("%s with %s: exit %d, %+v: %s", c.args, c.path, r.code, rep.Report, r.err)
			continue
		}
		found := 0
		for _, sum := range rep.Summaries[c.measure] {
			if least, ok := c.least[sum.Name]; ok && sum.Highest >= least {
				found++
			}
		}
		if said := strings.Join(rep.Notes, "\n") + rep.Check.String(); found != len(c.least) || !strings.Contains(said, c.says) {
			t.Errorf("%s with %s: %d of %v: %+v: %s", c.args, c.path, found, c.least, rep.Summaries, said)
		}
	}
}

// Proves what ends an open loop: a request that is wrong in itself, at once; a node
// that answers nothing any more, within the bound that is said; and a node that refuses
// everything, because there is nothing to measure.
func TestBenchEnds(t *testing.T) {
	t.Parallel()
	s := devServe(t, t.TempDir())
	for _, c := range []struct {
		args  string
		wrong func(n int64, w http.ResponseWriter, r *http.Request) bool
		says  string
	}{
		{"produce --rate 200 --duration 1h", func(n int64, w http.ResponseWriter, r *http.Request) bool {
			if n < 5 {
				return true
			}
			refuse(w, r, http.StatusBadRequest, "never")
			return false
		}, "status 400: too much at once"},
		{"produce --rate 200 --duration 1h --timeout 100ms", func(n int64, _ http.ResponseWriter, r *http.Request) bool {
			if n < 5 {
				return true
			}
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
			return false
		}, "nothing was answered for 1s"},
		{"produce --rate 100 --duration 300ms", func(_ int64, w http.ResponseWriter, r *http.Request) bool {
			refuse(w, r, http.StatusServiceUnavailable, "after")
			return false
		}, "no record was accepted: of the requests"},
	} {
		words := strings.Fields(c.args)
		args := append(append([]string{words[0]}, brief[words[0]]...), words[1:]...)
		begin := time.Now()
		rep, r := runBench(t, command{}, append(args, "--server", wayward(t, s.url(""), "/produce", c.wrong))...)
		if r.code != exitFailed || rep.Report == nil || !strings.Contains(rep.Failure, c.says) || !strings.Contains(r.err, c.says) {
			t.Errorf("%s: exit %d after %v, %+v: %s", c.args, r.code, time.Since(begin), rep.Report, r.err)
		}
	}
}
