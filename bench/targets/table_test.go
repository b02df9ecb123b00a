package main

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// Proves the verdicts: by the median, at its bound too, in both directions, with the
// spread of the rounds or of a benchmark that made its own.
func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		f                       figure
		median, lowest, highest float64
		verdict, target         string
	}{
		{figure{bound: atLeast(0.8), rounds: []float64{0.7, 0.81, 0.9}}, 0.81, 0.7, 0.9, "met", ">= 0.800"},
		{figure{bound: atLeast(0.8), rounds: []float64{0.8}}, 0.8, 0.8, 0.8, "met", ">= 0.800"},
		{figure{bound: atLeast(0.8), rounds: []float64{0.79, 0.78}}, 0.785, 0.78, 0.79, "not met", ">= 0.800"},
		{figure{bound: atMost(2), rounds: []float64{2}}, 2, 2, 2, "met", "<= 2"},
		{figure{bound: atMost(2), rounds: []float64{2.1}}, 2.1, 2.1, 2.1, "not met", "<= 2"},
		{figure{bound: atMost(2), rounds: []float64{1}, lowest: 0.5, highest: 4}, 1, 0.5, 4, "met", "<= 2"},
		{figure{rounds: []float64{5}}, 5, 5, 5, "", ""},
		{missing("x", "no peer", atLeast(6)), 0, 0, 0, "not measured: no peer", ">= 6"},
	} {
		l := c.f.line("S1")
		if l.Verdict != c.verdict || l.Target != c.target || l.Median != c.median || l.Lowest != c.lowest || l.Highest != c.highest {
			t.Errorf("%+v: %+v", c.f, l)
		}
	}
}

// Proves that every target has one row, that rows are picked by their ids, that one
// that cannot be measured is no failure and one that breaks is, and that what is
// left when the time is over says so.
func TestMeasure(t *testing.T) {
	saved := all
	defer func() { all = saved }()
	var ids []string
	for _, r := range all {
		ids = append(ids, r.id)
	}
	if want := strings.Fields("S1 S2 S3 S4 S5 S6 S7 S8 S9 S10 S11 T1 T2 T3 T4 T5 T6 T7 T8"); !slices.Equal(ids, want) {
		t.Errorf("rows %q", ids)
	}
	all = []row{
		{"A", func(context.Context, *rig) ([]figure, error) {
			return []figure{{what: "fine", bound: atLeast(1), rounds: []float64{2}}}, nil
		}},
		{"B", func(context.Context, *rig) ([]figure, error) { return nil, cannotError("no wrk") }},
		{"C", func(context.Context, *rig) ([]figure, error) { return nil, errors.New("broke") }},
	}
	g := &rig{commit: "abc", work: t.TempDir()}
	rep := g.measure(t.Context(), nil, time.Minute)
	if len(rep.Lines) != 3 || rep.Failed != 1 || rep.Lines[1].Verdict != "not measured: no wrk" || !strings.Contains(rep.Lines[2].Verdict, "FAILED: broke") {
		t.Errorf("%+v", rep)
	}
	var b bytes.Buffer
	if err := rep.print(&b); err != nil || !strings.Contains(b.String(), "fine") || !strings.Contains(b.String(), "abc") {
		t.Errorf("%v %s", err, &b)
	}
	if rep = g.measure(t.Context(), []string{"A"}, time.Minute); len(rep.Lines) != 1 || rep.Failed != 0 {
		t.Errorf("one row: %+v", rep)
	}
	if rep = g.measure(t.Context(), nil, -time.Second); len(rep.Lines) != 3 || rep.Failed != 0 || !strings.Contains(rep.Lines[0].Verdict, "time was over") {
		t.Errorf("without time: %+v", rep)
	}
}

// Proves that ratios are of the same rounds, and that series of metrics are added
// by name and labels.
func TestRatiosAndSums(t *testing.T) {
	got := ratios([]sample{{rps: 4}, {rps: 9}, {rps: 1}}, []sample{{rps: 2}, {rps: 3}}, rps)
	if !slices.Equal(got, []float64{2, 3}) {
		t.Error(got)
	}
	m := map[string]float64{`x_total{a="1",b="2"}`: 1, `x_total{a="1",b="3"}`: 2, `x_total{a="2"}`: 4, "x_total_more": 8, "x": 16}
	for want, parts := range map[float64][]string{7: nil, 3: {`a="1"`}, 2: {`a="1"`, `b="3"`}, 0: {`a="9"`}} {
		if got := sum(m, "x_total", parts...); got != want {
			t.Errorf("%v: %v, want %v", parts, got, want)
		}
	}
	if got := sum(m, "x"); got != 16 {
		t.Error(got)
	}
}

// Proves that bare loopback is measured.
func TestLoopback(t *testing.T) {
	if rate, err := loopback(8 << 20); err != nil || rate <= 0 {
		t.Errorf("%v MB/s, %v", rate, err)
	}
}
