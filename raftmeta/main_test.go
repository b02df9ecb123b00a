package raftmeta

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// childEnv makes the test binary run one of the child processes below.
const childEnv = "RAFTMETA_TEST_CHILD"

// ownProcessEnv marks the process that inOwnProcess started.
const ownProcessEnv = "RAFTMETA_TEST_OWN_PROCESS"

// inOwnProcess reports whether the calling test runs in a process of its own,
// and if not runs it in one. A Pebble whose disk failed keeps its goroutines
// and its lock until the process ends.
func inOwnProcess(t *testing.T) bool {
	t.Helper()
	if os.Getenv(ownProcessEnv) != "" {
		return true
	}
	c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=60s")
	c.Env = append(os.Environ(), ownProcessEnv+"=1")
	if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

func TestMain(m *testing.M) {
	if role := os.Getenv(childEnv); role != "" {
		if err := children[role](os.Args[len(os.Args)-1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Each check of the model opens the directory many times, with its fsyncs;
	// -rapid.checks on the command line still decides.
	if err := flag.Set("rapid.checks", "20"); err != nil {
		panic(err)
	}
	if os.Getenv(ownProcessEnv) != "" {
		os.Exit(m.Run()) // leaves a failed Pebble behind, on purpose
	}
	goleak.VerifyTestMain(m)
}

// children are the roles that run in a process of their own, on a directory.
var children = map[string]func(dir string) error{
	"writer": writerChild,
	"opener": openerChild,
}

func testOptions(dir string) Options {
	return Options{Dir: dir, NodeID: "n1", BindAddr: "127.0.0.1:0"}
}

func tempDir(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "raft")
}

func tryOpen(t testing.TB, o Options) (*Meta, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	m, err := Open(ctx, o)
	if err == nil {
		t.Cleanup(func() { _ = m.Close() }) // a test that cares about the error closes by itself
	}
	return m, err
}

func open(t testing.TB, o Options) *Meta {
	t.Helper()
	m, err := tryOpen(t, o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// openReady also registers an incarnation, so that topics can be created.
func openReady(t testing.TB, o Options) *Meta {
	t.Helper()
	m := open(t, o)
	must(t)(m.RegisterIncarnation(t.Context(), 0xa1, map[string]string{"http": "127.0.0.1:7942"}))
	return m
}

func closeMeta(t testing.TB, m *Meta) {
	t.Helper()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
}

// must returns a function that ends the test on an error and drops the value.
func must(t testing.TB) func(any, error) {
	t.Helper()
	return func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
}

func exportOf(t testing.TB, m *Meta) string {
	t.Helper()
	_, data, err := m.Export()
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// eventually polls until ok holds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// killImage copies the directory while the plane is open but at rest: what a
// kill -9 at this moment would leave for the next start. A file that Pebble
// removes in the background meanwhile means another copy.
func killImage(t testing.TB, dir string) string {
	t.Helper()
	for range 20 {
		to := tempDir(t)
		err := os.CopyFS(to, os.DirFS(dir))
		if err == nil {
			return to
		}
		if !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	t.Fatalf("%s never came to rest", dir)
	return ""
}

func dirBytes(t testing.TB, dir string) (total int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if os.IsNotExist(err) {
			return nil // Pebble removed it meanwhile
		}
		if err == nil {
			total += info.Size()
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return total
}

// inParallel calls do for 0..n-1 from 16 goroutines: they share fsyncs.
func inParallel(n int, do func(i int)) {
	var next atomic.Int64
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	group.Wait()
}
