package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/tidemark-mq/tidemark/bench/child"
)

const (
	readyTime = 30 * time.Second
	stopTime  = 20 * time.Second // between SIGTERM and SIGKILL
	portTries = 5                // another process can take a port between its choice and its use
)

// server is a peer's process.
type server struct {
	cmd   *exec.Cmd
	addr  string
	out   child.Tail
	ended chan struct{}
	err   error // after ended
}

// startServer starts a program that is given a free port of loopback, and waits until
// ready says so. It dies with this process.
func startServer(ctx context.Context, program string, args func(port string) []string, ready func(ctx context.Context, addr string) error) (*server, error) {
	for try := 1; ; try++ {
		s, err := startOnce(ctx, program, args, ready)
		if err == nil || try == portTries || ctx.Err() != nil {
			return s, err
		}
	}
}

func startOnce(ctx context.Context, program string, args func(port string) []string, ready func(ctx context.Context, addr string) error) (*server, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &server{addr: ln.Addr().String(), ended: make(chan struct{})}
	ln.Close()
	_, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		return nil, err
	}
	s.cmd = exec.Command(program, args(port)...) //nolint:noctx // it is stopped in order, by its process id
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		// The kernel ties the death signal to the thread that forked.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(s.ended)
		err := s.cmd.Start()
		started <- err
		if err == nil {
			s.err = s.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	if err := s.wait(ctx, ready); err != nil {
		_ = s.stop() // that it was not ready is the error
		return nil, fmt.Errorf("%s: %w: %s", filepath.Base(program), err, s.out.Last())
	}
	return s, nil
}

// wait waits until the server is ready.
func (s *server) wait(ctx context.Context, ready func(ctx context.Context, addr string) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready(ctx, s.addr)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-s.ended:
			return errors.New("it ended before it was ready")
		case <-ctx.Done():
			return fmt.Errorf("it was not ready: %w", err)
		}
	}
}

// stop ends the server in order, and kills it when it does not end.
func (s *server) stop() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-s.ended:
	case <-time.After(stopTime):
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
	var exit *exec.ExitError
	if errors.As(s.err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled() && exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		return fmt.Errorf("%s ended: %w: %s", filepath.Base(s.cmd.Path), s.err, s.out.Last())
	}
	return nil
}

// version asks a program for its version.
func version(ctx context.Context, program string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return "", err
	}
	b, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", program, err)
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	return line, nil
}

// under makes a directory for one run of a server.
func under(work, name string) (string, error) { return os.MkdirTemp(work, "peers-"+name+"-") }
