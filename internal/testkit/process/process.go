package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// maxLine bounds the first line of a child.
const maxLine = 64 << 10

// Options say what to run.
type Options struct {
	Path string
	Args []string
	Env  []string // beside the environment of this process, less TIDEMARK_*
	Dir  string   // "": the working directory
}

// Process is a child that was started. All methods are safe for concurrent use.
type Process struct {
	cmd    *exec.Cmd
	first  chan string   // capacity 1: the first line of standard output
	silent chan struct{} // closed at the end of standard output
	done   chan struct{} // closed once the child has ended and was read to its end
	out    tail
	err    tail
}

// Start starts a child and returns at once.
func Start(o Options) (*Process, error) {
	p := &Process{first: make(chan string, 1), silent: make(chan struct{}), done: make(chan struct{})}
	p.cmd = exec.Command(o.Path, o.Args...)
	p.cmd.Env = append(ownEnvironment(), o.Env...)
	p.cmd.Dir = o.Dir
	p.cmd.Stderr = &p.err
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("open the standard output of %s: %w", o.Path, err)
	}
	started := make(chan error)
	go func() {
		defer close(p.done)
		// The kernel ties the death signal to the thread that forked, so this
		// thread stays as long as the child.
		runtime.LockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		go p.read(stdout)
		<-p.silent
		_ = p.cmd.Wait() // the exit code is asked for by those who want it
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Path, err)
	}
	return p, nil
}

func (p *Process) read(r io.Reader) {
	defer close(p.silent)
	buffered := bufio.NewReaderSize(r, maxLine)
	line, err := buffered.ReadSlice('\n')
	_, _ = p.out.Write(line) // a tail takes everything
	if err == nil {
		p.first <- string(line[:len(line)-1])
	}
	if err == nil || errors.Is(err, bufio.ErrBufferFull) {
		_, _ = io.Copy(&p.out, buffered) // ends with the child
	}
}

// FirstLine waits for the first line of the child's standard output. It returns
// it once.
func (p *Process) FirstLine(ctx context.Context) (string, error) {
	select {
	case line := <-p.first:
		return line, nil
	case <-p.done:
		select {
		case line := <-p.first:
			return line, nil
		default:
			return "", fmt.Errorf("%s ended with %d before its first line\n%s", p.cmd.Path, p.ExitCode(), p.Log())
		}
	case <-ctx.Done():
		return "", fmt.Errorf("%s wrote no line: %w\n%s", p.cmd.Path, ctx.Err(), p.Log())
	}
}

// PID is the child's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed once the child has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// ExitCode is -1 while the child runs and when a signal ended it.
func (p *Process) ExitCode() int {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	default:
		return -1
	}
}

// Kill ends the child at once, in the middle of whatever it does.
func (p *Process) Kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL) // it may have ended by itself
	<-p.done
}

// Stop asks the child to end and kills it when it has not within grace. It
// returns whether the child ended by itself.
func (p *Process) Stop(grace time.Duration) bool {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-p.done:
		return true
	case <-t.C:
		p.Kill()
		return false
	}
}

// Wait waits for the child's end and kills it when ctx ends first. It returns
// the exit code.
func (p *Process) Wait(ctx context.Context) (int, error) {
	select {
	case <-p.done:
		return p.ExitCode(), nil
	case <-ctx.Done():
		p.Kill()
		return -1, fmt.Errorf("%s did not end in time: %w\n%s", p.cmd.Path, ctx.Err(), p.Log())
	}
}

// Stdout returns the last kilobytes of standard output.
func (p *Process) Stdout() string { return p.out.String() }

// Stderr returns the last kilobytes of standard error.
func (p *Process) Stderr() string { return p.err.String() }

// Log returns the end of both outputs.
func (p *Process) Log() string {
	return "--- standard output\n" + p.Stdout() + "\n--- standard error\n" + p.Stderr()
}

// ownEnvironment is this process's without what begins with TIDEMARK_: those
// variables choose the length of tests, and would be settings of a broker, which
// has none but those that its test gives it.
func ownEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "TIDEMARK_") })
}
