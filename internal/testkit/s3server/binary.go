package s3server

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

const (
	module   = "github.com/versity/versitygw"
	command  = module + "/cmd/versitygw"
	version  = "v1.8.0"
	name     = "versitygw"
	buildMax = 15 * time.Minute
)

// Binary returns the path of the server's binary and builds it if it is missing
// or of another version.
func Binary(ctx context.Context) (string, error) {
	dir, err := toolsDir()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the tools directory: %w", err)
	}
	path := filepath.Join(dir, name)
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", fmt.Errorf("open the lock of the build: %w", err)
	}
	defer lock.Close() // which unlocks
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock the build: %w", err)
	}
	if usable(path) {
		return path, nil
	}
	return path, build(ctx, dir)
}

// toolsDir returns where test servers are kept.
func toolsDir() (string, error) {
	if dir := os.Getenv("TIDEMARK_TOOLS"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, ".cache", "tools", "bin"), nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no go.mod above the working directory; set TIDEMARK_TOOLS")
		}
	}
}

// usable reports whether path is the pinned version.
func usable(path string) bool {
	info, err := buildinfo.ReadFile(path)
	return err == nil && info.Main.Path == module && info.Main.Version == version
}

// build installs the binary into dir. It runs outside of our module, whose
// requirements must not bend those of the server.
func build(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, buildMax)
	defer cancel()
	tmp, err := os.MkdirTemp("", "tidemark-tools-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	cmd := exec.CommandContext(ctx, "go", "install", command+"@"+version)
	cmd.Dir = tmp
	cmd.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go install %s@%s: %w\n%s", command, version, err, out)
	}
	return nil
}
