package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"

	"golang.org/x/term"
)

// process is what a command sees of the world.
type process struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	env            []string         // NAME=value
	signals        <-chan os.Signal // nil: none
	exit           func(code int)   // ends the process on the second signal
	onHangup       func() (<-chan os.Signal, func())
	asking         atomic.Pointer[func()] // makes the terminal show what is typed again
	node           connection             // of commands that talk to one
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
		p.node.close()
		close(done)
		<-watching
		cancel()
	}()
	root := newRoot(p)
	root.SetArgs(args)
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
			show := p.asking.Load()
			if show != nil {
				(*show)()
			}
			if n > 0 || show != nil { // nothing ends a read of the terminal

				p.exit(exitFailed)
				return
			}
			cancel()
		}
	}
}

// hangups begins to catch SIGHUP, which ends a process otherwise; stop lets it
// be again.
func (p *process) hangups() (signals <-chan os.Signal, stop func()) {
	if p.onHangup == nil {
		return nil, func() {}
	}
	return p.onHangup()
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

// isTerminal says whether v is a terminal: progress is shown there and nowhere
// else. /dev/null is a character device too, so the mode alone does not tell.
func isTerminal(v any) bool {
	f, ok := v.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
