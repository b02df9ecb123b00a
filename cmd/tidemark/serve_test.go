package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// get asks a node and returns status and body.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	res, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// Proves what the ready line says, that each listener answers what it is for,
// that security being off is said, and that SIGTERM ends with exit code 0.
func TestServeListeners(t *testing.T) {
	t.Parallel()
	s := devServe(t, t.TempDir(), "--metrics-addr", "127.0.0.1:0", "--pprof-addr", "127.0.0.1:0", "--node-id", "n-7")
	if s.ready.Node != "n-7" || s.ready.Raft == "" || s.ready.Metrics == "" || !strings.HasPrefix(s.ready.Archive, "file:///") || !filepath.IsAbs(s.ready.DataDir) || s.ready.Version != version {
		t.Errorf("ready line %+v", s.ready)
	}
	if !strings.Contains(s.stderr.String(), "security is off") {
		t.Errorf("stderr: %s", s.stderr)
	}
	s.client().must(t, "topic", "create", "t")
	for _, base := range []string{s.ready.HTTP, s.ready.Metrics} {
		for path, want := range map[string]string{
			"/healthz": `"ok"`, "/readyz": `"ready":true`, "/metrics": "tidemark_",
		} {
			if status, body := get(t, "http://"+base+path); status != 200 || !strings.Contains(body, want) {
				t.Errorf("%s%s: %d %.200s", base, path, status, body)
			}
		}
	}
	_, metrics := get(t, "http://"+s.ready.Metrics+"/metrics")
	for _, name := range []string{"go_goroutines", "process_open_fds", "tidemark_objstore_", "tidemark_wal_"} {
		if !strings.Contains(metrics, name) {
			t.Errorf("no %s in the metrics", name)
		}
	}
	if status, _ := get(t, "http://"+s.ready.Metrics+"/v1/topics"); status != 404 {
		t.Errorf("the metrics listener answers the API: %d", status)
	}
	if status, body := get(t, "http://"+s.ready.Pprof+"/debug/pprof/"); status != 200 || !strings.Contains(body, "goroutine") {
		t.Errorf("profiles on %q: %d %.200s", s.ready.Pprof, status, body)
	}
	if status, _ := get(t, s.url("/debug/pprof/")); status != 404 {
		t.Errorf("profiles on the API: %d", status)
	}
	s.client().must(t, "healthcheck")
	s.client().must(t, "healthcheck", "--ready")
	if code := s.stop(); code != exitOK {
		t.Errorf("exit %d, stderr: %s", code, s.stderr)
	}
	wrong{args: "healthcheck", code: exitFailed, says: []string{"connection refused"}}.check(t, s.client())
}

// Proves that a node outside --dev lets nobody in without the password, from
// wherever it and the client's credentials come, and that health needs none.
func TestServePassword(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := writeFile(t, "password", "geheim und lang\n")
	args := []string{"--http-addr", "127.0.0.1:0", "--disk-reserve", "1", "--log-level", "warn"}
	for name, s := range map[string]*served{
		"variable": startServe(t, []string{"TIDEMARK_ADMIN_PASSWORD=geheim und lang"}, append(args, "--data-dir", dir+"/a")...),
		"file":     startServe(t, []string{"TIDEMARK_ADMIN_PASSWORD_FILE=" + file}, append(args, "--data-dir", dir+"/b")...),
		"dev":      startServe(t, []string{"TIDEMARK_ADMIN_PASSWORD=geheim und lang"}, append(args, "--dev", "--archive", "none", "--data-dir", dir+"/c")...),
	} {
		if strings.Contains(s.stderr.String(), "security is off") {
			t.Errorf("%s: security is off: %s", name, s.stderr)
		}
		for _, w := range []wrong{
			{args: "topic ls"},
			{args: "topic ls", env: []string{"TIDEMARK_PASSWORD=falsch"}},
			{args: "topic ls --user root", env: []string{"TIDEMARK_PASSWORD=geheim und lang"}},
			{args: "topic ls", env: []string{"TIDEMARK_USER=admin"}},
			{args: "consume t", env: []string{"TIDEMARK_PASSWORD=falsch"}},
			{args: "replay t --partition 0"},
			{args: "produce t", stdin: "x"},
			{args: "produce t --ndjson", stdin: "1"},
		} {
			w.code, w.says = exitFailed, []string{"credentials", "TIDEMARK_PASSWORD"}
			w.check(t, s.client())
		}
		s.client("TIDEMARK_PASSWORD=geheim und lang").must(t, "topic", "create", "t")
		s.client().must(t, "topic", "ls", "--password-file", file)
		s.client("TIDEMARK_PASSWORD_FILE="+file).must(t, "consume", "t")
		s.client("TIDEMARK_PASSWORD_FILE="+file).must(t, "replay", "t", "--partition", "0")
		s.client().must(t, "healthcheck", "--ready")
		if status, _ := get(t, s.url("/metrics")); status != 401 {
			t.Errorf("%s: metrics without credentials: %d", name, status)
		}
		if code := s.stop(); code != exitOK {
			t.Errorf("%s: exit %d", name, code)
		}
	}
}

