package e2e

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/testkit/realnode"
)

// binary is the broker that every test runs.
var binary string

const buildMax = 10 * time.Minute

func TestMain(m *testing.M) { os.Exit(run(m)) }

// run is a function of its own so that its defers run before the exit.
func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "tidemark-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }() // the system's temporary directory
	ctx, cancel := context.WithTimeout(context.Background(), buildMax)
	defer cancel()
	if binary, err = realnode.Build(ctx, dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// fullRounds is from when on nothing is made smaller.
const fullRounds = 30

// rounds is how often a loop kills.
func rounds(t *testing.T) int {
	t.Helper()
	text := os.Getenv("TIDEMARK_KILL_ROUNDS")
	if text == "" {
		if testing.Short() {
			return 2
		}
		return 5
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("TIDEMARK_KILL_ROUNDS=%q is no number of rounds", text)
	}
	return n
}
