package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/tidemark-mq/tidemark/bench/child"
	"github.com/tidemark-mq/tidemark/bench/report"
)

// selfNode is a node that a benchmark starts by itself.
type selfNode struct {
	on         bool
	work       string   // directory for its data; "": the temporary one
	serve      []string // more flags of serve
	archive    string   // "none" or a URL
	dir        string
	args       []string
	fileSystem string
	child      *child.Child
}

func (s *selfNode) flags(f *pflag.FlagSet) {
	f.BoolVar(&s.on, "self", false, "start a node for this benchmark, in a temporary directory")
	f.StringVar(&s.work, "work", "", "with --self: where that directory is made, on the disk to measure (default TMPDIR)")
	f.StringArrayVar(&s.serve, "serve", nil, "with --self: one more flag of serve, for example --serve=--flush-bytes=1MiB; may be repeated")
}

func (s *selfNode) check(c *connection) error {
	if !s.on && (s.work != "" || len(s.serve) > 0) {
		return usagef("--work and --serve are for --self")
	}
	if s.on && c.server != "" {
		return usagef("--self starts a node of its own: leave --server out")
	}
	return nil
}

// start starts the node.
func (s *selfNode) start(ctx context.Context) (child.Ready, error) {
	if s.work != "" {
		if err := os.MkdirAll(s.work, 0o750); err != nil {
			return child.Ready{}, usagef("--work: %w", err)
		}
	}
	dir, err := os.MkdirTemp(s.work, "tidemark-bench-")
	if err != nil {
		return child.Ready{}, fmt.Errorf("make a directory for the node: %w", err)
	}
	s.dir, s.fileSystem = dir, report.FileSystem(dir)
	ready, err := s.startIn(ctx, "data")
	if err != nil {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return ready, err
}

// startIn starts a node with that data directory, below the benchmark's.
func (s *selfNode) startIn(ctx context.Context, data string) (child.Ready, error) {
	program, err := os.Executable()
	if err != nil {
		return child.Ready{}, fmt.Errorf("find this program: %w", err)
	}
	archive := s.archive
	if archive == "" {
		archive = "none"
	}
	s.args = append([]string{
		"serve", "--dev", "--data-dir", filepath.Join(s.dir, data), "--archive", archive, "--http-addr", "127.0.0.1:0", "--raft-addr", "127.0.0.1:0",
		"--metrics-addr", "127.0.0.1:0", "--log-level", "warn",
	}, s.serve...)
	if s.child, err = child.Start(ctx, nil, program, s.args...); err != nil {
		return child.Ready{}, err
	}
	return s.child.Ready, nil
}

// stop stops the node and removes its directory.
func (s *selfNode) stop() error {
	return errors.Join(s.child.Stop(), os.RemoveAll(s.dir))
}
