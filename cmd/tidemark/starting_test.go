package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// silentStore takes connections of a store and never answers, until it is gone.
func silentStore(t *testing.T) (addr string, gone func()) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var conns []net.Conn
		for {
			c, err := ln.Accept()
			if err != nil {
				break
			}
			conns = append(conns, c)
		}
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	gone = func() { _ = ln.Close(); <-done }
	t.Cleanup(gone)
	return ln.Addr().String(), gone
}

// listening finds in the log where a node that starts listens.
func listening(t *testing.T, stderr *lockedBuffer) string {
	t.Helper()
	addr := ""
	eventually(t, "the log says where the node listens", func() bool {
		for _, line := range linesOf(stderr.String()) {
			var said struct{ Msg, HTTP string }
			if json.Unmarshal([]byte(line), &said) == nil && said.Msg == "starting" {
				addr = said.HTTP
			}
		}
		return addr != ""
	})
	return addr
}

// Proves that a node answers while it starts: alive within two seconds on both
// listeners, not ready and with what it does as the reason, everything else to
// be asked again. The start waits for an archive that takes connections and
// never answers; what it asks later is answered by the node, on the same port,
// and every request that comes in between gets an answer (B248, B249, B250).
func TestAliveWhileItStarts(t *testing.T) {
	// Credentials that the store asks for, so that nobody looks for others.
	t.Setenv("AWS_ACCESS_KEY_ID", "a")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "b")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	store, gone := silentStore(t)
	s := &served{t: t, signals: make(chan os.Signal, 2), exited: make(chan int, 1), done: make(chan int, 1), stderr: &lockedBuffer{}}
	out, stdout := io.Pipe()
	p := &process{
		stdin: strings.NewReader(""), stdout: stdout, stderr: s.stderr, signals: s.signals, exit: func(code int) { s.exited <- code },
	}
	began := time.Now()
	go func() {
		code := p.run([]string{
			"serve", "--dev", "--data-dir", t.TempDir() + "/data", "--http-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0",
			"--disk-reserve", "1B", "--log-level", "info", "--log-format", "json", "--archive", "s3://bucket/p?region=us-east-1&path_style=true&endpoint=http://" + store,
		})
		stdout.CloseWithError(io.EOF)
		s.done <- code
	}()
	base := "http://" + listening(t, s.stderr)
	if status, body := get(t, base+"/healthz"); status != 200 || !strings.Contains(body, `"ok"`) {
		t.Errorf("/healthz while it starts: %d %s", status, body)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("it is alive after %s", took)
	}
	status, body := get(t, base+"/readyz")
	if status != 503 || !strings.Contains(body, `"ready":false`) || !strings.Contains(body, "starting: ") {
		t.Errorf("/readyz while it starts: %d %s", status, body)
	}
	eventually(t, "it says that it waits for the archive", func() bool {
		_, body := get(t, base+"/readyz")
		return strings.Contains(body, "starting: asking the archive whose it is")
	})
	res, err := http.Get(base + "/v1/topics")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil || res.StatusCode != 503 || res.Header.Get("Retry-After") != "1" || !strings.Contains(string(text), `"code":"unavailable"`) {
		t.Errorf("a request while it starts: %d %s %v", res.StatusCode, text, err)
	}
	// Requests that come all the time are all answered, by one or the other.
	stop, asked := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
			res, err := c.Get(base + "/healthz")
			if err == nil {
				_ = res.Body.Close()
				if res.StatusCode != 200 {
					err = fmt.Errorf("/healthz answers %d", res.StatusCode)
				}
			}
			select {
			case <-stop:
				asked <- err
				return
			default:
			}
			if err != nil {
				asked <- err
				return
			}
		}
	}()
	if err := json.NewDecoder(out).Decode(&s.ready); err != nil {
		t.Fatalf("no ready line (%v), stderr: %s", err, s.stderr)
	}
	if "http://"+s.ready.HTTP != base {
		t.Errorf("the node is at %s, it started at %s", s.ready.HTTP, base)
	}
	eventually(t, "it is ready", func() bool { status, _ := get(t, base+"/readyz"); return status == 200 })
	close(stop)
	if err := <-asked; err != nil {
		t.Errorf("a request of the time between: %v", err)
	}
	gone() // else the stop waits for it, too
	if code := s.stop(); code != exitOK {
		t.Errorf("exit %d, stderr: %s", code, s.stderr)
	}
}

// Proves that a start that fails gives its port back and ends, though somebody
// was being answered on it.
func TestFailedStartGivesThePortBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/other", []byte("not a data directory"), 0o600); err != nil {
		t.Fatal(err)
	}
	wrong{
		args: "serve --dev --http-addr 127.0.0.1:0 --archive none --log-level error --data-dir " + dir,
		code: exitFailed, says: []string{"is not a Tidemark data directory"},
	}.check(t, command{})
}
