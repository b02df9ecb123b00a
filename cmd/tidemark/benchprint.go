package main

import (
	"fmt"
	"os"

	"github.com/tidemark-mq/tidemark/bench/report"
)

// show prints a report, and writes it as HTML when html is a file.
func (b *benchmark) show(rep *report.Report, html *os.File) error {
	if html != nil {
		if err := rep.HTML(html); err != nil {
			return fmt.Errorf("write %s: %w", html.Name(), err)
		}
	}
	if b.asJSON {
		return b.p.printJSON(benchJSON(rep))
	}
	m := &rep.Machine
	facts := newTable()
	facts.row("server", rep.Server)
	facts.row("program", rep.Program)
	facts.row("machine", fmt.Sprintf("%s, %d cores, %.1f GiB, %s, %s", m.CPU, m.Cores, m.MemoryGiB, m.OS, m.Go))
	if m.FileSystem != "" {
		facts.row("data on", m.FileSystem)
	}
	facts.row("load average", fmt.Sprintf("%s before, %s after", m.LoadBefore, m.LoadAfter))
	for _, s := range rep.Settings {
		facts.row(s.Name, s.Value)
	}
	if err := facts.print(b.p.stdout); err != nil {
		return err
	}
	t := newTable("MEASURED", "FIGURE", "MEDIAN", "LOWEST", "HIGHEST", "UNIT", "RUNS")
	for _, m := range rep.Measures {
		name := m.Name + " (" + m.Loop + ")"
		for _, s := range m.Summaries() {
			t.row(name, s.Name, report.Figure(s.Median), report.Figure(s.Lowest), report.Figure(s.Highest), s.Unit, s.Runs)
			name = ""
		}
	}
	if err := t.print(b.p.stdout); err != nil {
		return err
	}
	for _, n := range rep.Notes {
		fmt.Fprintln(b.p.stdout, n)
	}
	if rep.Check != nil {
		fmt.Fprintln(b.p.stdout, rep.Check)
		for _, problem := range rep.Check.Problems {
			fmt.Fprintln(b.p.stdout, "  "+problem)
		}
	}
	if rep.Failure != "" {
		fmt.Fprintln(b.p.stdout, "FAILED: the figures above count for nothing")
	}
	return nil
}

// benchReport is the JSON form: the report, and its figures over all runs.
type benchReport struct {
	*report.Report
	Summaries map[string][]report.Summary `json:"summaries"` // by measure
}

func benchJSON(rep *report.Report) benchReport {
	out := benchReport{rep, map[string][]report.Summary{}}
	for _, m := range rep.Measures {
		out.Summaries[m.Name] = m.Summaries()
	}
	return out
}
