package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/bench/load"
	"github.com/tidemark-mq/tidemark/bench/records"
)

// sample is a report of two runs.
func sample() *Report {
	r := &Report{Scenario: "produce", Started: time.Unix(0, 0).UTC(), Server: "http://<b>&", Machine: ThisMachine(), Notes: []string{"a note"}}
	r.Set("connections", "64")
	for run := range 2 {
		rec := load.NewRecorder()
		for i := range 1000 {
			rec.Latency(i, time.Duration(i*(run+1))*time.Millisecond)
			rec.Done(i, load.Done{Records: 10, Bytes: 100})
			rec.Note(time.Duration(i) * 100 * time.Millisecond)
		}
		res := &load.Result{Rate: 100, Elapsed: 10 * time.Second, Ops: 1000, Records: 10_000, Bytes: 1e9, Latency: rec.Histogram(), Course: rec.Course()}
		m := r.Measure("set rate", Loop(res))
		m.Runs = append(m.Runs, Of(res))
	}
	r.Checked(records.Verdict{Accepted: 5, Seen: 5})
	r.Checked(records.Verdict{Accepted: 5, Seen: 4, Lost: 1, Problems: []string{"stream 3"}})
	return r
}

// Proves median and spread over runs, of odd and even numbers of them.
func TestSummaries(t *testing.T) {
	for _, c := range []struct {
		values               []float64
		median, lowest, most float64
	}{{[]float64{5}, 5, 5, 5}, {[]float64{9, 1, 4}, 4, 1, 9}, {[]float64{4, 1, 2, 9}, 3, 1, 9}} {
		m := &Measure{}
		for _, v := range c.values {
			m.Runs = append(m.Runs, Run{Values: []Value{{"x", "u", v}}})
		}
		s := m.Summaries()
		if len(s) != 1 || s[0] != (Summary{"x", "u", c.median, c.lowest, c.most, len(c.values)}) {
			t.Errorf("%v: %+v", c.values, s)
		}
	}
	m := sample().Measures[0]
	for name, want := range map[string]float64{"records": 1000, "requests": 100, "bytes": 100, "unsent": 0} {
		if got, ok := m.Value(name); !ok || got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	// 500 and 1000 ms: three digits of each, and the mean of the two.
	if got, _ := m.Value("p50"); got < 748 || got > 752 {
		t.Errorf("p50 is %v", got)
	}
	if _, ok := m.Value("none"); ok || Median(nil) != 0 {
		t.Error("a figure out of nothing")
	}
}

// Proves that the HTML report needs nothing from anywhere, shows charts that are
// well formed, says what failed, and takes no text for markup.
func TestHTML(t *testing.T) {
	r := sample()
	r.Failure = "lost <records>"
	var b bytes.Buffer
	if err := r.HTML(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, part := range []string{"lost &lt;records&gt;", "count for nothing", "http://&lt;b&gt;&amp;", "1 lost", "stream 3", "connections", "a note", "set rate", "open loop, 100/s"} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q", part)
		}
	}
	if ref := regexp.MustCompile(`(?i)(src|href)\s*=|url\(|<script|@import`).FindString(text); ref != "" {
		t.Errorf("it refers to something: %s", ref)
	}
	svgs := regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(text, -1)
	if len(svgs) != 3 {
		t.Fatalf("%d charts", len(svgs))
	}
	for _, svg := range svgs {
		d := xml.NewDecoder(strings.NewReader(svg))
		lines := 0
		for {
			tok, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%v in %.300s", err, svg)
			}
			if e, ok := tok.(xml.StartElement); ok && e.Name.Local == "polyline" {
				lines++
			}
		}
		if lines != 2 || strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
			t.Errorf("%d lines in %.400s", lines, svg)
		}
	}
	// A report without anything is a page too.
	if err := (&Report{}).HTML(io.Discard); err != nil {
		t.Error(err)
	}
}

// Proves that a report survives its JSON form.
func TestJSON(t *testing.T) {
	r := sample()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(&back)
	if err != nil || !bytes.Equal(b, again) || back.Check.OK() || len(back.Measures[0].Runs[0].Curve) == 0 {
		t.Errorf("%v: %s", err, again)
	}
	if m := back.Machine; m.Cores < 1 || m.CPU == "" || m.MemoryGiB <= 0 || m.OS == "" || m.LoadBefore == "" || FileSystem(t.TempDir()) == "" {
		t.Errorf("the machine is %+v", m)
	}
}

// Proves how figures are written for people, those too that are no number or too
// large for an integer.
func TestFigure(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 3: "3", 0.1234: "0.123", 1.5: "1.50", 123.44: "123.4", 1234.5: "1,235", 1234567: "1,234,567", -1234.6: "-1,235", math.Inf(1): "+Inf", math.Inf(-1): "-Inf", 1e18: "1e+18", -9.3e18: "-9.3e+18"} {
		if got := Figure(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
	if got := Figure(math.NaN()); got != "NaN" {
		t.Errorf("no number is %s", got)
	}
}
