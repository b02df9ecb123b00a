package doccheck

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const (
	dashboard = "deploy/grafana/tidemark.json"
	alerts    = "deploy/prometheus/alerts.yaml"
)

// query is what a PromQL expression asks for.
type query struct {
	labels   map[string][]string // of each metric, those that are matched
	grouping []string            // labels of by, without, on and ignoring
}

var (
	// lexeme is a string, a range or offset, a name, a number, or one character.
	lexeme    = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|\[[^\]]*\]|\$?[a-zA-Z_:][a-zA-Z0-9_:]*|[0-9.]+(?:e[+-]?[0-9]+|ms|[smhdwy])?|=~|!~|!=|==|>=|<=|\S`)
	labelName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)
)

// words of PromQL that are no metrics; functions are known by their bracket.
var words = []string{"and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring", "group_left", "group_right"}

// parseQuery takes an expression apart. It knows as much of PromQL as the files
// here use, and refuses what does not balance.
func parseQuery(expr string) (query, error) {
	q := query{labels: map[string][]string{}}
	tokens := lexeme.FindAllString(expr, -1)
	at := func(i int) string {
		if i < len(tokens) {
			return tokens[i]
		}
		return ""
	}
	var open []string
	for i := 0; i < len(tokens); i++ {
		t := tokens[i]
		switch {
		case t == "(":
			open = append(open, ")")
		case t == ")":
			if len(open) == 0 {
				return q, fmt.Errorf("%q closes nothing in %s", t, expr)
			}
			open = open[:len(open)-1]
		case slices.Contains(words, t):
			if at(i+1) != "(" {
				continue // and, or, unless
			}
			for i += 2; at(i) != ")"; i++ {
				if i >= len(tokens) {
					return q, fmt.Errorf("a list of labels does not end in %s", expr)
				}
				if labelName.MatchString(tokens[i]) {
					q.grouping = append(q.grouping, tokens[i])
				}
			}
		case labelName.MatchString(t) && (at(i+1) == "(" || slices.Contains([]string{"by", "without"}, at(i+1))): // a function
		case labelName.MatchString(t):
			q.labels[t] = append(q.labels[t], []string{}...)
			if at(i+1) != "{" {
				continue
			}
			for i += 2; at(i) != "}"; i++ {
				if i >= len(tokens) {
					return q, fmt.Errorf("the labels of %s do not end in %s", t, expr)
				}
				if labelName.MatchString(tokens[i]) {
					if op := at(i + 1); op != "=" && op != "!=" && op != "=~" && op != "!~" || !strings.HasPrefix(at(i+2), `"`) {
						return q, fmt.Errorf("the label %s is not matched with a string in %s", tokens[i], expr)
					}
					q.labels[t] = append(q.labels[t], tokens[i])
				}
			}
		}
	}
	if len(open) > 0 {
		return q, fmt.Errorf("something does not end in %s", expr)
	}
	if len(q.labels) == 0 {
		return q, fmt.Errorf("no metric is named in %s", expr)
	}
	return q, nil
}

// The tokenizer finds what is there, and complains about what is broken.
func TestParseQuery(t *testing.T) {
	q, err := parseQuery(`histogram_quantile(0.99, sum by (le, a) (rate(x_bucket{b="c{d}",e=~"$f|g"}[5m]))) / on (h) y > 2e3 and z offset 5m`)
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(q.labels)); !slices.Equal(got, []string{"x_bucket", "y", "z"}) {
		t.Errorf("metrics %q", got)
	}
	if !slices.Equal(q.labels["x_bucket"], []string{"b", "e"}) || !slices.Equal(q.grouping, []string{"le", "a", "h"}) {
		t.Errorf("labels %q %q", q.labels["x_bucket"], q.grouping)
	}
	for _, bad := range []string{"sum(x", "x)", `x{a="b"`, "x{a=b}", "1 + 2", "sum by (a"} {
		if _, err := parseQuery(bad); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}

