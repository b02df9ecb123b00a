package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// Proves that a command whose reader goes away ends with 141 and says nothing, in
// whatever way it writes; that consume has given back what was not taken, and the
// rest is there for the next one.
func TestBrokenPipe(t *testing.T) {
	t.Parallel()
	s := devServe(t, t.TempDir(), "--archive", "none")
	c := s.client()
	c.must(t, "topic", "create", "orders", "--partitions", "1")
	const n = 3000 // well above what a pipe holds
	var input strings.Builder
	for i := range n {
		fmt.Fprintf(&input, "{\"n\":%d,\"pad\":%q}\n", i, strings.Repeat("x", 100))
	}
	in := c
	in.stdin = input.String()
	in.must(t, "produce", "orders", "--ndjson")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cut := func(args string) (first string) {
		t.Helper()
		cmd := exec.Command("bash", "-c", `"$EXE" `+args+` 2>err | head -1; echo "${PIPESTATUS[0]}"; cat err`)
		cmd.Dir = t.TempDir()
		cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + cmd.Dir, "EXE=" + exe, asProgram + "=1"}, c.env...)
		out, err := cmd.CombinedOutput()
		lines := linesOf(string(out))
		if err != nil || len(lines) != 2 || lines[1] != "141" {
			t.Errorf("%s: %q, %v", args, out, err)
			return ""
		}
		return lines[0]
	}
	if line := cut("replay orders --partition 0"); !strings.Contains(line, `"offset":0`) {
		t.Errorf("replay began with %q", line)
	}
	if line := cut("consume orders"); !strings.Contains(line, `"offset":0`) {
		t.Errorf("consume began with %q", line)
	}
	rest := records(t, c.must(t, "consume", "orders"))
	if len(rest) == 0 || len(rest) >= n || rest[len(rest)-1].Offset != n-1 {
		t.Fatalf("%d records are left", len(rest))
	}
	for i := range rest {
		if want := int64(n - len(rest) + i); rest[i].Offset != want || rest[i].Attempt > 2 {
			t.Fatalf("record %d of the rest has offset %d, attempt %d, want offset %d", i, rest[i].Offset, rest[i].Attempt, want)
		}
	}
}

// Proves that only a closed stdout is taken for one: not a closed connection, not
// a file of another name, and not when something failed besides.
func TestReaderGone(t *testing.T) {
	gone := &fs.PathError{Op: "write", Path: os.Stdout.Name(), Err: syscall.EPIPE}
	other := errors.New("the leases could not be given back")
	for _, c := range []struct {
		err  error
		want int
	}{
		{gone, exitPipe},
		{fmt.Errorf("print: %w", gone), exitPipe},
		{errors.Join(errors.Join(gone, nil), gone), exitPipe},
		{errors.Join(gone, other), exitFailed},
		{syscall.EPIPE, exitFailed},
		{&fs.PathError{Op: "write", Path: "/tmp/x", Err: syscall.EPIPE}, exitFailed},
		{&fs.PathError{Op: "write", Path: os.Stdout.Name(), Err: syscall.ENOSPC}, exitFailed},
		{usageError{other}, exitUsage},
	} {
		var said strings.Builder
		if got := (&process{stderr: &said}).report(c.err); got != c.want || (said.Len() == 0) != (c.want == exitPipe) {
			t.Errorf("%v: exit %d, said %q", c.err, got, said.String())
		}
	}
}
