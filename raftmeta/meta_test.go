package raftmeta

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func testOptions(dir string) Options {
	return Options{Dir: dir, NodeID: "n1", BindAddr: "127.0.0.1:0"}
}

func open(t testing.TB, o Options) *Meta {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	m, err := Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func TestSmoke(t *testing.T) {
	o := testOptions(filepath.Join(t.TempDir(), "raft"))
	o.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	m := open(t, o)
	if _, err := m.RegisterIncarnation(t.Context(), 7, nil); err != nil {
		t.Fatal(err)
	}
	tp, err := m.CreateTopic(t.Context(), DefaultTopic("orders"))
	t.Log(tp, err)
	if err != nil {
		t.Fatal(err)
	}
	_, e, _ := m.Export()
	t.Logf("%s", e)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	s := time.Now()
	m = open(t, o)
	t.Log(time.Since(s))
	_, e2, _ := m.Export()
	if string(e) != string(e2) {
		t.Fatalf("%s", e2)
	}
}