// fromOutside are metrics of Prometheus itself and of the process, with the
// labels that every scrape adds.
var (
	fromOutside = []string{"up", "process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "go_memstats_heap_inuse_bytes", "go_goroutines"}
	ofTheScrape = []string{"instance", "job"}
)

// checkQuery holds an expression to the metrics of a real node.
func checkQuery(t *testing.T, where, expr string, metrics map[string][]string) {
	t.Helper()
	q, err := parseQuery(strings.NewReplacer("$__rate_interval", "5m").Replace(expr))
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return
	}
	known := slices.Clone(ofTheScrape)
	for m, labels := range q.labels {
		base := m
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if cut, ok := strings.CutSuffix(m, suffix); ok && metrics[m] == nil && metrics[cut] != nil {
				base = cut
			}
		}
		have, ok := metrics[base]
		if !ok && !slices.Contains(fromOutside, m) {
			t.Errorf("%s asks for %s, which no node has", where, m)
			continue
		}
		have = append(slices.Clone(have), ofTheScrape...)
		if base != m {
			have = append(have, "le")
		}
		known = append(known, have...)
		for _, l := range labels {
			if !slices.Contains(have, l) {
				t.Errorf("%s: %s has no label %q, it has %q", where, m, l, have)
			}
		}
	}
	for _, l := range q.grouping {
		if !slices.Contains(known, l) {
			t.Errorf("%s groups by %q, which none of its metrics has", where, l)
		}
	}
}

// Every panel of the dashboard asks for what a node exports.
func TestDashboardAsksForRealMetrics(t *testing.T) {
	metrics := registered(t)
	var d struct {
		Panels []struct {
			Title, Type string
			Targets     []struct{ Expr string }
		}
		Templating struct {
			List []struct {
				Type  string
				Query string
			}
		}
	}
	if err := json.Unmarshal([]byte(read(t, dashboard)), &d); err != nil {
		t.Fatal(err)
	}
	asked := 0
	for _, p := range d.Panels {
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q asks for nothing", p.Title)
		}
		for _, target := range p.Targets {
			asked++
			checkQuery(t, dashboard+", panel "+p.Title, target.Expr, metrics)
		}
	}
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		m, _, _ := strings.Cut(strings.TrimPrefix(v.Query, "label_values("), ",")
		checkQuery(t, dashboard+", variables", m, metrics)
	}
	if asked < 30 {
		t.Errorf("only %d queries were found: the search is broken", asked)
	}
}

// Every alert asks for what a node exports, says how bad it is, and has a line
// that says what to do; every line is about an alert.
func TestAlertsAskForRealMetrics(t *testing.T) {
	metrics := registered(t)
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	dec := yaml.NewDecoder(strings.NewReader(read(t, alerts)))
	dec.KnownFields(true)
	if err := dec.Decode(&file); err != nil {
		t.Fatal(err)
	}
	var explained []string
	for _, cell := range entries(t, read(t, troubleshooting), "Alerts") {
		explained = append(explained, codes(cell)...)
	}
	var all []string
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			all = append(all, r.Alert)
			checkQuery(t, alerts+", "+r.Alert, r.Expr, metrics)
			if r.Labels["severity"] != "critical" && r.Labels["severity"] != "warning" || r.Annotations["summary"] == "" || !strings.HasPrefix(r.Annotations["runbook"], troubleshooting) {
				t.Errorf("%s: severity %q, summary %q, runbook %q", r.Alert, r.Labels["severity"], r.Annotations["summary"], r.Annotations["runbook"])
			}
			if !slices.Contains(explained, r.Alert) {
				t.Errorf("%s does not say what to do about %s", troubleshooting, r.Alert)
			}
		}
	}
	for _, e := range explained {
		if !slices.Contains(all, e) {
			t.Errorf("%s explains %s, which no rule raises", troubleshooting, e)
		}
	}
	if len(all) < 15 {
		t.Errorf("only %d alerts were found", len(all))
	}
}
