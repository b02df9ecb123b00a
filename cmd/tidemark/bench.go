package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/bench/rawhttp"
	"github.com/tidemark-mq/tidemark/bench/report"
	"github.com/tidemark-mq/tidemark/bench/scenario"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

func newBench(p *process, c *connection) *cobra.Command {
	cmd := family("bench", "Measure a node: produce, batch, consume, delivery, and its archive",
		"  tidemark bench produce --self\n  tidemark bench e2e --server http://broker:7942 --rate 500 --html e2e.html",
		newBenchProduce(p, c), newBenchBatch(p, c), newBenchConsume(p, c), newBenchE2E(p, c),
		newBenchColdRead(p, c), newBenchArchiveCost(p, c), newBenchRestore(p, c))
	cmd.Long = `Measure a node over HTTP, with records that are verified afterwards.

Each benchmark runs several times, after a warm-up, and shows the median with the
lowest and the highest result. In the open loop requests are due at a set rate and
latency counts from when each was due; the closed loop finds the highest rate. A lost,
duplicate or changed record fails the benchmark (exit code 1). The open loop counts
requests that are refused for now (429, 503) or get no answer in time, and goes on; it
ends when a request is wrong in itself (retry "never") and when nothing is answered for
three times --timeout. The closed loop ends with the first refusal.

It uses topics of its own, named bench-..., and deletes them. With --self it starts a
node by itself, in a temporary directory; node and benchmark then share the machine.`
	return cmd
}

// benchmark is a scenario with what all of them are asked for.
type benchmark struct {
	p      *process
	c      *connection
	o      scenario.Options
	kind   string
	size   string
	rate   string
	self   selfNode
	lab    *benchLab // of a benchmark that starts nodes itself; else nil
	bucket string    // the archive of the node at --server, where it can be read
	asJSON bool
	html   string
	note   []string
}

// flags adds the flags of all scenarios.
func (b *benchmark) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&b.size, "record-bytes", "1KiB", "size of each record, 128B to 16MiB")
	f.StringVar(&b.kind, "records-of", "text", "what records are made of: text, which zstd makes 4 times smaller, or noise")
	f.IntVar(&b.o.Partitions, "partitions", 6, "partitions of the topic")
	f.IntVar(&b.o.Runs, "runs", 3, "runs of each measurement")
	f.StringVar(&b.o.Ack, "ack", "", "ack level: accepted, committed or archived (default the topic's, accepted)")
	f.BoolVar(&b.o.Keep, "keep", false, "leave the topics where they are")
	f.BoolVar(&b.asJSON, "json", false, "print the report as JSON")
	f.StringVar(&b.html, "html", "", "write the report with charts to this file too; it needs no network")
	b.self.flags(f)
	b.c.flags(cmd)
	b.o.Warmup, b.o.Duration, b.o.Connections, b.o.Batch, b.o.Records, b.o.Readers = 0, time.Second, 1, 1, 100, 1
}

// times adds the flags of scenarios that run for a time.
func (b *benchmark) times(cmd *cobra.Command, connections int, unit string) {
	f := cmd.Flags()
	f.IntVar(&b.o.Connections, "connections", connections, "connections, each with one request at a time")
	f.DurationVar(&b.o.Duration, "duration", 10*time.Second, "how long each measurement takes")
	f.DurationVar(&b.o.Warmup, "warmup", 3*time.Second, "how long each runs before it is measured")
	f.DurationVar(&b.o.Timeout, "timeout", 15*time.Second, "how long a produce waits for its answer")
	f.StringVar(&b.rate, "rate", "", unit+" a second (open loop); max: as many as there can be (closed loop) (default max, then half of it)")
}

