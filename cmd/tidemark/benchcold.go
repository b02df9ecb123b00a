package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/bench/report"
	"github.com/tidemark-mq/tidemark/bench/scenario"
)

// archived adds the flags of scenarios that need an archive.
func (b *benchmark) archived(cmd *cobra.Command, usage string) {
	f := cmd.Flags()
	b.self.archive = &selfArchive{log: slog.New(slog.NewTextHandler(b.p.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	f.StringVar(&b.self.archive.base, "archive", "", usage)
}

// settles adds the flag of scenarios that wait for the archive.
func (b *benchmark) settles(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&b.o.Settle, "wait", 15*time.Minute, "how long records may take until they are in the archive")
}

func newBenchColdRead(p *process, c *connection) *cobra.Command {
	b := &benchmark{p: p, c: c}
	var displace string
	cmd := &cobra.Command{
		Use: "cold-read", Short: "Measure readers of records that stand in the archive alone",
		Long: `Measure sequential readers of records that stand in the archive alone: a topic is filled,
archived and taken off the node's disk; then it is read, read again out of the node's
cache, and, where the archive can be reached, the same objects are read by plain range
requests. At last every record is verified.

A node of --server seals a segment by size or age (seal_age, 10 minutes), so the wait for
the archive can be long: give more --records than segment_bytes times --partitions, or
--self, whose node seals soon. What a node has in memory is no cold read either: that of
--self is started again, any other one gets --displace of newer records. With --self the archive is made below --archive, in a
directory of the benchmark's without it, and removed afterwards.`,
		Example: `  tidemark bench cold-read --self
  tidemark bench cold-read --self --archive 's3://bench/x?region=eu-west-1' --readers 4
  tidemark bench cold-read --server http://broker:7942 --archive 's3://bucket/prod?region=eu-west-1' --records 2000000`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !b.self.on {
				b.bucket = b.self.archive.base
			}
			var err error
			if b.o.Displace, err = parseBytes(displace); err != nil {
				return usagef("--displace: %w", err)
			}
			b.self.archive.keep = b.o.Keep
			// Sealed soon, swept soon, and not merged while it is read.
			b.self.settings = []string{"--seal-age=3s", "--seal-min-bytes=1B", "--retention-interval=1s", "--merge-interval=0s"}
			return b.run(cmd.Context(), scenario.ColdRead)
		},
	}
	b.flags(cmd)
	b.archived(cmd, "object store: with --self where the node's archive is made; else the archive of the node, which is only read, to compare with plain requests")
	b.settles(cmd)
	f := cmd.Flags()
	f.IntVar(&b.o.Records, "records", 400_000, "records of each run")
	f.StringVar(&displace, "displace", "512MiB", "without --self: newer records that take the node's memory before the read; twice its memory_budget are enough")
	f.IntVar(&b.o.Readers, "readers", 1, "readers at once, each with partitions of its own")
	f.BoolVar(&b.o.NDJSON, "ndjson", false, "read records as NDJSON instead of batches as they are stored")
	return cmd
}

func newBenchArchiveCost(p *process, c *connection) *cobra.Command {
	b := &benchmark{p: p, c: c}
	b.o.Prices = scenario.DefaultPrices()
	var retention time.Duration
	cmd := &cobra.Command{
		Use: "archive-cost", Short: "Measure what archiving asks of the store, and what a month costs",
		Long: `Measure what a constant stream of records asks of the object store: records are produced
at a set rate, the node's own counts of requests are read before, behind it, and when all
of it is archived, and a month of that is priced. Prices are those of Amazon S3 Standard
in its first region unless flags say others.

Nobody else should use the node meanwhile: its counts do not tell who made it work. A run
that is short against seal_age (10 minutes) makes small segments, and costs more a GB than a
month would; --duration 30m says more than 1m.`,
		Example: `  tidemark bench archive-cost --self --mb 20 --duration 15m
  tidemark bench archive-cost --server http://broker:7942 --mb 5 --retention 720h --price-put 0.0054`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !b.self.on && b.self.archive.base != "" {
				return usagef("--archive is for --self: a node that runs has its archive")
			}
			if !(b.o.Load > 0) {
				return usagef("--mb: %g is no number above 0", b.o.Load)
			}
			b.self.archive.keep = b.o.Keep
			b.o.Prices.Retention = retention
			return b.run(cmd.Context(), scenario.ArchiveCost)
		},
	}
	b.flags(cmd)
	b.archived(cmd, "with --self: object store where the node's archive is made (default a directory)")
	b.settles(cmd)
	f := cmd.Flags()
	f.IntVar(&b.o.Connections, "connections", 8, "connections, each with one request at a time")
	f.DurationVar(&b.o.Duration, "duration", time.Minute, "how long records are produced")
	f.DurationVar(&b.o.Timeout, "timeout", 15*time.Second, "how long a produce waits for its answer")
	f.IntVar(&b.o.Batch, "batch", 100, "records of a batch, up to 1000")
	f.Float64Var(&b.o.Load, "mb", 10, "MB (10^6 bytes) of records a second")
	f.DurationVar(&retention, "retention", b.o.Prices.Retention, "how long records stay in the archive, for the price of storage")
	f.Float64Var(&b.o.Prices.Put, "price-put", b.o.Prices.Put, "dollars for 1,000 requests that put")
	f.Float64Var(&b.o.Prices.List, "price-list", b.o.Prices.List, "dollars for 1,000 requests that list")
	f.Float64Var(&b.o.Prices.Get, "price-get", b.o.Prices.Get, "dollars for 1,000 requests that read")
	f.Float64Var(&b.o.Prices.Storage, "price-storage", b.o.Prices.Storage, "dollars for a GB (10^9 bytes) stored for a month")
	f.Float64Var(&b.o.Prices.Transfer, "price-transfer", b.o.Prices.Transfer, "dollars for a GB read out of the store")
	f.StringVar(&b.o.Prices.Source, "price-source", b.o.Prices.Source, "where the prices come from; stands in the report")
	f.Lookup("runs").DefValue = "1"
	b.o.Runs = 1
	return cmd
}

