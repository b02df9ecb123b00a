package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
)

// process is what a command sees of the world.
type process struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	env            []string         // NAME=value
	signals        <-chan os.Signal // nil: none
	exit           func(code int)   // ends the process on the second signal
}

// run executes one command line and returns the exit code.
func (p *process) run(args []string) int {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		p.watchSignals(done, cancel)
	}()
	defer func() {
		close(done)
		<-watching
		cancel()
	}()
	root := newRoot(p)
	root.SetArgs(args)
	root.SetIn(p.stdin)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	if err := root.ExecuteContext(ctx); err != nil {
		return p.report(err)
	}
	return exitOK
}

// watchSignals ends the context at the first signal and the process at the
// second, until done is closed.
func (p *process) watchSignals(done <-chan struct{}, cancel context.CancelFunc) {
	for n := 0; ; n++ {
		select {
		case <-done:
			return
		case <-p.signals:
			if n > 0 {
				p.exit(exitFailed)
				return
			}
			cancel()
		}
	}
}

// getenv returns the value of a variable, the last one if it is given twice.
func (p *process) getenv(name string) string {
	value := ""
	for _, kv := range p.env {
		if k, v, ok := strings.Cut(kv, "="); ok && k == name {
			value = v
		}
	}
	return value
}

// say writes a line for people.
func (p *process) say(format string, args ...any) {
	fmt.Fprintf(p.stderr, "tidemark: "+format+"\n", args...)
}

// isTerminal says whether w is a terminal: progress is shown there and nowhere
// else.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
