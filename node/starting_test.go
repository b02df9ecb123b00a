package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// steps collects what a start says of itself.
type steps struct {
	mu   sync.Mutex
	said []string
}

func (s *steps) add(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said = append(s.said, text)
}

func (s *steps) last() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.said) == 0 {
		return ""
	}
	return s.said[len(s.said)-1]
}

// replayedNode is a stopped node whose log holds some megabytes that a start
// has to replay.
func replayedNode(t *testing.T) (m *memNode, records int) {
	t.Helper()
	m = newMemNode(t, func(o *Options) { o.FlushBytes, o.WALFileSize = 64<<20, 1<<20 })
	createTopic(t, m.Node, "t", 1)
	value := make([]byte, 64<<10)
	noise := rand.NewChaCha8([32]byte{1}) // which does not shrink
	for ; records < 80; records++ {
		_, _ = noise.Read(value) // it always fills
		produce(t, m.Node, "t", broker.AckAccepted, broker.NewRecord{Partition: 0, Value: value})
	}
	image := m.mem.CrashClone(everything())
	if err := m.Node.Close(); err != nil {
		t.Fatal(err)
	}
	m.mem = image
	return m, records
}

// A long start says what it does, and how far the replay of its log is, from
// the first file to the last one, and then serves every record (B248, B250).
func TestStartTellsItsProgress(t *testing.T) {
	m, records := replayedNode(t)
	said := &steps{}
	m.o.OnProgress = said.add
	m.open()
	var at []int
	for _, text := range said.said {
		var n, of int
		if _, err := fmt.Sscanf(text, "replaying the log, %d of at most %d MiB", &n, &of); err == nil {
			at = append(at, n)
			if n > of {
				t.Errorf("%q", text)
			}
		}
	}
	if len(at) < 5 || at[0] != 0 || !slices.IsSorted(at) {
		t.Fatalf("the replay says %v of itself, all: %q", at, said.said)
	}
	if !strings.Contains(said.said[0], "metadata") {
		t.Fatalf("it begins with %q", said.said[0])
	}
	if got := len(readAll(t, m.Node, "t", 0)); got != records {
		t.Fatalf("%d records of %d", got, records)
	}
	m.close()
}

// A replay on a disk that hangs says so while it lasts, and is called off when
// the start is: a stop does not wait for its end (I14, B248).
func TestReplayIsCalledOff(t *testing.T) {
	m, records := replayedNode(t)
	said := &steps{}
	m.o.OnProgress = said.add
	hangs := make(chan struct{})
	m.fs = &nodeFS{FS: m.mem, fail: func(op, path string) error {
		if op == "open" && filepath.Ext(path) == ".wal" && strings.HasPrefix(said.last(), "replaying the log, 1 ") {
			<-hangs
		}
		return nil
	}}
	m.o.FS = m.fs
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		n, err := Open(ctx, m.o)
		if err == nil {
			err = n.Close()
		}
		done <- err
	}()
	within(t, "the replay is under way", func() bool { return strings.HasPrefix(said.last(), "replaying the log, 1 ") })
	cancel()
	close(hangs)
	select {
	case err := <-done:
		if !errcode.Is(err, errcode.Canceled) || !strings.Contains(err.Error(), "called off") {
			t.Fatalf("the start that was called off: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the start goes on")
	}
	m.o.OnProgress = nil
	m.open()
	if got := len(readAll(t, m.Node, "t", 0)); got != records {
		t.Fatalf("%d records of %d", got, records)
	}
	m.close()
}
