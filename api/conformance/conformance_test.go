package conformance

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tidemark-mq/tidemark/api"
	"github.com/tidemark-mq/tidemark/internal/testkit/realnode"
	"github.com/tidemark-mq/tidemark/node"
)

// Where the suite runs instead of on nodes that the tests start themselves.
var (
	targetURL      = flag.String("url", "", "run the suite against this node, http://host:port")
	targetUser     = flag.String("user", "", "user of that node, where it asks for credentials")
	targetPassword = flag.String("password", "", "password of that user")
	targetArchive  = flag.Bool("archive", true, "that node has an archive")
)

const buildMax = 10 * time.Minute

// buildDir is where the binary is built.
var buildDir string

// build builds the binary once, when the first test needs it.
var build = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), buildMax)
	defer cancel()
	return realnode.Build(ctx, buildDir)
})

func TestMain(m *testing.M) { os.Exit(runAll(m)) }

// runAll is a function of its own so that its defers run before the exit.
func runAll(m *testing.M) int {
	var err error
	if buildDir, err = os.MkdirTemp("", "tidemark-conformance-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(buildDir) }() // the system's temporary directory
	return m.Run()
}

// options are those of a node with an archive in a directory.
func options(t *testing.T) realnode.Options {
	t.Helper()
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	return realnode.Options{
		Binary: binary, DataDir: filepath.Join(dir, "data"), Archive: "file://" + filepath.Join(dir, "archive"),
		Flags: []string{"--wal-interval", "50ms", "--disk-reserve", "1MiB"},
	}
}

// startNode starts the binary and returns where it serves.
func startNode(t *testing.T, o realnode.Options) *realnode.Node {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepMax)
	defer cancel()
	n, err := realnode.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the node said:\n%s", n.Stderr())
		}
		n.Kill()
	})
	return n
}

// The binary does what docs/http-api.md promises, as far as it can be seen from
// outside: every case of the suite on a node in dev mode, or on the node that
// -url names. Its answers are what api/openapi.yaml says, which has no success
// that the suite does not see.
func TestConformance(t *testing.T) {
	t.Parallel() // most of the time somebody waits
	if *targetURL != "" {
		Run(t, Target{URL: *targetURL, User: *targetUser, Password: *targetPassword, Archived: *targetArchive})
		return
	}
	d := load(t)
	Run(t, Target{URL: startNode(t, options(t)).Base, Archived: true, Observe: d.observe})
	d.report(t)
}

// The same with a password: credentials are asked for before anything else, and
// everything else is as without.
func TestConformanceWithCredentials(t *testing.T) {
	t.Parallel()
	if *targetURL != "" {
		return // TestConformance has asked that node
	}
	o := options(t)
	const password = "the password of the test"
	o.Env = []string{"TIDEMARK_ADMIN_PASSWORD=" + password}
	Run(t, Target{URL: startNode(t, o).Base, User: "admin", Password: password, Archived: true})
}

// The bounds that no test can reach with their defaults, and all others at
// another size: the cases follow what is configured.
func TestConformanceWithSmallBounds(t *testing.T) {
	t.Parallel()
	if *targetURL != "" {
		return
	}
	Run(t, Target{URL: inProcess(t, small()), Limits: small()})
}

// inProcess serves a node without an archive and returns its URL.
func inProcess(t *testing.T, l api.Limits) string {
	t.Helper()
	n, err := node.Open(t.Context(), node.Options{Dir: t.TempDir(), NodeID: "node-1", RaftAddr: "127.0.0.1:0", DiskReserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	s, err := api.New(n, api.Options{Limits: l, Registerer: reg, Metrics: promhttp.HandlerFor(reg, promhttp.HandlerOpts{})})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stepMax)
		defer cancel()
		if err := errors.Join(s.Shutdown(ctx), <-served, n.Close()); err != nil {
			t.Error(err)
		}
	})
	return "http://" + ln.Addr().String()
}
