package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tidemark-mq/tidemark/bench/child"
	"github.com/tidemark-mq/tidemark/bench/report"
)

// rig is what measurements need.
type rig struct {
	root   string // of the repository
	binary string
	work   string // a directory of this run
	tools  string // reference programs, built
	commit string
	smoke  bool
}

func newRig(ctx context.Context, binary, work string, smoke bool) (*rig, error) {
	root, err := output(ctx, "", nil, "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return nil, err
	}
	g := &rig{root: strings.TrimSpace(string(root)), smoke: smoke}
	if g.binary, err = filepath.Abs(binary); err != nil {
		return nil, err
	}
	if _, err := os.Stat(g.binary); err != nil {
		return nil, fmt.Errorf("%w: run 'make build' first", err)
	}
	if g.work, err = os.MkdirTemp(work, "tidemark-targets-"); err != nil {
		return nil, err
	}
	commit, err := output(ctx, g.root, nil, "git", "describe", "--always", "--dirty")
	if err == nil {
		g.commit = strings.TrimSpace(string(commit))
		g.tools = filepath.Join(g.work, "tools")
		_, err = output(ctx, g.root, nil, "go", "build", "-trimpath", "-o", g.tools+"/", "./bench/ref/httpref", "./bench/ref/appendref")
	}
	if err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

func (g *rig) close() { _ = os.RemoveAll(g.work) } // a temporary directory

// pick is the full number, or the one of a smoke run.
func pick[T any](g *rig, full, smoke T) T {
	if g.smoke {
		return smoke
	}
	return full
}

// output runs a program to its end.
func output(ctx context.Context, dir string, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		text := strings.Join(strings.Fields(cmp.Or(strings.TrimSpace(said.String()), out.String())), " ")
		return nil, fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err, text[max(0, len(text)-400):])
	}
	return out.Bytes(), nil
}

// broker starts a node with a data directory of its own.
func (g *rig) broker(ctx context.Context, archive string, flags ...string) (*child.Child, error) {
	dir, err := os.MkdirTemp(g.work, "node-")
	if err != nil {
		return nil, err
	}
	if archive == "file" {
		archive = "file://" + filepath.Join(dir, "archive")
	}
	return child.Start(ctx, nil, g.binary, append([]string{
		"serve", "--dev", "--data-dir", filepath.Join(dir, "data"), "--archive", archive, "--http-addr", "127.0.0.1:0",
		"--raft-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0", "--log-level", "warn",
	}, flags...)...)
}

// bench runs a benchmark of the program against a node and returns the medians by
// "measure/figure". With one run each, they are the figures.
func (g *rig) bench(ctx context.Context, c *child.Child, args ...string) (map[string]float64, error) {
	args = append(append([]string{"bench"}, args...), "--server", "http://"+c.Ready.HTTP, "--runs", "1", "--json")
	b, err := output(ctx, "", nil, g.binary, args...)
	if err != nil {
		return nil, err
	}
	var rep struct {
		Summaries map[string][]report.Summary `json:"summaries"`
	}
	if err := json.Unmarshal(b, &rep); err != nil {
		return nil, fmt.Errorf("read the report of tidemark %s: %w", strings.Join(args, " "), err)
	}
	out := map[string]float64{}
	for measure, list := range rep.Summaries {
		for _, s := range list {
			out[measure+"/"+s.Name] = s.Median
		}
	}
	return out, nil
}

// seconds is a length of time for flags.
func seconds(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) + "s" }

// appended is what appendref prints.
type appended struct {
	MBPerSec float64 `json:"mb_per_s"`
	P99      float64 `json:"p99_ms"`
}

// append measures bare appends of a block, each synced.
func (g *rig) append(ctx context.Context, block int, secs float64) (out appended, err error) {
	b, err := output(ctx, "", nil, filepath.Join(g.tools, "appendref"), "-file", filepath.Join(g.work, "append.ring"),
		"-block", strconv.Itoa(block), "-seconds", strconv.FormatFloat(secs, 'f', -1, 64))
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	return out, err
}

// stop stops children; what they were measured with stands, however they end.
func stop(err error, children ...*child.Child) error {
	for _, c := range children {
		if c != nil {
			err = errors.Join(err, c.Stop())
		}
	}
	return err
}