// Proves that a request under way is answered before the node ends: a consume
// that waits comes back empty, and nothing is cut off.
func TestServeDrains(t *testing.T) {
	t.Parallel()
	s := devServe(t, t.TempDir())
	s.client().must(t, "topic", "create", "t")
	waiting := make(chan result, 1)
	go func() { waiting <- s.client().run("consume", "t", "--wait", "9s") }()
	eventually(t, "the consume waits", func() bool {
		_, metrics := get(t, s.url("/metrics"))
		return strings.Contains(metrics, "tidemark_queue_waiters 1")
	})
	started := time.Now()
	if code := s.stop(); code != exitOK {
		t.Errorf("exit %d, stderr: %s", code, s.stderr)
	}
	if took := time.Since(started); took > 8*time.Second {
		t.Errorf("the stop took %s", took)
	}
	// The wait is over; what the command asks next finds no node.
	if r := <-waiting; r.code == exitOK && r.out != "" || r.code == exitFailed && !strings.Contains(r.err, "connection refused") {
		t.Errorf("the consume: %+v", r)
	}
}

// Proves that the second signal ends the process at once, whatever the first
// one's work is.
func TestSecondSignal(t *testing.T) {
	hold := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hold }))
	defer slow.Close()
	signals := make(chan os.Signal, 2)
	exited := make(chan int, 1)
	stdin, feed := io.Pipe()
	done := make(chan int, 1)
	p := &process{stdin: stdin, stdout: io.Discard, stderr: io.Discard, signals: signals, exit: func(code int) { exited <- code }}
	go func() { done <- p.run([]string{"produce", "t", "--server", slow.URL}) }()
	// The command reads stdin, which does not end.
	if _, err := feed.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	signals <- syscall.SIGINT
	signals <- syscall.SIGINT
	if code := <-exited; code != exitFailed {
		t.Errorf("exit %d", code)
	}
	feed.Close()
	close(hold)
	<-done
}

// Proves that an interrupted command ends by itself at the first signal, with
// a line that says so.
func TestInterruptedCommand(t *testing.T) {
	asked := make(chan struct{}, 1)
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	defer slow.Close()
	for _, args := range [][]string{{"topic", "ls"}, {"replay", "t", "--partition", "0"}} {
		signals := make(chan os.Signal, 2)
		var stderr lockedBuffer
		p := &process{stdin: strings.NewReader(""), stdout: io.Discard, stderr: &stderr, env: []string{"TIDEMARK_SERVER=" + slow.URL}, signals: signals}
		done := make(chan int, 1)
		go func() { done <- p.run(args) }()
		<-asked
		signals <- syscall.SIGINT
		if code := <-done; code != exitFailed || !strings.Contains(stderr.String(), "interrupted") {
			t.Errorf("%q: exit %d, stderr %s", args, code, stderr.String())
		}
	}
}

// Proves that a node which is taken over keeps running and says why it serves
// no more, that its directory does not start again, and that a cluster which is
// seen writing is not taken over without --force.
func TestServeFenced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old := devServe(t, dir)
	old.client().must(t, "topic", "create", "t", "--partitions", "1")
	command{env: old.client().env, stdin: "before"}.must(t, "produce", "t", "--ack", "archived")
	restore := []string{"restore", "--archive", "file://" + dir + "/archive", "--data-dir", dir + "/new", "--take-over", "--node-id", "node-2"}

	// While somebody writes, it is alive.
	ctx, cancel := context.WithCancel(context.Background())
	writer := make(chan error, 1)
	go func() {
		defer close(writer)
		for ctx.Err() == nil {
			if r := (command{env: old.client().env, stdin: "w"}).run("produce", "t", "--ack", "archived"); r.code != exitOK {
				writer <- errors.New(r.err)
				return
			}
		}
	}()
	if r := (command{}).run(restore...); r.code != exitFailed || !strings.Contains(r.err, "alive") || !strings.Contains(r.err, "--force") {
		t.Errorf("taken over while it writes: %+v", r)
	}
	cancel()
	if err := <-writer; err != nil {
		t.Fatal(err)
	}
	(command{}).must(t, append(restore, "--force")...)

	eventually(t, "the old node is not ready", func() bool {
		status, _ := get(t, old.url("/readyz"))
		return status == 503
	})
	if status, _ := get(t, old.url("/healthz")); status != 200 {
		t.Errorf("the old node's process is not healthy: %d", status)
	}
	wrong{args: "produce t", stdin: "x", code: exitFailed}.check(t, old.client())
	wrong{args: "consume t", code: exitFailed}.check(t, old.client())
	if code := old.stop(); code != exitOK {
		t.Errorf("exit %d", code)
	}
	wrong{
		args: fmt.Sprintf("serve --dev --http-addr 127.0.0.1:0 --log-level error --data-dir %s/data --archive file://%s/archive", dir, dir),
		code: exitFailed, says: []string{"generation"},
	}.check(t, command{})
	fresh := startServe(t, nil, "--dev", "--data-dir", dir+"/new", "--archive", "file://"+dir+"/archive", "--http-addr", "127.0.0.1:0", "--node-id", "node-2", "--disk-reserve", "1", "--log-level", "error")
	if out := fresh.client().must(t, "consume", "t", "--raw", "--max", "1"); out != "before\n" {
		t.Errorf("the first record is %q", out)
	}
}

// Proves that the ready line is one line of JSON with the documented names.
func TestReadyLineNames(t *testing.T) {
	b, err := json.Marshal(ready{})
	if err != nil || string(b) != `{"event":"","http":"","tls":false,"raft":"","metrics":"","node":"","data_dir":"","archive":"","version":""}` {
		t.Errorf("%s %v", b, err)
	}
}
