package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tidemark-mq/tidemark/bench/report"
)

// brief makes each benchmark as short as it gets.
var brief = map[string][]string{
	"produce": {"--connections", "4", "--duration", "200ms", "--warmup", "50ms", "--runs", "2", "--record-bytes", "200B"},
	"batch":   {"--connections", "2", "--duration", "200ms", "--warmup", "50ms", "--runs", "2", "--record-bytes", "200B", "--batch", "50"},
	"consume": {"--connections", "3", "--records", "600", "--runs", "2", "--record-bytes", "200B"},
	"e2e":     {"--duration", "300ms", "--warmup", "50ms", "--runs", "2", "--rate", "100", "--consumers", "2", "--record-bytes", "200B"},
}

// bench runs a benchmark and returns its report and exit code.
func runBench(t *testing.T, c command, args ...string) (benchReport, result) {
	t.Helper()
	r := c.run(append([]string{"bench"}, append(args, "--json")...)...)
	var rep benchReport
	if r.code != exitUsage && r.out != "" {
		if err := json.Unmarshal([]byte(r.out), &rep); err != nil {
			t.Fatalf("%v: exit %d: %s %s", args, r.code, r.out, r.err)
		}
	}
	return rep, r
}

// Proves that each benchmark measures a node in several runs, with records of text
// and of noise, verifies what it sent, writes both reports, says how it measured,
// and takes its topics away.
func TestBench(t *testing.T) {
	t.Parallel()
	s := devServe(t, t.TempDir())
	for _, c := range []struct {
		args     string
		measures []string
	}{
		{"produce", []string{"highest rate", "set rate"}},
		{"produce --records-of noise --rate max --ack committed", []string{"highest rate"}},
		{"produce --rate 200", []string{"set rate"}},
		{"batch", []string{"highest rate", "set rate"}},
		{"batch --ndjson --rate max", []string{"highest rate"}},
		{"batch --records-of noise --rate 20", []string{"set rate"}},
		{"consume", []string{"consume and ack, 1 at a time", "consume and ack, 100 at a time"}},
		{"consume --records-of noise --take 7", []string{"consume and ack, 7 at a time"}},
		{"e2e", []string{"produce, due to answered", "produce to delivery, due to received"}},
	} {
		words := strings.Fields(c.args)
		page := filepath.Join(t.TempDir(), "report.html")
		args := append(append([]string{words[0]}, brief[words[0]]...), words[1:]...)
		rep, r := runBench(t, s.client(), append(args, "--html", page)...)
		if r.code != exitOK || rep.Report == nil {
			t.Fatalf("%s: exit %d: %s %s", c.args, r.code, r.out, r.err)
		}
		if rep.Check == nil || !rep.Check.OK() || rep.Check.Accepted == 0 || rep.Failure != "" || rep.Machine.Cores == 0 || rep.Program == "" || rep.Server == "" {
			t.Errorf("%s: %+v", c.args, rep.Report)
		}
		var names []string
		for _, m := range rep.Measures {
			names = append(names, m.Name)
			if n, ok := m.Value("records"); !ok || n <= 0 || len(m.Runs) != 2 || len(rep.Summaries[m.Name]) < 6 {
				t.Errorf("%s: %s: %v records/s, %+v", c.args, m.Name, n, m)
			}
		}
		if strings.Join(names, ";") != strings.Join(c.measures, ";") {
			t.Errorf("%s measured %q", c.args, names)
		}
		if html, err := os.ReadFile(page); err != nil || !bytes.Contains(html, []byte("<svg")) {
			t.Errorf("%s: the page: %v %.200s", c.args, err, html)
		}
	}
	if out := s.client().must(t, "topic", "ls"); strings.Contains(out, "bench-") {
		t.Errorf("topics are left: %s", out)
	}
	out := s.client().must(t, append([]string{"bench", "e2e", "--keep"}, brief["e2e"]...)...)
	for _, part := range []string{"FIGURE", "p99.9", "each seen once, checksums verified", "zstd ratio", "load average", "open loop, 100/s"} {
		if !strings.Contains(out, part) {
			t.Errorf("no %q in %s", part, out)
		}
	}
	if out := s.client().must(t, "topic", "ls"); strings.Count(out, "bench-") != 2 {
		t.Errorf("two topics are to be kept: %s", out)
	}
}

// Proves that a benchmark that starts its own node measures that one, names it,
// and leaves neither process nor files.
func TestBenchSelf(t *testing.T) {
	t.Parallel()
	work := t.TempDir()
	rep, r := runBench(t, command{}, append([]string{"e2e", "--self", "--work", work, "--serve=--flush-bytes=1MiB"}, brief["e2e"]...)...)
	if r.code != exitOK || !strings.Contains(rep.Server, "--flush-bytes=1MiB") || rep.Machine.FileSystem == "" {
		t.Fatalf("exit %d, %+v: %s", r.code, rep.Report, r.err)
	}
	if left, err := os.ReadDir(work); err != nil || len(left) != 0 {
		t.Errorf("left: %v %v", left, err)
	}
	if r := (command{}).run("bench", "e2e", "--self", "--serve=--no-such-flag"); r.code != exitFailed || !strings.Contains(r.err, "no-such-flag") {
		t.Errorf("%+v", r)
	}
}

