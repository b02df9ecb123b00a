package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Proves that a child is up when Start returns, gets its environment and no
// setting of this process, ends in order with Stop, and that its end is noticed.
func TestStartStop(t *testing.T) {
	t.Setenv("TIDEMARK_SERVER", "http://other")
	c, err := Start(t.Context(), []string{"X=7"}, "/bin/sh", "-c", `trap 'exit 0' TERM; echo "{\"event\":\"ready\",\"http\":\"$X$TIDEMARK_SERVER:1\",\"version\":\"v\"}"; echo more; while :; do sleep 0.01; done`)
	if err != nil {
		t.Fatal(err)
	}
	if c.Ready.HTTP != "7:1" || c.Ready.Version != "v" {
		t.Errorf("%+v", c.Ready)
	}
	if err := syscall.Kill(c.PID(), 0); err != nil {
		t.Errorf("it does not run: %v", err)
	}
	if err := errors.Join(c.Stop(), c.Stop()); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(c.PID(), 0); err == nil {
		t.Error("it still runs")
	}
}

// Proves that a program that is missing, that ends early, that says something else
// or that says nothing is an error with its last words, and leaves no process.
func TestStartFails(t *testing.T) {
	for script, want := range map[string]string{
		"echo broken disk >&2; exit 3":             "broken disk",
		"echo hello; exec sleep 100":               "hello",
		`echo '{"event":"no"}'; exec sleep 100`:    "not where it serves",
		"head -c 100000 /dev/zero; exec sleep 100": "not where it serves",
	} {
		if _, err := Start(t.Context(), nil, "/bin/sh", "-c", script); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %.300v", script, err)
		}
	}
	if _, err := Start(t.Context(), nil, "/no/such/program"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Start(ctx, nil, "/bin/sh", "-c", "exec sleep 100"); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// Proves that a child that has crashed is not taken for one that ended in order.
func TestStopSaysHowItEnded(t *testing.T) {
	c, err := Start(t.Context(), nil, "/bin/sh", "-c", `echo '{"event":"ready","http":"h:1"}'; echo "last words" >&2; exit 9`)
	if err != nil {
		t.Fatal(err)
	}
	<-c.ended
	var exit *exec.ExitError
	if err := c.Stop(); !errors.As(err, &exit) || exit.ExitCode() != 9 || !strings.Contains(fmt.Sprint(err), "last words") {
		t.Error(err)
	}
}
