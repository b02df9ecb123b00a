// Command targets measures what one node is held to, and says of each target
// whether it is met.
//
//	make targets
//	make targets ONLY=S1,T2
//	go run ./bench/targets -json > targets.json
//
// Every figure is a ratio between two things that were measured in turns in this
// run, or an amount that a count and not a clock gives; the verdict goes by the
// median over the rounds, and lowest and highest stand beside it. A target that
// cannot be measured here says why. The reference programs are those of bench/ref;
// wrk sends where a Go client would be what is measured (bench/s1.sh), and Go
// benchmarks measure what happens inside a process.
//
// Progress goes to stderr, the table to stdout. Exit codes: 0 measured, whatever the
// verdicts; 1 something failed; 2 wrong usage.
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
	only := flag.String("only", "", "`ids` to measure, for example S1,T2 (default all)")
	asJSON := flag.Bool("json", false, "print JSON")
	smoke := flag.Bool("smoke", false, "one short round of each: to see that it works, not to measure")
	binary := flag.String("binary", "bin/tidemark", "the `program` to measure")
	work := flag.String("work", os.TempDir(), "`directory` on the disk to measure")
	limit := flag.Duration("limit", 40*time.Minute, "after this `long` what is left is not measured")
	flag.Parse()
	ids := strings.FieldsFunc(*only, func(r rune) bool { return r == ',' || r == ' ' })
	for _, id := range ids {
		if !slices.ContainsFunc(all, func(r row) bool { return r.id == id }) {
			fmt.Fprintf(os.Stderr, "targets: there is no target %q\n", id)
			os.Exit(2)
		}
	}
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "targets takes flags only, not %q\n", flag.Args())
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, ids, *asJSON, *smoke, *binary, *work, *limit)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, ids []string, asJSON, smoke bool, binary, work string, limit time.Duration) int {
	g, err := newRig(ctx, binary, work, smoke)
	if err != nil {
		fmt.Fprintf(os.Stderr, "targets: %v\n", err)
		return 1
	}
	defer g.close()
	rep := g.measure(ctx, ids, limit)
	if asJSON {
		enc := json.NewEncoder(os.Stdout)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		err = enc.Encode(rep)
	} else {
		err = rep.print(os.Stdout)
	}
	if err = errors.Join(err, ctx.Err()); err != nil {
		fmt.Fprintf(os.Stderr, "targets: %v\n", err)
		return 1
	}
	if rep.Failed > 0 {
		return 1
	}
	return 0
}