// parse reads the flags that are text.
func (b *benchmark) parse() error {
	var errs []error
	size, err := parseBytes(b.size)
	if err != nil || size > scenario.MaxRecordBytes {
		errs = append(errs, fmt.Errorf("--record-bytes: %q is no size up to 16MiB", b.size))
	}
	b.o.Size = int(min(size, scenario.MaxRecordBytes+1))
	if b.o.Kind, err = scenario.ParseKind(b.kind); err != nil {
		errs = append(errs, fmt.Errorf("--records-of: %w", err))
	}
	switch b.rate {
	case "":
	case "max":
		b.o.Max = true
	default:
		if b.o.Rate, err = strconv.ParseFloat(b.rate, 64); err != nil || !(b.o.Rate > 0) {
			errs = append(errs, fmt.Errorf("--rate: %q is no number above 0, and not max", b.rate))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return usageError{err}
	}
	if err := b.o.Check(); err != nil {
		return usageError{err}
	}
	return b.self.check(b.c)
}

// run runs a scenario and shows what came of it, also when it failed.
func (b *benchmark) run(ctx context.Context, what func(context.Context, scenario.Options) (*report.Report, error)) error {
	if err := b.parse(); err != nil {
		return err
	}
	html, err := b.openHTML()
	if err != nil {
		return err
	}
	defer html.Close()
	// One processor more than cores: the thread that waits for the next request
	// to be due keeps one.
	addProcessor()
	server, stop, err := b.target(ctx)
	if err != nil {
		return err
	}
	bars := newBars(b.p.stderr)
	b.o.Progress = bars.progress
	rep, err := what(ctx, b.o)
	bars.wait(err == nil)
	err = errors.Join(err, stop())
	if rep == nil {
		return explain(err, b.c.address())
	}
	rep.Program = strings.TrimSpace("tidemark " + version + " " + report.Commit())
	rep.Server = server
	rep.Notes = append(rep.Notes, b.note...)
	rep.Machine.FileSystem = b.self.fileSystem
	rep.Set("GOMAXPROCS of the benchmark", strconv.Itoa(runtime.GOMAXPROCS(0)))
	if rep.Failure == "" && err != nil {
		rep.Failure = err.Error()
	}
	return errors.Join(explain(err, b.c.address()), b.show(rep, html))
}

// target returns where to measure, and what ends it.
func (b *benchmark) target(ctx context.Context) (server string, stop func() error, err error) {
	stop = func() error { return nil }
	address, server := "", ""
	switch {
	case b.lab != nil:
		b.note = append(b.note, "Node and benchmark shared the machine.")
		return "nodes that were started for this", b.self.stop, b.self.prepare()
	case b.self.on:
		child, err := b.self.start(ctx)
		if err != nil {
			return "", nil, err
		}
		stop = b.self.stop
		address = "http://" + child.HTTP
		server = fmt.Sprintf("tidemark %s, started for this: %s", child.Version, strings.Join(b.self.args, " "))
		b.note = append(b.note, "Node and benchmark shared the machine.")
		b.o.Store, b.o.Restart = b.self.archive.open(), b.self.restart
	default:
		if b.bucket != "" {
			store, done, err := openBucket(ctx, b.p, b.bucket, objstore.CauseRead)
			if err != nil {
				return "", nil, err
			}
			b.o.Store = store
			stop = func() error { done(); return nil }
		}
		address = b.c.address()
		server = address
	}
	user, password, err := b.c.credentials()
	if err == nil {
		b.o.Target, err = rawhttp.NewTarget(address, user, password)
	}
	if err != nil {
		_ = stop() // the address is the error
		return "", nil, usagef("--server: %w", err)
	}
	return server, stop, nil
}

// openHTML opens the file before the work: whether it can be written should not
// turn out afterwards. It is nil when none was asked for.
func (b *benchmark) openHTML() (*os.File, error) {
	if b.html == "" {
		return nil, nil //nolint:nilnil // a nil file closes without harm
	}
	f, err := os.Create(b.html)
	if err != nil {
		return nil, usagef("--html: %w", err)
	}
	return f, nil
}
