package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"strconv"
	"strings"
)

//go:embed report.html
var page string

var pageTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"figure": Figure, "charts": charts, "letter": runName,
}).Parse(page))

// HTML writes the report as one file that needs nothing else.
func (r *Report) HTML(w io.Writer) error { return pageTemplate.Execute(w, r) }

// Figure writes a number with four digits for people.
func Figure(v float64) string {
	a := math.Abs(v)
	switch {
	case math.IsNaN(v) || a >= 1e18: // of no use to anybody, and beyond what an integer holds
		return strconv.FormatFloat(v, 'g', 4, 64)
	case a >= 1000 || v == math.Trunc(v):
		return thousands(int64(math.Round(v)))
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	default:
		return strconv.FormatFloat(v, 'f', 3, 64)
	}
}

func thousands(n int64) string {
	if n < 0 {
		return "-" + thousands(-n)
	}
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func runName(i int) string { return fmt.Sprintf("run %d", i+1) }

// charts returns the charts of a measure, as far as its runs have any.
func charts(m *Measure) []template.HTML {
	curve := chart{title: "latency by percentile, ms (closed loop: service time)", logY: true, xLabel: percentile}
	rate := chart{title: "records a second, over seconds", fromZero: true}
	tail := chart{title: "99th percentile over seconds, ms", fromZero: true}
	for _, r := range m.Runs {
		var c, v, t []xy
		for _, s := range r.Curve {
			if s.Percentile < 99.9999 {
				c = append(c, xy{-math.Log10(1 - s.Percentile/100), max(s.MS, 0.001)})
			}
		}
		for _, p := range r.Course {
			v = append(v, xy{p.Seconds, p.Records})
			t = append(t, xy{p.Seconds, p.P99})
		}
		curve.lines, rate.lines, tail.lines = append(curve.lines, c), append(rate.lines, v), append(tail.lines, t)
	}
	var out []template.HTML
	for _, c := range []chart{curve, rate, tail} {
		if svg := c.svg(); svg != "" {
			out = append(out, template.HTML(svg)) //nolint:gosec // made of numbers and constants
		}
	}
	return out
}

// percentile labels the axis of -log10(1-p).
func percentile(x float64) string {
	p := 100 * (1 - math.Pow(10, -x))
	return strings.TrimSuffix(strings.TrimRight(strconv.FormatFloat(p, 'f', 3, 64), "0"), ".") + "%"
}
