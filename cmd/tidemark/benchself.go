package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/pflag"

	"github.com/tidemark-mq/tidemark/bench/child"
	"github.com/tidemark-mq/tidemark/bench/rawhttp"
	"github.com/tidemark-mq/tidemark/bench/report"
)

// selfNode is a node that a benchmark starts by itself.
type selfNode struct {
	on         bool
	work       string   // directory for its data; "": the temporary one
	serve      []string // more flags of serve
	settings   []string // flags of serve that the benchmark needs; those of serve win
	archive    *selfArchive
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
	if err := s.prepare(); err != nil {
		return child.Ready{}, err
	}
	err := s.archive.renew(ctx, s.dir)
	if err == nil {
		err = s.startIn(ctx, "data")
	}
	if err != nil {
		return child.Ready{}, errors.Join(err, s.stop())
	}
	return s.child.Ready, nil
}

// prepare makes the directory for everything.
func (s *selfNode) prepare() error {
	if s.work != "" {
		if err := os.MkdirAll(s.work, 0o750); err != nil {
			return usagef("--work: %w", err)
		}
	}
	dir, err := os.MkdirTemp(s.work, "tidemark-bench-")
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return fmt.Errorf("make a directory for the node: %w", err)
	}
	s.dir, s.fileSystem = dir, report.FileSystem(dir)
	return nil
}

// startIn starts a node with that data directory, below the benchmark's.
func (s *selfNode) startIn(ctx context.Context, data string) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	s.args = slices.Concat([]string{
		"serve", "--dev", "--data-dir", filepath.Join(s.dir, data), "--archive", s.archive.url(), "--http-addr", "127.0.0.1:0", "--raft-addr", "127.0.0.1:0",
		"--metrics-addr", "127.0.0.1:0", "--log-level", "warn",
	}, s.settings, s.serve)
	s.child, err = child.Start(ctx, nil, program, s.args...)
	return err
}

// end stops the node, if it runs.
func (s *selfNode) end() error {
	if s.child == nil {
		return nil
	}
	err := s.child.Stop()
	s.child = nil
	return err
}

// restart stops the node in order and starts it again with the data it has.
func (s *selfNode) restart(ctx context.Context) (*rawhttp.Target, error) {
	err := s.end()
	if err == nil {
		err = s.startIn(ctx, "data")
	}
	if err != nil {
		return nil, err
	}
	return rawhttp.NewTarget("http://"+s.child.Ready.HTTP, "", "")
}

// stop stops the node and removes its directory and its archive.
func (s *selfNode) stop() error { return errors.Join(s.end(), s.archive.remove(), os.RemoveAll(s.dir)) }
