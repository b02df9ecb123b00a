package process

import (
	"context"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func shell(t *testing.T, script string) *Process {
	t.Helper()
	p, err := Start(Options{Path: "/bin/sh", Args: []string{"-c", script}, Env: []string{"GREETING=hello"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// A child's first line, outputs and exit code arrive, with its environment.
func TestOutputsAndExitCode(t *testing.T) {
	p := shell(t, "echo $GREETING; echo more; echo trouble >&2; exit 3")
	if line, err := p.FirstLine(limited(t)); err != nil || line != "hello" {
		t.Errorf("first line %q, %v", line, err)
	}
	if code, err := p.Wait(limited(t)); err != nil || code != 3 {
		t.Errorf("exit code %d, %v", code, err)
	}
	if p.Stdout() != "hello\nmore" || p.Stderr() != "trouble" {
		t.Errorf("outputs %q and %q", p.Stdout(), p.Stderr())
	}
}

// A child that ends without a line is an error that shows what it said.
func TestEndsBeforeItsFirstLine(t *testing.T) {
	p := shell(t, "echo broken >&2; exit 1")
	if _, err := p.FirstLine(limited(t)); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("error %v", err)
	}
	if _, err := Start(Options{Path: "/does/not/exist"}); err == nil {
		t.Error("a program that does not exist was started")
	}
}

// Kill ends a child that ignores signals, Stop one that does not, and both have
// seen its end when they return.
func TestKillAndStop(t *testing.T) {
	deaf := shell(t, "trap '' TERM; echo up; while :; do sleep 0.05; done")
	if _, err := deaf.FirstLine(limited(t)); err != nil {
		t.Fatal(err)
	}
	if deaf.ExitCode() != -1 {
		t.Error("a child that runs has an exit code")
	}
	if deaf.Stop(50 * time.Millisecond) {
		t.Error("a deaf child stopped by itself")
	}
	polite := shell(t, "trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done")
	if _, err := polite.FirstLine(limited(t)); err != nil {
		t.Fatal(err)
	}
	if !polite.Stop(30*time.Second) || polite.ExitCode() != 7 {
		t.Errorf("exit code %d", polite.ExitCode())
	}
	for _, p := range []*Process{deaf, polite} {
		if err := syscall.Kill(p.PID(), 0); err == nil {
			t.Errorf("process %d is still there", p.PID())
		}
		p.Kill() // again does no harm
	}
}

// A child whose context ends is killed, and a talkative one keeps only its end.
func TestWaitEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := shell(t, "exec sleep 100").Wait(ctx); err == nil {
		t.Error("no error")
	}
	p := shell(t, "i=0; while [ $i -lt 20000 ]; do echo line $i of many, all of them longer than nothing; i=$((i+1)); done")
	if _, err := p.Wait(limited(t)); err != nil {
		t.Fatal(err)
	}
	if out := p.Stdout(); len(out) > tailBytes || !strings.Contains(out, "line 19999 of") {
		t.Errorf("%d bytes that end in %q", len(out), out[max(0, len(out)-40):])
	}
}

// A child does not outlive a parent that was killed.
func TestDiesWithParent(t *testing.T) {
	if os.Getenv("PROCESS_CHILD") != "" {
		p := shell(t, "echo up; exec sleep 1000")
		_, err := p.FirstLine(limited(t))
		if _, werr := os.Stdout.WriteString(strconv.Itoa(p.PID()) + "\n"); err == nil && werr == nil {
			select {}
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent, err := Start(Options{Path: exe, Args: []string{"-test.run", "^TestDiesWithParent$"}, Env: []string{"PROCESS_CHILD=1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer parent.Kill()
	line, err := parent.FirstLine(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(line)
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	parent.Kill()
	for deadline := time.Now().Add(30 * time.Second); syscall.Kill(pid, 0) == nil && !zombie(pid); {
		if time.Now().After(deadline) {
			t.Fatalf("process %d outlives its parent", pid)
		}
	}
}

// zombie reports whether a process has ended and waits for somebody to ask: its
// new parent may not.
func zombie(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && strings.Contains(string(stat), ") Z ")
}
