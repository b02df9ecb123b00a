package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tidemark-mq/tidemark/bench/child"
	"github.com/tidemark-mq/tidemark/bench/rawhttp"
	"github.com/tidemark-mq/tidemark/bench/records"
	"github.com/tidemark-mq/tidemark/bench/report"
	"github.com/tidemark-mq/tidemark/bench/scenario"
)

// tidemarkSystem is Tidemark without an archive, as the peers have none.
func tidemarkSystem() system {
	const synced = "on disk, synced"
	return system{
		Name: "Tidemark", Settings: fmt.Sprintf("ack accepted, %d partitions, no archive", partitions),
		Promises: map[string]string{
			rowProduce: synced, rowBatch: synced, rowConsume: "the ack is " + synced, rowConsume100: "the acks are " + synced, rowE2E: synced,
		},
	}
}

// measureTidemark measures one row with the scenarios of tidemark bench, which verify
// every record.
func measureTidemark(ctx context.Context, o *options, name string) (out map[string]float64, err error) {
	dir, err := under(o.work, "tidemark")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	c, err := child.Start(ctx, nil, o.tidemark,
		"serve", "--dev", "--data-dir", filepath.Join(dir, "data"), "--archive", "none", "--http-addr", "127.0.0.1:0",
		"--raft-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0", "--log-level", "warn")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	target, err := rawhttp.NewTarget("http://"+c.Ready.HTTP, "", "")
	if err != nil {
		return nil, err
	}
	s := scenario.Options{
		Target: target, Size: recordBytes, Kind: records.Text, Partitions: partitions, Connections: o.connections, Max: true, Runs: 1, Batch: batchRecords,
		Warmup: o.duration / 3, Duration: o.duration, Records: o.records, Readers: 1,
	}
	var rep *report.Report
	measure := "highest rate"
	switch name {
	case rowProduce:
		rep, err = scenario.Produce(ctx, s)
	case rowBatch:
		s.Connections = batchConns
		rep, err = scenario.Batch(ctx, s)
	case rowConsume, rowConsume100:
		s.Take = []int{1}
		if name == rowConsume100 {
			s.Take[0] = 100
		}
		measure = fmt.Sprintf("consume and ack, %d at a time", s.Take[0])
		rep, err = scenario.Consume(ctx, s)
	default:
		s.Connections, s.Rate, s.Max = e2eConns, e2eRate, false
		measure = "produce to delivery, due to received"
		rep, err = scenario.E2E(ctx, s)
	}
	if err != nil {
		return nil, err
	}
	return figuresOf(rep, measure)
}

// figuresOf reads the figures of a row out of a report.
func figuresOf(rep *report.Report, measure string) (map[string]float64, error) {
	out := map[string]float64{}
	for _, m := range rep.Measures {
		if m.Name != measure {
			continue
		}
		for ours, theirs := range map[string]string{perSecond: "records", p50: "p50", p99: "p99"} {
			if v, ok := m.Value(theirs); ok {
				out[ours] = v
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("the report of %s has no measure %q", rep.Scenario, measure)
	}
	return out, nil
}
