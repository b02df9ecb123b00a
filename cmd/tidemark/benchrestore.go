package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/tidemark-mq/tidemark/bench/rawhttp"
	"github.com/tidemark-mq/tidemark/bench/scenario"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// benchLab starts, loses and restores nodes for a benchmark.
type benchLab struct {
	self *selfNode
	runs int
}

// Archive implements scenario.Lab.
func (l *benchLab) Archive(ctx context.Context, _ int) (objstore.Store, error) {
	if err := l.self.end(); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(l.data()); err != nil {
		return nil, err
	}
	l.runs++
	if err := l.self.archive.renew(ctx, l.self.dir); err != nil {
		return nil, err
	}
	return l.self.archive.open(), nil
}

// data is the data directory of the run.
func (l *benchLab) data() string { return filepath.Join(l.self.dir, l.name()) }

func (l *benchLab) name() string { return fmt.Sprintf("data-%d", l.runs) }

// Start implements scenario.Lab.
func (l *benchLab) Start(ctx context.Context) (*rawhttp.Target, error) {
	if err := l.self.startIn(ctx, l.name()); err != nil {
		return nil, err
	}
	return rawhttp.NewTarget("http://"+l.self.child.Ready.HTTP, "", "")
}

// Lose implements scenario.Lab.
func (l *benchLab) Lose() error {
	if err := l.self.end(); err != nil {
		return err
	}
	return os.RemoveAll(l.data())
}

// Restore implements scenario.Lab. It is a process of its own, as it is for people.
func (l *benchLab) Restore(ctx context.Context) (out scenario.Restored, err error) {
	program, err := os.Executable()
	if err != nil {
		return out, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.CommandContext(ctx, program, "restore", "--archive", l.self.archive.url(), "--data-dir", l.data(), "--take-over", "--json")
	var printed, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &printed, &said
	if err := cmd.Run(); err != nil {
		text := strings.TrimSpace(said.String())
		return out, fmt.Errorf("tidemark restore: %w: %s", err, text[max(0, len(text)-600):])
	}
	if err := json.Unmarshal(printed.Bytes(), &out); err != nil {
		return out, fmt.Errorf("read what tidemark restore printed: %w", err)
	}
	return out, nil
}
