// Command httpref is the HTTP reference: the least that a Go server does for
// a produced record.
//
//	httpref                  read the body, answer 200          (bare HTTP)
//	httpref -wal FILE        the same, durable before the answer (bare HTTP+WAL)
//
// It listens on loopback, prints one JSON line when it is ready
// ({"event":"ready","http":"127.0.0.1:PORT",...}) and one with its counters
// when SIGINT or SIGTERM stops it. Paths, methods and headers are not looked
// at. FILE becomes a ring of -wal-size bytes that later runs use again.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/tidemark-mq/tidemark/bench/ref/internal/reflog"
)

// shutdownGrace bounds how long a stop waits for running requests.
const shutdownGrace = 5 * time.Second

type options struct {
	addr    string
	wal     string
	walSize int64
	maxBody int64
}

func main() {
	var o options
	flag.StringVar(&o.addr, "addr", "127.0.0.1:0", "`address` to listen on; port 0 picks a free one")
	flag.StringVar(&o.wal, "wal", "", "make each body durable in this `file` before the answer")
	flag.Int64Var(&o.walSize, "wal-size", 256<<20, "`bytes` of the ring in the -wal file")
	flag.Int64Var(&o.maxBody, "max-body", 1<<20, "largest body in `bytes`; larger ones get 413")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "httpref takes flags only, not %q; see -help\n", flag.Args())
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, os.Stdout); err != nil {
		slog.Error("httpref stopped", "err", err)
		stop()
		os.Exit(1)
	}
}

// run serves until ctx ends and reports on out.
func run(ctx context.Context, o options, out io.Writer) error {
	if o.maxBody < 0 || o.maxBody > reflog.MaxRecord {
		return fmt.Errorf("-max-body %d: it must be between 0 and %d", o.maxBody, reflog.MaxRecord)
	}
	var appendTo func([]byte) error
	stats := func() reflog.Stats { return reflog.Stats{} }
	if o.wal != "" {
		l, err := reflog.Open(o.wal, o.walSize)
		if err != nil {
			return err
		}
		defer func() { _ = l.Close() }() // every answered record was synced already
		appendTo, stats = l.Append, l.Stats
	}

	h := newHandler(o.maxBody, appendTo)
	ln, err := net.Listen("tcp", o.addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	// No timeouts: each costs work per request, and only loopback is served.
	srv := &http.Server{Handler: h} //nolint:gosec // G112: as said above
	if err := printLine(out, map[string]any{"event": "ready", "http": ln.Addr().String(), "wal": o.wal != ""}); err != nil {
		_ = ln.Close()
		return err
	}

	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	err = srv.Shutdown(grace)
	if serr := <-served; !errors.Is(serr, http.ErrServerClosed) {
		err = errors.Join(err, serr)
	}
	s := stats()
	return errors.Join(err, printLine(out, map[string]any{
		"event": "stopped", "requests": h.served.Load(), "records": s.Records, "groups": s.Groups,
	}))
}

// printLine writes v as one line of JSON.
func printLine(out io.Writer, v any) error {
	if err := json.NewEncoder(out).Encode(v); err != nil {
		return fmt.Errorf("print status line: %w", err)
	}
	return nil
}