func newBenchRestore(p *process, c *connection) *cobra.Command {
	b := &benchmark{p: p, c: c}
	b.lab = &benchLab{self: &b.self}
	cmd := &cobra.Command{
		Use: "restore", Short: "Measure the restore of a node that lost its disk",
		Long: `Measure how long a node takes that lost its disk until it serves again. A node is started
on an empty archive and filled; it ends, its disk is removed, and it is restored out of the
archive, started, and read until its first record; then every record is verified. Plain
range requests for the objects that a restore reads are the measure beside it.

All records are in the shipped log, which is the most work; with --serve flags such as
--serve=--seal-age=3s --serve=--seal-min-bytes=1B most of them are in segments, which a restore leaves where they are.
No archive that is in use is touched: each run has one of its own, below --archive, in a
directory of the benchmark's without it, and it is removed afterwards.`,
		Example: `  tidemark bench restore
  tidemark bench restore --archive 's3://bench/x?region=eu-west-1' --records 5000000`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if b.c.server != "" {
				return usagef("--server: restore starts nodes of its own, and takes over no archive that is in use")
			}
			b.self.on, b.self.archive.keep = true, b.o.Keep
			b.self.settings = []string{"--seal-age=12h", "--segment-bytes=1GiB", "--state-interval=12h"}
			return b.run(cmd.Context(), func(ctx context.Context, o scenario.Options) (*report.Report, error) {
				return scenario.Restore(ctx, o, b.lab)
			})
		},
	}
	b.flags(cmd)
	b.archived(cmd, "object store where archives of the benchmark are made (default a directory)")
	f := cmd.Flags()
	f.IntVar(&b.o.Records, "records", 500_000, "records of each run")
	_ = f.MarkHidden("self") // always
	return cmd
}
