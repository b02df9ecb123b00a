package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestMain looks for goroutines that are left.
func TestMain(m *testing.M) {
	// The NATS client ends its timers a moment after it was closed.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/nats-io/nats%2ego.(*asyncCallbacksHandler).asyncCBDispatcher"))
}

// natsProgram is where make nats-server puts the server.
func natsProgram() string {
	if dir := os.Getenv("TIDEMARK_TOOLS"); dir != "" {
		return filepath.Join(dir, "nats-server")
	}
	return "nats-server"
}

// Proves of each peer that is there, in each of its settings, that every row measures
// it with every record accounted for, and that neither process nor data are left. What
// is not there is said in the log, with how to install it.
func TestPeers(t *testing.T) {
	o := options{nats: natsProgram(), redis: "redis-server", work: t.TempDir(), duration: 500 * time.Millisecond, records: 2000, connections: 4, rounds: 1}
	there, missing := peers(t.Context(), &o)
	for program, why := range missing {
		t.Logf("%s %s", program, why)
	}
	for _, s := range there {
		for _, r := range rows() {
			got, err := s.measure(t.Context(), &o, &r)
			if err != nil {
				t.Errorf("%s, %s: %v", s.Name, r.name, err)
				continue
			}
			for _, f := range r.figures {
				if got[f] <= 0 {
					t.Errorf("%s, %s: %s is %v", s.Name, r.name, f, got[f])
				}
			}
			if s.Promises[r.name] == "" {
				t.Errorf("%s, %s: nothing says what an answer promises", s.Name, r.name)
			}
		}
	}
	if left, err := os.ReadDir(o.work); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// Proves that programs that are not there are named with how to install them, that
// nothing is installed, and that without any peer the run fails.
func TestMissing(t *testing.T) {
	o := options{nats: "no-such-nats", redis: "/no/such/redis", work: t.TempDir(), rounds: 1}
	there, missing := peers(t.Context(), &o)
	if len(there) != 0 || !strings.Contains(missing["no-such-nats"], "make nats-server") || !strings.Contains(missing["/no/such/redis"], "apt-get install redis-server") {
		t.Errorf("%v, %v", there, missing)
	}
	var b bytes.Buffer
	rep := &Report{Missing: missing, Systems: []system{tidemarkSystem()}}
	if err := rep.print(&b); err != nil || !strings.Contains(b.String(), "apt-get install redis-server") {
		t.Errorf("%v: %s", err, &b)
	}
	o.tidemark = "/no/such/tidemark"
	if _, err := measure(t.Context(), o, io.Discard); err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("without Tidemark: %v", err)
	}
}

// Proves that a program that is no server, or ends at once, is an error with its last
// words, within its time.
func TestServerThatDoesNotServe(t *testing.T) {
	never := func(context.Context, string) error { return io.ErrNoProgress }
	_, err := startServer(t.Context(), "/bin/sh", func(string) []string { return []string{"-c", "echo last words; exit 3"} }, never)
	if err == nil || !strings.Contains(err.Error(), "last words") {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := startServer(ctx, "/bin/sh", func(string) []string { return []string{"-c", "exec sleep 100"} }, never); err == nil || !strings.Contains(err.Error(), "not ready") {
		t.Error(err)
	}
}

// Proves that the options are checked whole.
func TestOptions(t *testing.T) {
	good := options{rounds: 1, duration: time.Second, records: 25_600, connections: 64}
	if err := good.check(0); err != nil {
		t.Error(err)
	}
	bad := options{rows: []string{"sing"}, rounds: 101, duration: time.Millisecond, records: 25_599, connections: 64}
	err := bad.check(1)
	for _, part := range []string{"sing", "-rounds: 101", "-duration: 1ms", "-records", "flags only"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("no %q in %v", part, err)
		}
	}
}

// Proves the table: medians, the ratio of each round, and what either answer promises.
func TestTable(t *testing.T) {
	us, them := tidemarkSystem(), redisSystem("redis-server", "everysec")
	rep := &Report{Systems: []system{us, them}, Rounds: 3, Lines: []Line{{
		Row: rowProduce, Figure: perSecond, Peer: them.Name, Promise: them.Promises[rowProduce], Ours: us.Promises[rowProduce],
		Theirs: []float64{100, 200, 400}, Tidemark: []float64{300, 200, 200}, Ratios: []float64{3, 1, 0.5},
	}}}
	var b bytes.Buffer
	if err := rep.print(&b); err != nil {
		t.Fatal(err)
	}
	var line string
	for l := range strings.Lines(b.String()) {
		if strings.Contains(l, rowProduce) && strings.Contains(l, perSecond) {
			line = strings.Join(strings.Fields(l), " ")
		}
	}
	if want := "produce records/s Redis, AOF everysec 200 200 1 0.500 3 written to a file; a crash of the machine may lose a second on disk, synced"; line != want {
		t.Errorf("%q, want %q", line, want)
	}
}
