package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"sort"
	"strconv"
	"strings"
	"text/tabwriter"
)

func mb(n int64) float64 { return float64(n) / 1e6 }

// table is what one journey found out, in its order.
type table []row

type row struct{ name, value string }

func (t *table) add(name, format string, args ...any) {
	*t = append(*t, row{name, fmt.Sprintf(format, args...)})
}

// printTables prints journeys beside each other; they have the same rows.
func printTables(w io.Writer, tables []table) {
	out := tabwriter.NewWriter(w, 0, 4, 3, ' ', 0)
	defer func() { _ = out.Flush() }() // a terminal that is gone is nobody's loss
	for i, r := range tables[0] {
		fmt.Fprint(out, r.name)
		for _, t := range tables {
			fmt.Fprint(out, "\t", t[i].value)
		}
		fmt.Fprintln(out)
	}
}

// requests are those to the object store by operation, as the broker counts
// them.
func (j *journey) requests(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, j.node.Base+"/metrics", nil)
	if err != nil {
		return "", err
	}
	res, err := j.node.HTTP().Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }() // it has been read
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("/metrics answers %s", res.Status)
	}
	counts, err := countRequests(res.Body)
	if err != nil {
		return "", err
	}
	if len(counts) == 0 {
		return "", fmt.Errorf("/metrics has no %s", requestMetric)
	}
	var list []string
	for op, n := range counts {
		list = append(list, fmt.Sprintf("%s %.0f", op, n))
	}
	sort.Strings(list)
	return strings.Join(list, ", "), nil
}

const requestMetric = "tidemark_objstore_requests_total"

func countRequests(r io.Reader) (map[string]float64, error) {
	counts := map[string]float64{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		labels, ok := strings.CutPrefix(lines.Text(), requestMetric+"{")
		if !ok {
			continue
		}
		labels, value, _ := strings.Cut(labels, "} ")
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, fmt.Errorf("metric %s{%s}: %w", requestMetric, labels, err)
		}
		_, op, _ := strings.Cut(labels, `operation="`)
		op, _, _ = strings.Cut(op, `"`)
		counts[op] += n
	}
	return counts, lines.Err()
}
