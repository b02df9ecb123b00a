package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidemark-mq/tidemark/bench/child"
	"github.com/tidemark-mq/tidemark/bench/load"
	"github.com/tidemark-mq/tidemark/bench/rawhttp"
)

// metrics asks a node for its metrics.
func metrics(ctx context.Context, c *child.Child) (map[string]float64, error) {
	target, err := rawhttp.NewTarget("http://"+c.Ready.Metrics, "", "")
	if err != nil {
		return nil, err
	}
	conn, err := target.Dial(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	r := rawhttp.Request{Method: http.MethodGet, Path: "/metrics"}
	a, err := conn.Do(r)
	if err == nil {
		err = a.Refused(r, http.StatusOK)
	}
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	lines := bufio.NewScanner(strings.NewReader(string(a.Body)))
	for lines.Scan() {
		at := strings.LastIndexByte(lines.Text(), ' ')
		if strings.HasPrefix(lines.Text(), "#") || at < 0 {
			continue
		}
		if v, err := strconv.ParseFloat(lines.Text()[at+1:], 64); err == nil {
			out[lines.Text()[:at]] = v
		}
	}
	return out, lines.Err()
}

// sum adds all series of a metric whose labels hold the parts.
func sum(m map[string]float64, name string, parts ...string) (total float64) {
	for series, v := range m {
		labels, ok := strings.CutPrefix(series, name)
		if ok && (labels == "" || labels[0] == '{') && !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(labels, p) }) {
			total += v
		}
	}
	return total
}

// allocations returns how often a node allocates for each record that it takes.
func (g *rig) allocations(ctx context.Context, c *child.Child, batch int) (float64, error) {
	conns := 64
	if batch > 1 {
		conns = 8
	}
	target, err := rawhttp.NewTarget("http://"+c.Ready.HTTP, "", "")
	if err != nil {
		return 0, err
	}
	const mallocs = "go_memstats_mallocs_total"
	var at [4]float64 // one more than is used: the first look allocates what later ones reuse
	n := int64(0)
	for i := range at {
		if i == len(at)-1 {
			if n, err = produceOnly(ctx, target, conns, batch, pick(g, 3*time.Second, 300*time.Millisecond)); err != nil {
				return 0, err
			}
		}
		m, err := metrics(ctx, c)
		if err != nil {
			return 0, err
		}
		at[i] = m[mallocs]
	}
	look := at[2] - at[1] // which allocates as well, some thousands
	return (at[3] - at[2] - look) / float64(n), nil
}

// T6: what archiving costs in requests.
func t6(ctx context.Context, g *rig) ([]figure, error) {
	// Sealed soon after the load, so that everything is archived and paid for.
	c, err := g.broker(ctx, "file", "--seal-age", "10s", "--seal-min-bytes", "1B")
	if err != nil {
		return nil, err
	}
	bytes := pick(g, int64(1<<30), 16<<20)
	before, err := metrics(ctx, c)
	begun := time.Now()
	if err == nil {
		err = fill(ctx, c, "paid", 6, 1024, bytes/1024)
	}
	if err == nil {
		err = archived(ctx, c, "paid")
	}
	var after map[string]float64
	if err == nil {
		after, err = metrics(ctx, c)
	}
	if err != nil {
		return nil, stop(err, c)
	}
	const dollars, requests = "tidemark_objstore_request_dollars_total", "tidemark_objstore_requests_total"
	shipped := sum(after, requests, `operation="put"`, `cause="wal"`) - sum(before, requests, `operation="put"`, `cause="wal"`)
	return []figure{
		{what: "requests of archiving 1 GiB (of values, text), $", bound: atMost(0.001), rounds: []float64{(sum(after, dollars) - sum(before, dollars)) * (1 << 30) / float64(bytes)}},
		{what: "PUTs of shipping, a day", bound: atMost(90_000), rounds: []float64{shipped / time.Since(begun).Hours() * 24}},
	}, stop(nil, c)
}

// archived waits until the archive has every record of a topic in a segment.
func archived(ctx context.Context, c *child.Child, topic string) error {
	target, err := rawhttp.NewTarget("http://"+c.Ready.HTTP, "", "")
	if err != nil {
		return err
	}
	conn, err := target.Dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(2 * time.Minute); ; {
		r := rawhttp.Request{Method: http.MethodGet, Path: "/v1/topics/" + topic}
		a, err := conn.Do(r)
		if err == nil {
			err = a.Refused(r, http.StatusOK)
		}
		var said struct {
			Stats []struct {
				Next     int64 `json:"next_offset"`
				Archived int64 `json:"archived_offset"`
			} `json:"partition_stats"`
		}
		if err == nil {
			err = json.Unmarshal(a.Body, &said)
		}
		if err != nil {
			return err
		}
		left := int64(0)
		for _, s := range said.Stats {
			left += s.Next - s.Archived
		}
		if left == 0 {
			return nil
		}
		select {
		case now := <-tick.C:
			if now.After(end) {
				return fmt.Errorf("%d records of %s are in no segment of the archive after two minutes", left, topic)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// T7: how far the bucket is behind under load.
func t7(ctx context.Context, g *rig) ([]figure, error) {
	c, err := g.broker(ctx, "file", "--wal-interval", "1s")
	if err != nil {
		return nil, err
	}
	target, err := rawhttp.NewTarget("http://"+c.Ready.HTTP, "", "")
	if err != nil {
		return nil, stop(err, c)
	}
	loaded := make(chan error, 1)
	go func() {
		_, err := produceOnly(ctx, target, 16, 100, pick(g, 30*time.Second, 3*time.Second))
		loaded <- err
	}()
	rec := load.NewRecorder()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-loaded:
			p99 := float64(rec.Histogram().ValueAtQuantile(99)) / 1e6
			return []figure{{what: "RPO under load, wal_interval 1 s, p99 in s", bound: atMost(2), rounds: []float64{p99}}}, stop(err, c)
		case <-tick.C:
			m, err := metrics(ctx, c)
			if err != nil {
				return nil, stop(errors.Join(err, <-loaded), c)
			}
			rec.Latency(0, time.Duration(m["tidemark_ship_rpo_seconds"]*float64(time.Second)))
		}
	}
}
