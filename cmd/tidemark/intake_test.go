package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// collect takes every batch of an input.
func collect(t *testing.T, records int, r io.Reader) (batches [][]string, numbers []int, err error) {
	t.Helper()
	in := newIntake(records)
	go in.read(r)
	var b lines
	for {
		if err := in.take(&b); err != nil {
			return batches, numbers, err
		}
		var batch []string
		for i := range b.count() {
			batch = append(batch, string(b.line(i)))
		}
		if got := strings.Join(batch, "\n") + "\n"; got != string(b.body) {
			t.Fatalf("lines %q, body %q", got, b.body)
		}
		batches, numbers = append(batches, batch), append(numbers, b.numbers...)
	}
}

// Proves that lines come whole, in order, with their numbers, whatever the
// source does, and that no batch is larger than asked for.
func TestIntakeLines(t *testing.T) {
	var want []string
	var text strings.Builder
	for i := range 5000 {
		line := fmt.Sprintf(`{"n":%d,"pad":%q}`, i, strings.Repeat("x", i%300))
		want = append(want, line)
		text.WriteString(line + "\r\n")
		if i%7 == 0 {
			text.WriteString(" \t\n")
		}
	}
	long := `"` + strings.Repeat("y", 700<<10) + `"`
	want = append(want, long, "1")
	text.WriteString(long + "\n1")
	for name, r := range map[string]io.Reader{
		"whole": strings.NewReader(text.String()), "half": iotest.HalfReader(strings.NewReader(text.String())), "with the end": iotest.DataErrReader(strings.NewReader(text.String())),
	} {
		batches, numbers, err := collect(t, 100, r)
		if !errors.Is(err, io.EOF) {
			t.Fatalf("%s: %v", name, err)
		}
		var got []string
		for _, b := range batches {
			if len(b) > 100 {
				t.Errorf("%s: a batch of %d", name, len(b))
			}
			got = append(got, b...)
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s: %d lines came, want %d", name, len(got), len(want))
		}
		if numbers[0] != 1 || numbers[1] != 3 || numbers[len(numbers)-1] != 5000+715+2 {
			t.Errorf("%s: numbers %d %d ... %d", name, numbers[0], numbers[1], numbers[len(numbers)-1])
		}
	}
}

// Proves that input which is there at once goes out in full batches: how it is
// cut does not depend on who is faster.
func TestIntakeFullBatches(t *testing.T) {
	for range 50 {
		batches, _, err := collect(t, 100, strings.NewReader(strings.Repeat("1\n", 250)))
		if !errors.Is(err, io.EOF) || len(batches) != 3 || len(batches[0]) != 100 || len(batches[1]) != 100 {
			t.Fatalf("%d batches, %v", len(batches), err)
		}
	}
}

// Proves the bounds in bytes: a batch stays within 16 MiB, a longer line is
// refused by number, and what came before it still goes out.
func TestIntakeBounds(t *testing.T) {
	big := strings.Repeat("a", 6<<20)
	batches, _, err := collect(t, 1000, strings.NewReader(strings.Repeat(big+"\n", 5)))
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	n := 0
	for _, b := range batches {
		n += len(b)
		if len(b) > 2 {
			t.Errorf("%d lines of 6 MiB in a batch", len(b))
		}
	}
	if n != 5 {
		t.Errorf("%d lines came", n)
	}
	batches, _, err = collect(t, 1000, strings.NewReader("1\n2\n"+strings.Repeat("a", maxBatchBytes+1)))
	if !errcode.Is(err, errcode.TooLarge) || !strings.Contains(err.Error(), "line 3 ") || len(batches) == 0 {
		t.Errorf("%d batches, %v", len(batches), err)
	}
	if _, _, err := collect(t, 10, io.MultiReader(strings.NewReader("1\n"), iotest.ErrReader(io.ErrClosedPipe))); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a source that breaks: %v", err)
	}
}

// Proves that a slow source waits for nobody: a line goes out as soon as it is
// there, and both sides end when they are stopped.
func TestIntakeSlowSourceAndStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		in := newIntake(1)
		done := make(chan struct{})
		go func() { in.read(r); close(done) }()
		var b lines
		for _, line := range []string{"1", "2", "3"} {
			if _, err := io.WriteString(w, line+"\n"); err != nil {
				t.Fatal(err)
			}
			if err := in.take(&b); err != nil || string(b.line(0)) != line {
				t.Fatalf("%q: %v", b.body, err)
			}
		}
		written := make(chan struct{})
		go func() {
			defer close(written)
			_, _ = io.WriteString(w, "4\n5\n6\n") // 5 waits for room; 6 may meet the closed pipe
		}()
		synctest.Wait()
		in.stop()
		<-done
		if err := in.take(&b); !errcode.Is(err, errcode.Canceled) {
			t.Errorf("after stop: %v", err)
		}
		r.Close()
		<-written
		w.Close()
	})
}
