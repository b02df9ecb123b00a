package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every mutation still finds its place in the code: whoever changes those lines
// changes the mutation too.
func TestMutationsApply(t *testing.T) {
	root, err := filepath.Abs("../../../..")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for i := range mutations {
		m := &mutations[i]
		if _, err := m.mutate(root); err != nil {
			t.Errorf("%s %s: %v", m.Rule, m.Name, err)
		}
		if m.Rule == "" || m.Package == "" || m.Test == "" || len(m.Edits) == 0 || names[m.Name] {
			t.Errorf("%s %q is incomplete, or there is another of that name", m.Rule, m.Name)
		}
		names[m.Name] = true
	}
}

// docs/testing.md lists every mutation, and no other.
func TestMutationsAreDocumented(t *testing.T) {
	b, err := os.ReadFile("../../../../docs/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for i := range mutations {
		m := &mutations[i]
		if row := "| " + m.Rule + " | " + m.Name + " |"; strings.Contains(string(b), row) {
			rows++
		} else {
			t.Errorf("docs/testing.md lacks the row %q", row)
		}
	}
	_, table, _ := strings.Cut(string(b), "| rule | mutation |")
	if n := strings.Count(table, "\n| "); n != rows {
		t.Errorf("docs/testing.md has %d rows for %d mutations", n, rows)
	}
}

// What a failed test said first is found in its output.
func TestReason(t *testing.T) {
	for out, want := range map[string]string{
		"crash histories: wal 3\n--- FAIL: TestHistories (0.00s)\n    run.go:12: LSN 3: invented\n": "LSN 3: invented",
		"panic: boom\n\ngoroutine 1\n": "panic: boom",
		"\n# pkg\nsomething else\n":    "something else",
		"":                             "no output",
	} {
		if got := reason(out); got != want {
			t.Errorf("%q: %q, want %q", out, got, want)
		}
	}
}
