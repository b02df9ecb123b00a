package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// sample is one measurement by bench/s1.sh.
type sample struct{ rps, p50, p99 float64 }

// s1sh runs bench/s1.sh and returns its samples by connections and target, round
// by round. They are paired: round i of one target stands beside round i of another.
func (g *rig) s1sh(ctx context.Context, targets, conns string, env ...string) (map[string][]sample, error) {
	if _, err := exec.LookPath("wrk"); err != nil {
		return nil, cannotError("wrk is not installed (apt-get install wrk)")
	}
	out := filepath.Join(g.work, "s1.tsv")
	env = append([]string{
		"TARGETS=" + targets, "CONNS=" + conns, "OUT=" + out, "WORK=" + g.work, "TIDEMARK=" + g.binary,
		"ROUNDS=" + pick(g, "5", "1"), "SECONDS_EACH=" + pick(g, "3", "1"), "WARM=" + pick(g, "4", "1"),
	}, env...)
	if _, err := output(ctx, g.root, env, filepath.Join(g.root, "bench", "s1.sh")); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(out)
	if err != nil {
		return nil, err
	}
	samples := map[string][]sample{}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) != 6 {
			return nil, fmt.Errorf("bench/s1.sh wrote %q", line)
		}
		var v [3]float64
		for i := range v {
			if v[i], err = strconv.ParseFloat(f[3+i], 64); err != nil {
				return nil, fmt.Errorf("bench/s1.sh wrote %q", line)
			}
		}
		key := f[0] + " " + f[2]
		samples[key] = append(samples[key], sample{v[0], v[1], v[2]})
	}
	return samples, nil
}

// ratios divides round by round.
func ratios(of, by []sample, value func(sample) float64) (out []float64) {
	for i, s := range by[:min(len(of), len(by))] {
		if d := value(s); d > 0 {
			out = append(out, value(of[i])/d)
		}
	}
	return out
}

func rps(s sample) float64 { return s.rps }
func p50(s sample) float64 { return s.p50 }

const noPeers = "no other broker runs here: make bench-peers"

// S1: produce, one record a request.
func s1(ctx context.Context, g *rig) ([]figure, error) {
	m, err := g.s1sh(ctx, "http wal tidemark", "64 256")
	if err != nil {
		return nil, err
	}
	var out []figure
	for _, c := range []string{"64", "256"} {
		out = append(out,
			figure{what: "produce / bare HTTP+WAL, " + c + " connections", bound: atLeast(0.80), rounds: ratios(m[c+" tidemark"], m[c+" wal"], rps)},
			figure{what: "produce / bare HTTP, " + c + " connections", bound: atLeast(0.45), rounds: ratios(m[c+" tidemark"], m[c+" http"], rps)})
	}
	return append(out, missing("produce / JetStream always", noPeers, atLeast(6))), nil
}

// S2: the same from one connection, by the median latency.
func s2(ctx context.Context, g *rig) ([]figure, error) {
	m, err := g.s1sh(ctx, "wal tidemark", "1")
	if err != nil {
		return nil, err
	}
	return []figure{{what: "p50 / bare HTTP+WAL, 1 connection", bound: atMost(1), rounds: ratios(m["1 tidemark"], m["1 wal"], p50)}}, nil
}

// S9: what archiving and shipping cost: the rate, and the tail at a fixed rate.
func s9(ctx context.Context, g *rig) ([]figure, error) {
	// The two differ by less than rounds of three seconds do among themselves.
	long := []string{"ROUNDS=" + pick(g, "7", "1"), "SECONDS_EACH=" + pick(g, "5", "1")}
	m, err := g.s1sh(ctx, "tidemark archived", "64", long...)
	if err != nil {
		return nil, err
	}
	out := []figure{{what: "produce with archive (directory) / without", bound: atLeast(0.90), rounds: ratios(m["64 archived"], m["64 tidemark"], rps)}}
	s3, err := g.startS3(ctx)
	if err != nil {
		return out, err
	}
	m, err = g.s1sh(ctx, "tidemark archived", "64", slices.Concat(long, s3.env(), []string{"ARCHIVE=" + s3.url("s1")})...)
	if err = s3.stop(err); err != nil {
		return out, err
	}
	out = append(out, figure{what: "produce with archive (S3) / without", bound: atLeast(0.90), rounds: ratios(m["64 archived"], m["64 tidemark"], rps)})
	more, err := s9Fixed(ctx, g)
	return append(out, more...), err
}

// S10: as S1 with 3,000 partitions instead of 6.
func s10(ctx context.Context, g *rig) ([]figure, error) {
	m, err := g.s1sh(ctx, "tidemark many", "64 256")
	if err != nil {
		return nil, err
	}
	var out []figure
	for _, c := range []string{"64", "256"} {
		out = append(out, figure{what: "3,000 partitions / 6, " + c + " connections", bound: atLeast(0.60), rounds: ratios(m[c+" many"], m[c+" tidemark"], rps)})
	}
	return out, nil
}
