package child

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	readyTime = time.Minute      // for a child to be ready
	stopTime  = 30 * time.Second // between SIGTERM and SIGKILL
	pipeTime  = 5 * time.Second  // for what the child started to close its outputs too
	keptBytes = 8 << 10          // of standard error
	maxLine   = 64 << 10         // that it is ready with
)

// Ready is what a child says when it serves. Fields that it does not say are "".
type Ready struct {
	Event   string `json:"event"`
	HTTP    string `json:"http"`    // host:port
	Metrics string `json:"metrics"` // host:port
	Archive string `json:"archive"`
	Version string `json:"version"`
}

// Child is a running process.
type Child struct {
	Ready Ready
	cmd   *exec.Cmd
	tail  Tail
	ended chan struct{}
	err   error // after ended
	stop  sync.Once
	lines sync.WaitGroup
}

// Start starts a program and waits until it is ready. Its environment is this
// one's less TIDEMARK_*, with env behind it.
func Start(ctx context.Context, env []string, path string, args ...string) (*Child, error) {
	c := &Child{cmd: exec.Command(path, args...), ended: make(chan struct{})} //nolint:noctx // it is stopped in order, not killed with a context
	c.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "TIDEMARK_") }), env...)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.cmd.Stderr = &c.tail
	c.cmd.WaitDelay = pipeTime
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	// The kernel ends a child with the thread that started it, and the runtime
	// ends threads: only a goroutine that keeps its thread starts one.
	started, ready := make(chan error, 1), make(chan error, 1)
	go c.run(out, started, ready)
	if err := <-started; err != nil {
		<-c.ended
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	select {
	case err = <-ready:
	case <-ctx.Done():
		err = fmt.Errorf("it was not ready: %w", ctx.Err())
	}
	if err != nil {
		_ = c.Stop() // that it was not ready is the error
		return nil, fmt.Errorf("start %s %s: %w: %s", path, strings.Join(args, " "), err, c.tail.Last())
	}
	return c, nil
}

// Stop ends the child in order, and kills it when it does not end. It returns how
// it ended, if that was not in order.
func (c *Child) Stop() error {
	c.stop.Do(func() {
		_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		select {
		case <-c.ended:
		case <-time.After(stopTime):
			_ = c.cmd.Process.Kill()
			<-c.ended
		}
	})
	if c.err != nil {
		return fmt.Errorf("%s ended: %w: %s", c.cmd.Path, c.err, c.tail.Last())
	}
	return nil
}

// PID is the process id.
func (c *Child) PID() int { return c.cmd.Process.Pid }

func readLine(out io.Reader, into *Ready) error {
	line, err := bufio.NewReaderSize(io.LimitReader(out, maxLine), maxLine).ReadBytes('\n')
	switch {
	case errors.Is(err, io.EOF) && len(line) < maxLine:
		return errors.New("it ended before it was ready")
	case err != nil && !errors.Is(err, io.EOF):
		return err
	}
	if err := json.Unmarshal(line, into); err != nil || into.Event != "ready" || into.HTTP == "" {
		return fmt.Errorf("its first line is %.200q, not where it serves", line)
	}
	return nil
}
