package realnode

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/tidemark-mq/tidemark/internal/testkit/process"
)

// Build builds the binary into dir and returns its path.
func Build(ctx context.Context, dir string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	path := filepath.Join(dir, "tidemark")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", path, "./cmd/tidemark")
	cmd.Dir = filepath.Dir(strings.TrimSpace(string(out)))
	// As make build does: what is tested is what ships.
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build tidemark: %w\n%s", err, text)
	}
	return path, nil
}

// Result is what a command that ended left.
type Result struct {
	Code           int
	Stdout, Stderr string // their last kilobytes
}

// Run runs a command of the binary to its end, or kills it when ctx ends. A
// code other than 0 is no error.
func Run(ctx context.Context, binary string, env []string, args ...string) (Result, error) {
	p, err := process.Start(process.Options{Path: binary, Args: args, Env: env})
	if err != nil {
		return Result{}, err
	}
	code, err := p.Wait(ctx)
	return Result{Code: code, Stdout: p.Stdout(), Stderr: p.Stderr()}, err
}

// Restore restores a data directory from an archive and takes it over.
func Restore(ctx context.Context, o Options, flags ...string) (Result, error) {
	args := append([]string{"restore", "--archive", o.Archive, "--data-dir", o.DataDir, "--take-over"}, flags...)
	return Run(ctx, o.Binary, o.Env, args...)
}
