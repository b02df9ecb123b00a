package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/tidemark-mq/tidemark/bench/child"
	"github.com/tidemark-mq/tidemark/bench/rawhttp"
	"github.com/tidemark-mq/tidemark/bench/scenario"
)

// highest is a figure of a closed loop.
func highest(figure string) string { return "highest rate/" + figure }

// S3: batches of 1,000 records of 1 KiB against appends of 1 MiB.
func s3(ctx context.Context, g *rig) ([]figure, error) {
	c, err := g.broker(ctx, "none")
	if err != nil {
		return nil, err
	}
	out := []figure{
		{what: "batches of frames (text) / append of 1 MiB, record bytes", bound: atLeast(0.45)},
		{what: "batches of frames (noise) / append of 1 MiB, record bytes", bound: atLeast(0.25)},
	}
	for range pick(g, 5, 1) {
		bare, err := g.append(ctx, 1<<20, pick(g, 2, 0.3))
		for i, kind := range []string{"text", "noise"} {
			var m map[string]float64
			if err == nil {
				m, err = g.batches(ctx, c, "--records-of", kind)
			}
			if err != nil {
				return nil, stop(err, c)
			}
			out[i].rounds = append(out[i].rounds, m[highest("bytes")]/bare.MBPerSec)
		}
	}
	return append(out, missing("batches / Redis pipelined", noPeers, atLeast(3))), stop(nil, c)
}

// batches measures the highest rate of batches.
func (g *rig) batches(ctx context.Context, c *child.Child, args ...string) (map[string]float64, error) {
	return g.bench(ctx, c, append([]string{
		"batch", "--connections", "8", "--rate", "max", "--duration", seconds(pick(g, 3, 0.3)), "--warmup", seconds(pick(g, 1, 0.1)),
	}, args...)...)
}

// S4: NDJSON, scaled to a disk that appends 1 GB/s.
func s4(ctx context.Context, g *rig) ([]figure, error) {
	c, err := g.broker(ctx, "none")
	if err != nil {
		return nil, err
	}
	out := figure{what: "NDJSON of 256 B, records/s per GB/s of bare append", bound: atLeast(600_000)}
	for range pick(g, 5, 1) {
		bare, err := g.append(ctx, 1<<20, pick(g, 2, 0.3))
		var m map[string]float64
		if err == nil {
			m, err = g.batches(ctx, c, "--ndjson", "--record-bytes", "256B")
		}
		if err != nil {
			return nil, stop(err, c)
		}
		out.rounds = append(out.rounds, m[highest("records")]/(bare.MBPerSec/1000))
	}
	return []figure{out}, stop(nil, c)
}

// S5: consume and ack, one a request, against half of the bare requests.
func s5(ctx context.Context, g *rig) ([]figure, error) {
	if _, err := exec.LookPath("wrk"); err != nil {
		return nil, cannotError("wrk is not installed (apt-get install wrk)")
	}
	bare, err := child.Start(ctx, nil, filepath.Join(g.tools, "httpref"))
	if err != nil {
		return nil, err
	}
	c, err := g.broker(ctx, "none")
	if err != nil {
		return nil, stop(err, bare)
	}
	out := figure{what: "consume + ack / half of bare HTTP, 64 connections", bound: atLeast(0.60)}
	secs := pick(g, 3, 1)
	for round := range pick(g, 5, 1) {
		topic := "s5-" + strconv.Itoa(round)
		requests, err := g.wrk(ctx, "produce.lua", bare, secs, 1, nil, regexp.MustCompile(`Requests/sec:\s+([\d.]+)`))
		var taken []float64
		if err == nil {
			err = fill(ctx, c, topic, 6, 1024, int64(secs*pick(g, 40_000, 30_000)))
		}
		if err == nil {
			taken, err = g.wrk(ctx, "consume.lua", c, secs, 2, []string{"TOPIC=" + topic}, regexp.MustCompile(`taken (\d+) settled (\d+)`))
		}
		if err == nil && taken[1] > taken[0] {
			err = fmt.Errorf("the topic ran empty: %.0f records were taken, and 204 came %.0f times", taken[0], taken[1])
		}
		if err != nil {
			return nil, stop(err, c, bare)
		}
		out.rounds = append(out.rounds, taken[1]/float64(secs)/(requests[0]/2))
	}
	return []figure{out}, stop(nil, c, bare)
}

