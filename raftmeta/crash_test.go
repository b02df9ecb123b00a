package raftmeta

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

var testFS = vfs.Default

// writerChild creates topics from several goroutines for ever and prints each
// name once its creation was answered.
func writerChild(dir string) error {
	ctx := context.Background()
	o := testOptions(dir)
	o.SnapshotThreshold = 64 // kills fall into snapshots and log cuts as well
	m, err := Open(ctx, o)
	if err != nil {
		return err
	}
	if _, err := m.RegisterIncarnation(ctx, 0xa1, nil); err != nil {
		return err
	}
	fmt.Println("ready")
	var mu sync.Mutex
	var group sync.WaitGroup
	for w := range 4 {
		group.Go(func() {
			for i := 0; ; i++ {
				name := fmt.Sprintf("t-%d-%d-%d", os.Getpid(), w, i)
				if _, err := m.CreateTopic(ctx, DefaultTopic(name)); err != nil {
					panic(err)
				}
				mu.Lock()
				fmt.Println(name)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return nil
}

// openerChild opens the directory and says how that went.
func openerChild(dir string) error {
	m, err := Open(context.Background(), testOptions(dir))
	if err != nil {
		fmt.Println(errcode.Of(err), err)
		return nil
	}
	fmt.Println("opened")
	return m.Close()
}

func child(t *testing.T, role, dir string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	c := exec.Command(os.Args[0], "-test.run=^$", dir)
	c.Env = append(os.Environ(), childEnv+"="+role)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return c, bufio.NewScanner(out)
}

// I1: whatever was answered before a kill -9 is there after the restart. The
// kill falls between proposals and answers of four writers, again and again on
// the same directory.
func TestKillKeepsWhatWasAnswered(t *testing.T) {
	dir := tempDir(t)
	answered := map[string]bool{}
	for round := range 5 {
		c, lines := child(t, "writer", dir)
		for n := 0; n < 40+17*round && lines.Scan(); n++ {
			answered[lines.Text()] = true
		}
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() { // answered, printed, not read yet
			answered[lines.Text()] = true
		}
		_ = c.Wait() // killed
		delete(answered, "ready")
		m := open(t, testOptions(dir))
		for name := range answered {
			if _, ok := m.Topic(name); !ok {
				t.Errorf("round %d: %s was answered and is gone", round, name)
			}
		}
		if len(answered) < 30*(round+1) {
			t.Fatalf("round %d: only %d answers", round, len(answered))
		}
		closeMeta(t, m)
	}
}

// A second process, or a second open in this one, gets a sentence that says
// what to do instead of an errno.
func TestDirectoryInUse(t *testing.T) {
	o := testOptions(tempDir(t))
	m := open(t, o)
	_, lines := child(t, "opener", o.Dir)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), "conflict metadata directory ") || !strings.Contains(lines.Text(), "in use by another tidemark process; stop it") {
		t.Fatalf("second process: %q", lines.Text())
	}
	_, err := tryOpen(t, o)
	wantCode(t, err, errcode.Conflict, "in use by another tidemark process; stop it")
	closeMeta(t, m)
	_, lines = child(t, "opener", o.Dir)
	if !lines.Scan() || lines.Text() != "opened" {
		t.Fatalf("after close: %q", lines.Text())
	}
}