// faulty is a node behind a proxy that does wrong things to the second request that
// it takes for wrong.
func faulty(t *testing.T, node, path string, wrong func(w http.ResponseWriter, r *http.Request, pass http.Handler)) string {
	t.Helper()
	u, err := url.Parse(node)
	if err != nil {
		t.Fatal(err)
	}
	pass := httputil.NewSingleHostReverseProxy(u)
	transport := &http.Transport{}
	pass.Transport = transport
	var n atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, path) && n.Add(1) == 2 {
			wrong(w, r, pass)
			return
		}
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		srv.Close()
		transport.CloseIdleConnections()
	})
	return srv.URL
}

// Proves that a benchmark fails, with exit code 1 and the reason in its report,
// when a broker loses one accepted record, stores one twice, or changes a byte of
// one, and when it refuses a request.
func TestBenchFails(t *testing.T) {
	t.Parallel()
	s := devServe(t, t.TempDir())
	accept := func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Tidemark-Partition", "0")
		w.WriteHeader(http.StatusAccepted)
		if strings.HasSuffix(r.URL.Path, "batch") {
			_, _ = io.WriteString(w, `{"accepted":50}`)
		}
	}
	twice := func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		pass.ServeHTTP(httptest.NewRecorder(), r.Clone(r.Context()))
		r.Body = io.NopCloser(bytes.NewReader(body))
		pass.ServeHTTP(w, r)
	}
	change := func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		body, _ := io.ReadAll(r.Body)
		body[150] ^= 1
		r.Body = io.NopCloser(bytes.NewReader(body))
		pass.ServeHTTP(w, r)
	}
	changeAnswer := func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		got := httptest.NewRecorder()
		pass.ServeHTTP(got, r)
		for name, values := range got.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(got.Code)
		_, _ = w.Write(bytes.Replace(got.Body.Bytes(), []byte(`"text":"`), []byte(`"next":"`), 1))
	}
	refuse := func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"error":"the disk is full","code":"storage"}`)
	}
	for _, c := range []struct {
		name, args, path string
		wrong            func(w http.ResponseWriter, r *http.Request, pass http.Handler)
		says             []string
		check            func(*report.Report) bool
	}{
		{"lost", "produce", "/produce", accept, []string{"1 lost"}, func(r *report.Report) bool { return r.Check.Lost == 1 && r.Check.Duplicates == 0 }},
		{"batch lost", "batch --rate max", "/produce/batch", accept, []string{"50 lost"}, func(r *report.Report) bool { return r.Check.Lost == 50 }},
		{"twice", "produce --rate 300", "/produce", twice, []string{"1 duplicates"}, func(r *report.Report) bool { return r.Check.Duplicates == 1 && r.Check.Lost == 0 }},
		{"changed", "produce --rate max", "/produce", change, []string{"1 changed"}, func(r *report.Report) bool { return r.Check.Corrupt == 1 && r.Check.Lost == 1 }},
		{"changed when given out", "consume --take 3", "/consume", changeAnswer, []string{"1 changed"}, func(r *report.Report) bool { return r.Check.Corrupt == 1 }},
		{"refused", "produce --rate max", "/produce", refuse, []string{"503", "the disk is full"}, func(*report.Report) bool { return true }},
	} {
		words := strings.Fields(c.args)
		args := append(append([]string{words[0]}, brief[words[0]]...), words[1:]...)
		rep, r := runBench(t, command{}, append(args, "--server", faulty(t, s.url(""), c.path, c.wrong))...)
		if r.code != exitFailed || rep.Report == nil || (rep.Check == nil) != (c.name == "refused") || !c.check(rep.Report) {
			t.Errorf("%s: exit %d, %+v: %s", c.name, r.code, rep.Report, r.err)
			continue
		}
		for _, part := range c.says {
			if !strings.Contains(r.err, part) || !strings.Contains(rep.Failure, part) {
				t.Errorf("%s: no %q in %q and %q", c.name, part, r.err, rep.Failure)
			}
		}
	}
}

// Proves that a benchmark that is asked for in a way that cannot work says so
// before it does anything: exit code 2, everything that is wrong at once.
func TestBenchUsage(t *testing.T) {
	for args, says := range map[string]string{
		"produce --record-bytes 127B":                "127 is not within 128 and 16777216",
		"produce --record-bytes 17MiB":               "16MiB",
		"produce --records-of zeros":                 "text and noise",
		"produce --rate 0":                           "--rate",
		"produce --rate many":                        "--rate",
		"produce --connections 0 --runs 0":           "runs: 0",
		"produce --runs 101":                         "runs: 101",
		"produce --partitions 1025":                  "partitions: 1025",
		"produce --ack never":                        `"never"`,
		"produce --duration 1ms":                     "10ms",
		"produce --warmup 2h":                        "1h",
		"batch --batch 1001":                         "batch: 1001",
		"batch --ndjson --records-of noise":          "noise",
		"consume --take 101":                         "101",
		"consume --records 99":                       "records: 99",
		"consume --connections 3 --records 599":      "give 600 or more",
		"e2e --rate max":                             "e2e needs a number",
		"e2e --consumers 0":                          "consumers: 0",
		"produce --work /tmp":                        "--self",
		"produce --self --server http://127.0.0.1:1": "leave --server out",
		"produce --server ftp://x":                   "http://host:port",
		"produce --html /no/such/dir/x.html":         "--html",
		"sing":                                       "unknown command",
	} {
		r := command{}.run(append([]string{"bench"}, strings.Fields(args)...)...)
		if r.code != exitUsage || !strings.Contains(r.err, says) {
			t.Errorf("%s: exit %d: %s", args, r.code, r.err)
		}
	}
	if r := (command{}).run("bench", "produce", "--server", "http://127.0.0.1:1"); r.code != exitFailed || !strings.Contains(r.err, "no node answers") {
		t.Errorf("without a node: %+v", r)
	}
}
