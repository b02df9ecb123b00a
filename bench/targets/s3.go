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
	"syscall"
	"time"
)

// s3Server is an S3 server on this machine, with one bucket.
type s3Server struct {
	cmd      *exec.Cmd
	endpoint string
	err      error         // of its end
	ended    chan struct{} // closed
}

const s3Key, s3Secret = "tidemark", "tidemark-secret" // of a server on loopback

// startS3 starts the S3 server that `make tools` has built.
func (g *rig) startS3(ctx context.Context) (*s3Server, error) {
	program := filepath.Join(os.Getenv("TIDEMARK_TOOLS"), "versitygw")
	if _, err := os.Stat(program); err != nil {
		if program = filepath.Join(g.root, ".cache/tools/bin/versitygw"); !exists(program) {
			return nil, cannotError("there is no S3 server: run 'make tools' first")
		}
	}
	dir, err := os.MkdirTemp(g.work, "s3-")
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, "archive"), 0o750)
	}
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := ln.Addr().String()
	ln.Close()
	s := &s3Server{endpoint: "http://" + addr, ended: make(chan struct{})}
	s.cmd = exec.Command(program, "--port", addr, "--region", "us-east-1", "--quiet", "--keep-alive", "posix", dir) //nolint:noctx,gosec // it is stopped by its process id
	s.cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+s3Key, "ROOT_SECRET_KEY="+s3Secret)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		// The kernel ties the death signal to the thread that forked.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := s.cmd.Start()
		started <- err
		if err == nil {
			s.err = s.cmd.Wait()
			close(s.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(30 * time.Second); ; {
		if c, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
			c.Close()
			return s, nil
		}
		select {
		case <-s.ended:
			return nil, fmt.Errorf("the S3 server ended: %w", s.err)
		case <-ctx.Done():
			return nil, s.stop(ctx.Err())
		case now := <-tick.C:
			if now.After(end) {
				return nil, s.stop(errors.New("the S3 server does not answer"))
			}
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (s *s3Server) url(prefix string) string {
	return fmt.Sprintf("s3://archive/%s?endpoint=%s&region=us-east-1&path_style=true", prefix, s.endpoint)
}

func (s *s3Server) env() []string {
	return []string{"AWS_ACCESS_KEY_ID=" + s3Key, "AWS_SECRET_ACCESS_KEY=" + s3Secret, "AWS_EC2_METADATA_DISABLED=true"}
}

// stop ends the server and returns err.
func (s *s3Server) stop(err error) error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-s.ended:
	case <-time.After(10 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
	return err
}
