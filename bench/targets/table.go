package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/tidemark-mq/tidemark/bench/report"
)

// row is one target, or several that are measured together.
type row struct {
	id      string
	measure func(ctx context.Context, g *rig) ([]figure, error)
}

// all is every target of one node, in the order of the table.
var all = []row{
	{"S1", s1}, {"S2", s2}, {"S3", s3}, {"S4", s4}, {"S5", s5}, {"S6", s6}, {"S7", s7}, {"S8", s8}, {"S9", s9}, {"S10", s10}, {"S11", s11},
	{"T1", t1}, {"T2", t2}, {"T3", t3}, {"T4", t4}, {"T5", t5}, {"T6", t6}, {"T7", t7}, {"T8", t8},
}

// bound is what a figure is held to.
type bound struct {
	value  float64
	atMost bool
}

func atLeast(v float64) *bound { return &bound{v, false} }
func atMost(v float64) *bound  { return &bound{v, true} }

// figure is one line of the table.
type figure struct {
	what            string
	bound           *bound    // nil: for orientation
	rounds          []float64 // empty: not measured
	lowest, highest float64   // of rounds that something else made: where rounds has only their median
	why             string    // it was not measured
}

// missing is a figure that was not measured.
func missing(what, why string, b *bound) figure { return figure{what: what, bound: b, why: why} }

// Line is a figure with its verdict.
type Line struct {
	ID      string  `json:"id"`
	What    string  `json:"what"`
	Target  string  `json:"target"`
	Median  float64 `json:"median"`
	Lowest  float64 `json:"lowest"`
	Highest float64 `json:"highest"`
	Rounds  int     `json:"rounds"`
	Verdict string  `json:"verdict"` // met, not met, not measured: why, or "" without a target
}

// Report is everything that was measured.
type Report struct {
	Started time.Time      `json:"started"`
	Seconds float64        `json:"seconds"`
	Commit  string         `json:"commit"`
	Machine report.Machine `json:"machine"`
	Smoke   bool           `json:"smoke"`
	Failed  int            `json:"failed"` // rows whose measurement broke
	Lines   []Line         `json:"lines"`
}

func (f *figure) line(id string) Line {
	l := Line{ID: id, What: f.what, Rounds: len(f.rounds)}
	if f.bound != nil {
		l.Target = map[bool]string{true: "<= ", false: ">= "}[f.bound.atMost] + report.Figure(f.bound.value)
	}
	if len(f.rounds) == 0 {
		l.Verdict = "not measured: " + f.why
		return l
	}
	l.Median, l.Lowest, l.Highest = report.Median(f.rounds), slices.Min(f.rounds), slices.Max(f.rounds)
	if f.highest != 0 {
		l.Lowest, l.Highest = f.lowest, f.highest
	}
	switch {
	case f.bound == nil:
	case f.bound.atMost == (l.Median <= f.bound.value), l.Median == f.bound.value:
		l.Verdict = "met"
	default:
		l.Verdict = "not met"
	}
	return l
}

// measure measures the rows, or all of them, until the limit is over.
func (g *rig) measure(ctx context.Context, ids []string, limit time.Duration) *Report {
	rep := &Report{Started: time.Now().UTC(), Commit: g.commit, Machine: report.ThisMachine(), Smoke: g.smoke}
	rep.Machine.FileSystem = report.FileSystem(g.work)
	end := rep.Started.Add(limit)
	for _, r := range all {
		if len(ids) > 0 && !slices.Contains(ids, r.id) {
			continue
		}
		if time.Now().After(end) || ctx.Err() != nil {
			rep.Lines = append(rep.Lines, Line{ID: r.id, Verdict: "not measured: the time was over"})
			continue
		}
		begun := time.Now()
		fmt.Fprintf(os.Stderr, "%-4s ", r.id)
		figures, err := r.measure(ctx, g)
		for i := range figures {
			rep.Lines = append(rep.Lines, figures[i].line(r.id))
		}
		var cannot cannotError
		switch {
		case errors.As(err, &cannot):
			rep.Lines = append(rep.Lines, Line{ID: r.id, Verdict: "not measured: " + err.Error()})
		case err != nil:
			rep.Failed++
			rep.Lines = append(rep.Lines, Line{ID: r.id, Verdict: "not measured: FAILED: " + err.Error()})
		}
		fmt.Fprintf(os.Stderr, "%.0f s\n", time.Since(begun).Seconds())
	}
	rep.Machine.LoadAfter, rep.Seconds = report.LoadAverage(), time.Since(rep.Started).Seconds()
	return rep
}

// cannotError is why something cannot be measured here, which is no failure.
type cannotError string

func (e cannotError) Error() string { return string(e) }

func (r *Report) print(w io.Writer) error {
	m := &r.Machine
	fmt.Fprintf(w, "%s, %s, %d cores, %.1f GiB, %s, %s, data on %s; load average %s before, %s after; %.0f s\n",
		r.Commit, m.CPU, m.Cores, m.MemoryGiB, m.OS, m.Go, m.FileSystem, m.LoadBefore, m.LoadAfter, r.Seconds)
	if r.Smoke {
		fmt.Fprintln(w, "One short round of each: this shows that it works, and measures nothing.")
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tWHAT\tTARGET\tMEDIAN\tLOWEST\tHIGHEST\tROUNDS\tVERDICT")
	for _, l := range r.Lines {
		if l.Rounds == 0 {
			fmt.Fprintf(t, "%s\t%s\t%s\t\t\t\t\t%s\n", l.ID, l.What, l.Target, l.Verdict)
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", l.ID, l.What, l.Target, report.Figure(l.Median), report.Figure(l.Lowest), report.Figure(l.Highest), l.Rounds, l.Verdict)
	}
	return t.Flush()
}
