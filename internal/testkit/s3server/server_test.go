package s3server

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// answers reports whether something listens at the endpoint.
func answers(s *Server) bool {
	resp, err := http.Get(s.Endpoint + "/healthz")
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Proves that a server answers when Start returns, that it is gone after Stop and
// Kill, and that Restart brings it back on the same port with the same directory.
func TestLifecycle(t *testing.T) {
	s := Start(t)
	if !answers(s) {
		t.Fatal("not ready after Start")
	}
	http.DefaultClient.CloseIdleConnections()
	file := filepath.Join(s.Dir, s.Bucket, "kept")
	if err := os.WriteFile(file, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	endpoint := s.Endpoint
	for _, end := range []func(){s.Stop, s.Kill, s.Stop} {
		end()
		if answers(s) {
			t.Fatal("still answers")
		}
		end() // twice does no harm
		s.Restart()
		if !answers(s) || s.Endpoint != endpoint {
			t.Fatal("not back at the same endpoint")
		}
		http.DefaultClient.CloseIdleConnections()
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the objects are gone: %v", err)
	}
}

// Proves that test processes that start together agree on one binary of the
// pinned version.
func TestBinaryIsPinned(t *testing.T) {
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			path, err := Binary(t.Context())
			if err != nil || !usable(path) {
				t.Errorf("binary: %s, %v", path, err)
			}
		})
	}
	wg.Wait()
	if usable("/bin/sh") || usable(filepath.Join(t.TempDir(), "none")) {
		t.Error("a foreign binary counts as the pinned one")
	}
}

// Proves that a server does not outlive a test process that was killed.
func TestDiesWithParent(t *testing.T) {
	if os.Getenv("S3SERVER_CHILD") != "" {
		s := Start(t)
		fmt.Println(s.Endpoint)
		select {}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(exe, "-test.run", "^TestDiesWithParent$")
	child.Env = append(os.Environ(), "S3SERVER_CHILD=1", "TMPDIR="+t.TempDir())
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var line strings.Builder
	for b := make([]byte, 1); !strings.HasSuffix(line.String(), "\n"); {
		if _, err := out.Read(b); err != nil {
			t.Fatalf("the child ended: %v, %q", err, line.String())
		}
		line.Write(b)
	}
	s := &Server{Endpoint: strings.TrimSpace(line.String())}
	if !answers(s) {
		t.Fatalf("the child's server does not answer at %s", s.Endpoint)
	}
	http.DefaultClient.CloseIdleConnections()
	child.Process.Kill()
	child.Wait()
	for deadline := time.Now().Add(readyMax); answers(s); http.DefaultClient.CloseIdleConnections() {
		if time.Now().After(deadline) {
			t.Fatal("the server outlives its parent")
		}
	}
}
