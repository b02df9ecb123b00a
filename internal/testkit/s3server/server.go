package s3server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	readyMax = 30 * time.Second
	stopMax  = 10 * time.Second
	pollWait = 10 * time.Millisecond
	portTry  = 5
)

// Server is one server and how to reach it.
type Server struct {
	Endpoint  string // http://127.0.0.1:port
	AccessKey string
	SecretKey string
	Bucket    string // exists, empty at Start
	Region    string
	Dir       string // where the objects are: <Dir>/<Bucket>/<key>

	t    testing.TB
	bin  string
	addr string
	mu   struct {
		sync.Mutex
		proc *process // nil while stopped
	}
}

// process is one run of the binary.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once it has ended
	log  *tail
}

// Start starts a server with an empty bucket and stops it when t ends.
func Start(t testing.TB) *Server {
	t.Helper()
	bin, err := Binary(t.Context())
	if err != nil {
		t.Fatalf("s3server: %v", err)
	}
	s := &Server{AccessKey: "tidemark", SecretKey: "tidemark-secret", Bucket: "archive", Region: "us-east-1", Dir: t.TempDir(), t: t, bin: bin}
	// A top directory is a bucket to the server.
	if err := os.Mkdir(filepath.Join(s.Dir, s.Bucket), 0o755); err != nil {
		t.Fatalf("s3server: %v", err)
	}
	t.Cleanup(s.Stop)
	// Another process can take the port between its choice and its use.
	for try := 1; ; try++ {
		if s.addr, err = freeAddr(); err == nil {
			s.Endpoint = "http://" + s.addr
			err = s.start()
		}
		if err == nil {
			return s
		}
		if try == portTry {
			t.Fatalf("s3server: %v", err)
		}
	}
}

// URL returns the bucket as Tidemark names it, under a prefix that may be empty.
// The credentials are not in it; see Env.
func (s *Server) URL(prefix string) string {
	return fmt.Sprintf("s3://%s/%s?endpoint=%s&region=%s&path_style=true", s.Bucket, prefix, s.Endpoint, s.Region)
}

// Env returns the variables that give a process the credentials.
func (s *Server) Env() []string {
	return []string{"AWS_ACCESS_KEY_ID=" + s.AccessKey, "AWS_SECRET_ACCESS_KEY=" + s.SecretKey, "AWS_EC2_METADATA_DISABLED=true"}
}

// Stop ends the server in order; requests under way may finish. Stopping a
// stopped server does nothing.
func (s *Server) Stop() { s.end(syscall.SIGTERM) }

// Kill ends the server at once, in the middle of whatever it does.
func (s *Server) Kill() { s.end(syscall.SIGKILL) }

// Restart stops the server if it runs and starts it again on the same port with
// the same objects.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	deadline := time.Now().Add(readyMax)
	for {
		err := s.start()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("s3server: restart on %s: %v", s.addr, err)
		}
		time.Sleep(pollWait)
	}
}

// Pause stops the server's clock, so to speak: connections are taken by the
// kernel and nobody answers. Resume ends that. Neither does anything to a
// stopped server.
func (s *Server) Pause() { s.signal(syscall.SIGSTOP) }

// Resume lets a paused server go on.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.mu.proc; p != nil {
		p.cmd.Process.Signal(sig)
	}
}

func (s *Server) end(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.mu.proc
	if p == nil {
		return
	}
	s.mu.proc = nil
	p.cmd.Process.Signal(sig)
	select {
	case <-p.done:
	case <-time.After(stopMax):
		p.cmd.Process.Kill()
		<-p.done
	}
}

// start runs the binary and waits until it answers.
func (s *Server) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &process{done: make(chan struct{}), log: &tail{}}
	p.cmd = exec.Command(s.bin, "--port", s.addr, "--region", s.Region, "--health", "/healthz", "--quiet", "--keep-alive", "posix", s.Dir)
	p.cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+s.AccessKey, "ROOT_SECRET_KEY="+s.SecretKey)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		defer close(p.done)
		// The kernel ties the death signal to the thread that forked, so this
		// thread stays as long as the server.
		runtime.LockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	if err := s.ready(p); err != nil {
		p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%w\n%s", err, p.log)
	}
	s.mu.proc = p
	return nil
}

// ready polls until the server answers or ends.
func (s *Server) ready(p *process) error {
	ctx, cancel := context.WithTimeout(context.Background(), readyMax)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Endpoint+"/healthz", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-p.done:
			return errors.New("the server ended before it was ready")
		case <-ctx.Done():
			return fmt.Errorf("the server is not ready after %v: %w", readyMax, err)
		case <-time.After(pollWait):
		}
	}
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// tail keeps the last few kilobytes that a process wrote.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailBytes = 16 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - tailBytes; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.buf))
}
