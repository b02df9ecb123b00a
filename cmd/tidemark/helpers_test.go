package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	child "github.com/tidemark-mq/tidemark/internal/testkit/process"
)

// TestMain runs the program itself where a test has asked for it as a process of
// its own (startProcess), and where a benchmark starts this one as its node, or restores it.
func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" || len(os.Args) > 1 && (os.Args[1] == "serve" || os.Args[1] == "restore") {
		_ = os.Unsetenv(asProgram)
		main()
	}
	goleak.VerifyTestMain(m)
}

// asProgram makes the test binary behave as the program.
const asProgram = "RUN_AS_TIDEMARK"

// startProcess runs the program as a process of its own, until the end of the
// test at the latest.
func startProcess(t *testing.T, env []string, args ...string) *child.Process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := child.Start(child.Options{Path: exe, Args: args, Env: append(env, asProgram+"=1")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

// readyLine waits for the ready line of a serve.
func readyLine(t *testing.T, p *child.Process) (r ready) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	line, err := p.FirstLine(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(line), &r); err != nil || r.Event != "ready" {
		t.Fatalf("first line %q: %v", line, err)
	}
	return r
}

// result is what a command left behind.
type result struct {
	code     int
	out, err string
}

// command is one command line with its surroundings.
type command struct {
	env    []string
	stdin  string
	stdout io.Writer // nil: collected
}

func (c command) run(args ...string) result {
	var out, err bytes.Buffer
	p := &process{stdin: strings.NewReader(c.stdin), stdout: &out, stderr: &err, env: c.env, exit: func(int) {}}
	if c.stdout != nil {
		p.stdout = c.stdout
	}
	code := p.run(args)
	return result{code, out.String(), err.String()}
}

// must runs a command that has to succeed and returns what it printed.
func (c command) must(t *testing.T, args ...string) string {
	t.Helper()
	r := c.run(args...)
	if r.code != exitOK {
		t.Fatalf("tidemark %s: exit %d, stderr: %s", strings.Join(args, " "), r.code, r.err)
	}
	return r.out
}

// lockedBuffer collects what a running command writes.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// served is a running `serve`.
type served struct {
	t        *testing.T
	ready    ready
	signals  chan os.Signal
	exited   chan int // codes given to exit by a second signal
	done     chan int // the code of the command
	stderr   *lockedBuffer
	finished bool
}

// startServe runs serve in this process until it is ready. It is stopped at the
// end of the test at the latest.
func startServe(t *testing.T, env []string, args ...string) *served {
	t.Helper()
	s := &served{t: t, signals: make(chan os.Signal, 2), exited: make(chan int, 1), done: make(chan int, 1), stderr: &lockedBuffer{}}
	out, stdout := io.Pipe()
	p := &process{stdin: strings.NewReader(""), stdout: stdout, stderr: s.stderr, env: env, signals: s.signals, exit: func(code int) { s.exited <- code }}
	go func() {
		code := p.run(append([]string{"serve"}, args...))
		stdout.CloseWithError(io.EOF)
		s.done <- code
	}()
	if err := json.NewDecoder(out).Decode(&s.ready); err != nil || s.ready.Event != "ready" {
		t.Fatalf("no ready line (%v), exit %d, stderr: %s", err, <-s.done, s.stderr)
	}
	t.Cleanup(func() {
		if !s.finished {
			s.stop()
		}
	})
	return s
}

// devServe runs serve --dev on free ports below dir.
func devServe(t *testing.T, dir string, args ...string) *served {
	t.Helper()
	return startServe(t, nil, append([]string{
		"--dev", "--data-dir", dir + "/data", "--archive", "file://" + dir + "/archive", "--http-addr", "127.0.0.1:0",
		"--disk-reserve", "1B", "--log-level", "warn",
	}, args...)...)
}

// stop sends SIGTERM and returns the exit code.
func (s *served) stop() int {
	s.t.Helper()
	s.finished = true
	s.signals <- syscall.SIGTERM
	select {
	case code := <-s.done:
		return code
	case <-time.After(time.Minute):
		s.t.Fatalf("serve did not end after SIGTERM; stderr: %s", s.stderr)
		return -1
	}
}

// client is a command environment that finds the node.
func (s *served) client(env ...string) command {
	return command{env: append([]string{"TIDEMARK_SERVER=http://" + s.ready.HTTP}, env...)}
}

func (s *served) url(path string) string { return "http://" + s.ready.HTTP + path }

// eventually polls until ok, at most for half a minute.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(30 * time.Second); ; <-tick.C {
		if ok() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: not after 30 s", what)
		}
	}
}

// linesOf splits output into its lines.
func linesOf(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}
