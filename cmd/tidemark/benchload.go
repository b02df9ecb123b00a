package main

import (
	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/bench/scenario"
)

func newBenchProduce(p *process, c *connection) *cobra.Command {
	b := &benchmark{p: p, c: c}
	cmd := &cobra.Command{
		Use: "produce", Short: "Measure produce, one record a request",
		Long: `Measure produce with one record a request: first the highest rate (closed loop), then
latencies at half of it (open loop); or one of them, by --rate.`,
		Example: `  tidemark bench produce --self
  tidemark bench produce --server http://broker:7942 --connections 256 --rate 20000`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context(), scenario.Produce) },
	}
	b.flags(cmd)
	b.times(cmd, 64, "requests")
	return cmd
}

func newBenchBatch(p *process, c *connection) *cobra.Command {
	b := &benchmark{p: p, c: c}
	cmd := &cobra.Command{
		Use: "batch", Short: "Measure produce, a batch of records a request",
		Example: `  tidemark bench batch --self
  tidemark bench batch --self --ndjson --record-bytes 256B
  tidemark bench batch --self --records-of noise`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context(), scenario.Batch) },
	}
	b.flags(cmd)
	b.times(cmd, 8, "batches")
	cmd.Flags().IntVar(&b.o.Batch, "batch", 1000, "records of a batch, up to 1000")
	cmd.Flags().BoolVar(&b.o.NDJSON, "ndjson", false, "send NDJSON instead of frames")
	return cmd
}

func newBenchConsume(p *process, c *connection) *cobra.Command {
	b := &benchmark{p: p, c: c}
	cmd := &cobra.Command{
		Use: "consume", Short: "Measure consume and ack",
		Long: `Measure consume and ack: a topic is filled, and emptied again by consumers that ack
what they take, as many records at a time as --take says, one after the other.`,
		Example: `  tidemark bench consume --self
  tidemark bench consume --self --take 100 --records 1000000`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context(), scenario.Consume) },
	}
	b.flags(cmd)
	f := cmd.Flags()
	f.IntVar(&b.o.Connections, "connections", 64, "consumers, each with one request at a time")
	f.IntVar(&b.o.Records, "records", 200_000, "records of each run")
	f.IntSliceVar(&b.o.Take, "take", []int{1, 100}, "records of one consume, up to 100; each is measured")
	return cmd
}

func newBenchE2E(p *process, c *connection) *cobra.Command {
	b := &benchmark{p: p, c: c}
	cmd := &cobra.Command{
		Use: "e2e", Short: "Measure the way from producer to consumer",
		Long: `Measure how long a record takes from the moment at which it was due to be produced to
the moment at which a waiting consumer has it, at a set rate.`,
		Example: `  tidemark bench e2e --self
  tidemark bench e2e --self --rate 5000 --consumers 8`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if b.rate == "max" {
				return usagef("--rate: e2e needs a number; with as many records as there can be, it would measure a queue")
			}
			return b.run(cmd.Context(), scenario.E2E)
		},
	}
	b.flags(cmd)
	b.times(cmd, 16, "records")
	cmd.Flags().Lookup("rate").Usage = "records a second (default 200)"
	cmd.Flags().IntVar(&b.o.Readers, "consumers", 1, "consumers, each waiting for one record")
	return cmd
}
