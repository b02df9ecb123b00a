package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// goBench runs a Go benchmark of the repository, or one part of it ("Name/part"), and
// returns its metrics by unit.
func (g *rig) goBench(ctx context.Context, name, pkg string) (map[string]float64, error) {
	args := []string{"test", "-run", "^$", "-bench", "^" + name + "$", "-benchtime", "1x", "-timeout", "20m"}
	if g.smoke {
		args = append(args, "-short")
	}
	b, err := output(ctx, g.root, nil, "go", append(args, pkg)...)
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, "Benchmark") {
			continue
		}
		f := strings.Fields(line)
		for i := 2; i+1 < len(f); i += 2 {
			v, err := strconv.ParseFloat(f[i], 64)
			if err != nil {
				return nil, fmt.Errorf("%s printed %q", name, line)
			}
			out[f[i+1]] = v
		}
	}
	return out, nil
}

// of is a figure that a benchmark has measured over rounds of its own.
func of(m map[string]float64, unit, what string, b *bound) figure {
	v, ok := m[unit]
	if !ok {
		return missing(what, "the benchmark did not print "+unit, b)
	}
	return figure{what: what, bound: b, rounds: []float64{v}, lowest: m[unit+"-min"], highest: m[unit+"-max"]}
}

// T1: a cold sequential reader.
func t1(ctx context.Context, g *rig) ([]figure, error) {
	m, err := g.goBench(ctx, "BenchmarkColdRead", "./bench")
	if err != nil {
		return nil, err
	}
	out := []figure{
		of(m, "cold/get", "in process / parallel plain range GETs", atLeast(0.80)),
		of(m, "second/hot", "second read / local files", atLeast(0.80)),
	}
	if m, err = g.goBench(ctx, "BenchmarkColdHTTP", "./bench"); err != nil {
		return out, err
	}
	return append(out,
		of(m, "raw/proxied", "over HTTP (bare handler) / those GETs proxied", atLeast(0.80)),
		of(m, "ndjson/proxied", "NDJSON, stored bytes / those GETs proxied", nil)), nil
}

// T2: the first byte.
func t2(ctx context.Context, g *rig) ([]figure, error) {
	m, err := g.goBench(ctx, "BenchmarkColdRead", "./bench")
	if err != nil {
		return nil, err
	}
	return []figure{of(m, "first/get", "first batch / one GET of 64 KiB, time", atMost(2.5))}, nil
}

// T3: hot work beside cold readers.
func t3(ctx context.Context, g *rig) ([]figure, error) {
	m, err := g.goBench(ctx, "BenchmarkBesideCold", "./bench")
	if err != nil {
		return nil, err
	}
	return []figure{
		of(m, "produce-p99-x", "produce p99 beside 4 cold readers / alone", atMost(1.2)),
		of(m, "consume-p99-x", "consume p99 beside 4 cold readers / alone", atMost(1.2)),
	}, nil
}

// T4: a restore of metadata alone.
func t4(ctx context.Context, g *rig) ([]figure, error) {
	out := []figure{}
	for _, at := range []struct {
		name, what string
		most       float64
	}{
		{"segments", "10,000 partitions x 10 segments, directory, s", 15},
		{"s3", "the same from an S3 server here, s", 60},
	} {
		m, err := g.goBench(ctx, "BenchmarkManyPartitions/"+at.name, "./node/restore")
		if err != nil {
			return out, err
		}
		out = append(out, of(m, "restore-s", at.what, atMost(at.most)))
	}
	return out, nil
}

// T5 is a test: it counts, and needs no rounds.
func t5(context.Context, *rig) ([]figure, error) {
	return []figure{missing("open and publish on a chain of 1,000,000 segments", "tests hold it: go test -run MillionSegments ./tier/manifest", nil)}, nil
}

// T8: the replay of shipped log.
func t8(ctx context.Context, g *rig) ([]figure, error) {
	m, err := g.goBench(ctx, "BenchmarkRestoreWAL", "./bench")
	if err != nil {
		return nil, err
	}
	return []figure{
		of(m, "restored/fetched", "restored / fetched and decompressed in sequence", atLeast(0.5)),
		of(m, "restored/reused", "restored / the same into memory that is used again", nil),
	}, nil
}

// S11: allocations a record, over the whole process.
func s11(ctx context.Context, g *rig) ([]figure, error) {
	b, err := output(ctx, g.root, nil, "go", "test", "-count=1", "-v", "-run", "^TestAllocations$", "./api")
	if err != nil {
		return nil, err
	}
	m := regexp.MustCompile(`single produce: allocations a request: bare ([\d.]+),`).FindSubmatch(b)
	if m == nil {
		return nil, fmt.Errorf("the test of allocations printed %.300q", b)
	}
	bare, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		return nil, err
	}
	c, err := g.broker(ctx, "none")
	if err != nil {
		return nil, err
	}
	out := []figure{
		{what: "allocations a single record, less those of bare HTTP", bound: atMost(6)},
		{what: "allocations a record of a batch of frames", bound: atMost(0.05)},
	}
	for range pick(g, 3, 1) {
		for i, batch := range []int{1, 1000} {
			n, err := g.allocations(ctx, c, batch)
			if err != nil {
				return nil, stop(err, c)
			}
			if i == 0 {
				n -= bare
			}
			out[i].rounds = append(out[i].rounds, n)
		}
	}
	return out, stop(nil, c)
}
