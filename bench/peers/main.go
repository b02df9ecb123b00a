// Command peers measures other brokers beside Tidemark: the same scenarios, each
// system started by this program for each measurement, in turns, in one run.
//
//	make bench-peers
//	bench/peers/peers -only produce,e2e -rounds 5
//
// It is a module of its own, so that the clients of other brokers are no
// dependencies of Tidemark. A peer that is not installed is left out, with a line that
// says how to install it; nothing is installed. Every peer is configured for durability
// as its own documentation says, and the settings are printed, with what an answer of
// each promises: that differs, and a ratio between two promises says little.
//
// Progress goes to stderr, the table to stdout. Exit codes: 0 measured, 1 something
// failed, 2 wrong usage.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	o := options{connections: connections}
	only := flag.String("only", "", "`rows` to measure: "+strings.Join(rowNames(), ",")+" (default all)")
	asJSON := flag.Bool("json", false, "print JSON")
	flag.StringVar(&o.tidemark, "binary", "bin/tidemark", "the `program` that is Tidemark")
	flag.StringVar(&o.nats, "nats", "nats-server", "the `program` that is the NATS server")
	flag.StringVar(&o.redis, "redis", "redis-server", "the `program` that is the Redis server")
	flag.StringVar(&o.work, "work", os.TempDir(), "`directory` on the disk to measure")
	flag.IntVar(&o.rounds, "rounds", 3, "rounds, each with every system in turn")
	flag.DurationVar(&o.duration, "duration", 3*time.Second, "how long each measurement takes")
	flag.IntVar(&o.records, "records", 50_000, "records that are consumed in a measurement")
	flag.Parse()
	o.rows = strings.FieldsFunc(*only, func(r rune) bool { return r == ',' || r == ' ' })
	if err := o.check(flag.NArg()); err != nil {
		fmt.Fprintf(os.Stderr, "peers: %v\n", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	rep, err := measure(ctx, o, os.Stderr)
	stop()
	if rep != nil {
		if *asJSON {
			enc := json.NewEncoder(os.Stdout)
			enc.SetEscapeHTML(false)
			enc.SetIndent("", "  ")
			err = errors.Join(err, enc.Encode(rep))
		} else {
			err = errors.Join(err, rep.print(os.Stdout))
		}
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "peers: %v\n", err)
		os.Exit(1)
	}
}

// options say what is measured.
type options struct {
	tidemark, nats, redis string
	work                  string
	rows                  []string // empty: all
	rounds                int
	duration              time.Duration
	records               int
	connections           int // of produce and consume
}

func (o *options) check(extra int) error {
	var errs []error
	for _, name := range o.rows {
		if !slices.Contains(rowNames(), name) {
			errs = append(errs, fmt.Errorf("there is no row %q, but %s", name, strings.Join(rowNames(), ", ")))
		}
	}
	if o.rounds < 1 || o.rounds > 100 {
		errs = append(errs, fmt.Errorf("-rounds: %d is not within 1 and 100", o.rounds))
	}
	if o.duration < 100*time.Millisecond || o.duration > time.Hour {
		errs = append(errs, fmt.Errorf("-duration: %v is not within 100ms and 1h", o.duration))
	}
	if o.records < o.leastRecords() || o.records > 10_000_000 {
		errs = append(errs, fmt.Errorf("-records: %d are not within %d and 10000000", o.records, o.leastRecords()))
	}
	if extra > 0 {
		errs = append(errs, errors.New("peers takes flags only"))
	}
	return errors.Join(errs...)
}