// wrk runs a script of bench and returns the numbers that it prints.
func (g *rig) wrk(ctx context.Context, script string, c *child.Child, secs, want int, env []string, find *regexp.Regexp) ([]float64, error) {
	b, err := output(ctx, "", env, "wrk", "-t2", "-c64", "-d"+strconv.Itoa(secs)+"s", "-s", filepath.Join(g.root, "bench", script), "http://"+c.Ready.HTTP)
	if err != nil {
		return nil, err
	}
	if bad := regexp.MustCompile(`(Non-2xx|Socket errors).*`).Find(b); bad != nil {
		return nil, fmt.Errorf("wrk %s: %s", script, bad)
	}
	m := find.FindSubmatch(b)
	if len(m) != want+1 {
		return nil, fmt.Errorf("wrk %s printed %.300q", script, b)
	}
	out := make([]float64, want)
	for i := range out {
		if out[i], err = strconv.ParseFloat(string(m[i+1]), 64); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// fill makes a topic of text.
func fill(ctx context.Context, c *child.Child, topic string, partitions, size int, n int64) error {
	target, err := rawhttp.NewTarget("http://"+c.Ready.HTTP, "", "")
	if err != nil {
		return err
	}
	return scenario.Fill(ctx, target, topic, partitions, size, n)
}

// S6: consume and ack in batches of 100. Its target is a peer's rate.
func s6(ctx context.Context, g *rig) ([]figure, error) {
	c, err := g.broker(ctx, "none")
	if err != nil {
		return nil, err
	}
	out := figure{what: "consume + ack by 100, records/s"}
	for range pick(g, 3, 1) {
		m, err := g.bench(ctx, c, "consume", "--take", "100", "--records", strconv.Itoa(pick(g, 300_000, 20_000)))
		if err != nil {
			return nil, stop(err, c)
		}
		out.rounds = append(out.rounds, m["consume and ack, 100 at a time/records"])
	}
	return []figure{out, missing("consume + ack by 100 / JetStream pull", noPeers, atLeast(1))}, stop(nil, c)
}

// S7: from producer to waiting consumer at 200 a second.
func s7(ctx context.Context, g *rig) ([]figure, error) {
	c, err := g.broker(ctx, "none")
	if err != nil {
		return nil, err
	}
	out := []figure{
		{what: "p99 produce to delivery / (5 x p99 of a bare 4 KiB append + 2 ms)", bound: atMost(1)},
		{what: "p50 produce to delivery, ms"},
	}
	for range pick(g, 5, 1) {
		bare, err := g.append(ctx, 4<<10, pick(g, 3, 0.3))
		var m map[string]float64
		if err == nil {
			m, err = g.bench(ctx, c, "e2e", "--rate", "200", "--duration", seconds(pick(g, 10, 0.5)), "--warmup", seconds(pick(g, 1, 0.1)))
		}
		if err != nil {
			return nil, stop(err, c)
		}
		const got = "produce to delivery, due to received/"
		out[0].rounds = append(out[0].rounds, m[got+"p99"]/(5*bare.P99+2))
		out[1].rounds = append(out[1].rounds, m[got+"p50"])
	}
	return append(out, missing("p50 and p99 / JetStream always", noPeers, atMost(0.8))), stop(nil, c)
}

// s9Fixed is the second half of S9: the tail at a fixed rate.
func s9Fixed(ctx context.Context, g *rig) ([]figure, error) {
	without, err := g.broker(ctx, "none")
	if err != nil {
		return nil, err
	}
	with, err := g.broker(ctx, "file")
	if err != nil {
		return nil, stop(err, without)
	}
	out := []figure{
		{what: "p99 of batches at 100 MB/s, with archive (directory) / without", bound: atMost(1.25)},
		{what: "batches/s of 98 with archive", bound: atLeast(0.98)},
	}
	const rate = 98 // of 1,024,000 bytes: 100 MB/s
	for range pick(g, 3, 1) {
		var p99 [2]float64
		for i, c := range []*child.Child{without, with} {
			m, err := g.bench(ctx, c, "batch", "--connections", "8", "--rate", strconv.Itoa(pick(g, rate, 10)), "--duration", seconds(pick(g, 6, 0.5)), "--warmup", seconds(pick(g, 2, 0.1)))
			if err != nil {
				return nil, stop(err, with, without)
			}
			p99[i] = m["set rate/p99"]
			if i == 1 {
				out[1].rounds = append(out[1].rounds, m["set rate/requests"]/float64(pick(g, rate, 10)))
			}
		}
		out[0].rounds = append(out[0].rounds, p99[1]/p99[0])
	}
	return out, stop(nil, with, without)
}
