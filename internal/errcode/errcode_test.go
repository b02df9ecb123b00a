package errcode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
)

// Every code has a name of its own: a hole in the table would put an empty
// code on the wire.
func TestTableIsComplete(t *testing.T) {
	seen := map[string]Code{}
	for c := Code(0); c < numCodes; c++ {
		name := c.String()
		if name == "" {
			t.Errorf("code %d has no name", c)
		}
		if other, dup := seen[name]; dup {
			t.Errorf("codes %d and %d are both %q", other, c, name)
		}
		seen[name] = c
	}
	if got := Code(60000); got.String() != "code_60000" || got.Retry() != RetryUnknown {
		t.Errorf("unknown code: %v %v", got, got.Retry())
	}
}

// The innermost code survives wrapping, and so do causes and facts.
func TestWrapKeepsCodeAndCause(t *testing.T) {
	base := New(Gone, "offset %d: %w", 7, io.EOF).With("oldest_offset", 9)
	err := fmt.Errorf("read: %w", Wrap(Internal, base, "partition 3"))
	if !Is(err, Gone) || !errors.Is(err, io.EOF) {
		t.Fatalf("lost code or cause: %v", err)
	}
	var e *Error
	if !errors.As(err, &e) || e.Facts["oldest_offset"] != 9 {
		t.Fatalf("lost facts: %#v", e)
	}
	if several := New(Gone, "%w: %w", io.EOF, context.Canceled); !errors.Is(several, io.EOF) || !errors.Is(several, context.Canceled) {
		t.Fatalf("lost one of two causes: %#v", several)
	}
	if Wrap(Internal, nil, "x") != nil {
		t.Fatal("Wrap(nil) is not nil")
	}
	if Of(fmt.Errorf("x: %w", context.Canceled)) != Canceled || Of(io.EOF) != Internal {
		t.Fatal("Of on foreign errors")
	}
}
