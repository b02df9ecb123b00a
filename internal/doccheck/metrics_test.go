package doccheck

import (
	"context"
	"crypto/tls"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/tidemark-mq/tidemark/api"
	"github.com/tidemark-mq/tidemark/internal/certs"
	"github.com/tidemark-mq/tidemark/internal/reload"
	"github.com/tidemark-mq/tidemark/internal/testkit/authority"
	"github.com/tidemark-mq/tidemark/node"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

const troubleshooting = "docs/troubleshooting.md"

// recorder is a registry that remembers the descriptions of what it is given:
// a vector without samples is not in what a registry gathers.
type recorder struct {
	*prometheus.Registry
	labels map[string][]string // metric -> its variable labels
}

// description takes apart what a Desc shows; it has no accessors.
var description = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", .*variableLabels: \{([^}]*)\}\}$`)

func (r *recorder) note(c prometheus.Collector) {
	ch := make(chan *prometheus.Desc)
	go func() { defer close(ch); c.Describe(ch) }()
	for d := range ch {
		m := description.FindStringSubmatch(d.String())
		if m == nil {
			panic("a description that cannot be read: " + d.String())
		}
		r.labels[m[1]] = strings.FieldsFunc(m[2], func(c rune) bool { return c == ',' || c == ' ' })
	}
}

// Register implements prometheus.Registerer.
func (r *recorder) Register(c prometheus.Collector) error {
	r.note(c)
	return r.Registry.Register(c)
}

// MustRegister implements prometheus.Registerer.
func (r *recorder) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		r.note(c)
	}
	r.Registry.MustRegister(cs...)
}

// registered returns the metrics, with their labels, of a node with an archive
// behind the HTTP plane, put together as `tidemark serve` does it.
func registered(t *testing.T) map[string][]string {
	t.Helper()
	reg := &recorder{Registry: prometheus.NewRegistry(), labels: map[string][]string{}}
	counted, err := objstore.NewMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	n, err := node.Open(context.Background(), node.Options{
		Dir: t.TempDir(), NodeID: "node-1", RaftAddr: "127.0.0.1:0", DiskReserve: 1, Registerer: reg,
		Archive: objstore.Stack(mem.New("doccheck", nil), objstore.StackOptions{Metrics: counted}),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}()
	handler := promhttp.HandlerFor(reg, promhttp.HandlerOpts{Registry: reg})
	if _, err := reload.New(nil, slog.New(slog.DiscardHandler), reg); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	authority.New(t).Issue(t, "doccheck", dir+"/cert", dir+"/key", time.Now().Add(time.Hour))
	pair, err := certs.Load(dir+"/cert", dir+"/key", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := certs.NewServer(pair, tls.VersionTLS12, reg); err != nil {
		t.Fatal(err)
	}
	if _, err := api.New(n, api.Options{Registerer: reg, Metrics: handler}); err != nil {
		t.Fatal(err)
	}
	// Whatever has samples was described: nothing came past the recorder.
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if _, ok := reg.labels[f.GetName()]; !ok {
			t.Errorf("metric %s was gathered and never described", f.GetName())
		}
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if !strings.HasPrefix(p.Metric, "go_") { // the library's own
			t.Errorf("metric %s: %s", p.Metric, p.Text)
		}
	}
	if len(reg.labels) < 40 {
		t.Fatalf("only %d metrics were found", len(reg.labels))
	}
	return reg.labels
}

// trouble matches names of metrics that count what goes wrong.
var trouble = regexp.MustCompile(`error|fail|refus|corrupt|retr(y|ies)|drop|reject|throttl|panic|stall|broken|gone|skip|clamp|unkept|unstaged|expir|abort|lost|damage|poison|timeout|redeliver|release|nack|evict|fenc|rpo|lag`)

// countsTrouble says whether a metric counts refusals, failures, retries or
// damage: by its name, or by a label that tells success from failure.
func countsTrouble(name string, labels []string) bool {
	if trouble.MatchString(name) {
		return true
	}
	for _, l := range labels {
		if strings.HasSuffix(name, "_total") && (l == "code" || l == "result" || l == "status") {
			return true
		}
	}
	return false
}

// metricName matches metrics in documents.
var metricName = regexp.MustCompile(`\b(tidemark|promhttp)_[a-z][a-z_]*[a-z]\b`)

// Every metric that counts something bad has a line that says what it means
// and what to do, and the page names no metric that a node does not have.
func TestEveryFailureMetricIsExplained(t *testing.T) {
	metrics := registered(t)
	page := read(t, troubleshooting)
	explained := map[string]bool{}
	for _, cell := range entries(t, page, "Metrics") {
		for _, c := range codes(cell) {
			name, _, _ := strings.Cut(c, "{")
			explained[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(metrics)) {
		if countsTrouble(name, metrics[name]) && !explained[name] {
			t.Errorf("%s has no line in the metrics of %s: say what it means, what to look at and what to do", name, troubleshooting)
		}
	}
	for name := range explained {
		if _, ok := metrics[name]; !ok {
			t.Errorf("%s explains %s, which no node has", troubleshooting, name)
		}
	}
}

// labelled matches a metric with its labels in documents.
var labelled = regexp.MustCompile(`\b(tidemark_[a-z_]+)\{([^}]*)\}`)

// Metrics and labels that any document names exist.
func TestDocumentsNameRealMetrics(t *testing.T) {
	metrics := registered(t)
	for _, page := range filesOf(t, ".md") {
		text := read(t, page)
		for _, name := range metricName.FindAllString(text, -1) {
			if !isMetric(metrics, name) {
				t.Errorf("%s names the metric %s, which no node has", page, name)
			}
		}
		for _, m := range labelled.FindAllStringSubmatch(text, -1) {
			for _, pair := range strings.Split(m[2], ",") {
				label := strings.TrimSpace(pair[:strings.IndexFunc(pair+"=", func(r rune) bool { return r == '=' || r == '!' })])
				if !slices.Contains(metrics[m[1]], label) {
					t.Errorf("%s: %s has no label %q, it has %q", page, m[1], label, metrics[m[1]])
				}
			}
		}
	}
}

// isMetric knows the series of histograms too, and names that stand for all
// that begin with them (tidemark_wal_*).
func isMetric(metrics map[string][]string, name string) bool {
	for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(name, suffix); ok {
			if _, ok := metrics[base]; ok {
				return true
			}
		}
	}
	for m := range metrics {
		if strings.HasPrefix(m, name+"_") {
			return true
		}
	}
	return false
}
