package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-mq/tidemark/bench/report"
	"github.com/tidemark-mq/tidemark/internal/testkit/s3server"
)

// sealSoon has a node seal what it has at once.
var sealSoon = []string{"--serve=--seal-age=1s", "--serve=--seal-min-bytes=1B", "--serve=--retention-interval=1s"}

// figures are the medians of a measure.
func figures(rep benchReport, measure string) map[string]float64 {
	out := map[string]float64{}
	for _, s := range rep.Summaries[measure] {
		out[s.Name] = s.Median
	}
	return out
}

// objectsIn counts the files below a directory.
func objectsIn(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			n++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Proves that a cold read is one: all of it is downloaded, which the second read does
// not, both verify what they read, in either form, and plain requests for as many
// bytes stand beside them; that the node of the benchmark has its archive in a real S3
// server when that is asked for, and that nothing is left there or on disk; and that
// archiving is priced and a lost node restored with the same archive.
func TestBenchArchive(t *testing.T) {
	s3 := s3server.Start(t)
	for _, kv := range s3.Env() {
		name, value, _ := strings.Cut(kv, "=")
		t.Setenv(name, value)
	}
	for _, c := range []struct{ name, archive, form string }{{"S3", s3.URL("cold"), "--ndjson"}} {
		work := t.TempDir()
		args := append([]string{"cold-read", "--self", "--work", work, "--records", "4000", "--runs", "1", "--partitions", "3", "--readers", "2", "--archive", c.archive}, sealSoon...)
		if c.form != "" {
			args = append(args, c.form)
		}
		rep, r := runBench(t, command{}, args...)
		if r.code != exitOK || rep.Check == nil || !rep.Check.OK() || rep.Check.Accepted != 4000 {
			t.Fatalf("%s: exit %d, %+v: %s", c.name, r.code, rep.Report, r.err)
		}
		cold, second, plain := figures(rep, "cold read"), figures(rep, "second read, out of the cache"), figures(rep, "plain range requests for the same objects")
		if cold["downloaded"] <= 0 || second["downloaded"] > 0 || second["out of the cache"] != 100 || cold["records"] <= 0 || cold["first byte, max"] < cold["first byte, p50"] || plain["stored"] <= 0 || plain["objects"] < 3 {
			t.Errorf("%s: cold %v, second %v, plain %v", c.name, cold, second, plain)
		}
		if got := figures(rep, "compared, in each run"); len(got) != 3 {
			t.Errorf("%s: compared %v", c.name, got)
		}
		if n := objectsIn(t, work); n > 0 {
			t.Errorf("%s: %d files are left", c.name, n)
		}
	}
	work := t.TempDir()
	rep, r := runBench(t, command{}, "restore", "--work", work, "--records", "3000", "--runs", "1", "--archive", s3.URL("restore"))
	if r.code != exitOK || !rep.Check.OK() || rep.Check.Accepted != 3000 {
		t.Fatalf("exit %d: %s: %+v", r.code, r.err, rep.Report)
	}
	whole, plain := figures(rep, "whole node"), figures(rep, "plain range requests for the same objects")
	if whole["restore, all of it"] <= 3 || whole["records out of the log, all"] != 3000 || whole["lost disk to first record"] <= whole["restore, all of it"] || plain["bytes"] <= 0 {
		t.Errorf("whole %v, plain %v", whole, plain)
	}
	if n := objectsIn(t, filepath.Join(s3.Dir, s3.Bucket)); n > 0 {
		t.Errorf("%d objects are left in the bucket", n)
	}
	if n := objectsIn(t, work); n > 0 {
		t.Errorf("%d files are left", n)
	}
}

// Proves the bill: requests of shipping go with time and those of segments with bytes,
// both scale to the month that the rate says, storage follows the retention, and each
// price is the one that was given.
func TestBenchArchiveCost(t *testing.T) {
	t.Parallel()
	args := append([]string{"archive-cost", "--self", "--mb", "1", "--duration", "2s", "--batch", "20", "--partitions", "2", "--price-get", "0", "--price-list", "0", "--price-put", "1", "--price-storage", "2", "--retention", "1460h", "--price-source", "a test"}, sealSoon...)
	rep, r := runBench(t, command{}, args...)
	if r.code != exitOK || !rep.Check.OK() {
		t.Fatalf("exit %d: %s: %+v", r.code, r.err, rep.Report)
	}
	made, asks, costs := figures(rep, "produced and archived"), figures(rep, "requests, counted by the node"), figures(rep, "a month at this rate")
	if asks["PUT a month"] <= 0 || asks["PUT of shipping and states"] <= 0 {
		t.Fatalf("%v", asks)
	}
	// A dollar for 1,000 puts, and nothing else costs.
	if near := costs["requests by time"] + costs["requests by bytes"] - asks["PUT a month"]/1000; near > 0.01 || near < -0.01 {
		t.Errorf("%v for %v", costs, asks)
	}
	// Two months of what is stored of each GB, at two dollars.
	month := made["produced"] * 730 * 3600 / 1e3 // GB
	if want := 4 * month * made["stored of a GB produced"]; costs["storage of records"] < 0.99*want || costs["storage of records"] > 1.01*want {
		t.Errorf("storage is %v, want %v: %v", costs["storage of records"], want, made)
	}
	if !slices.ContainsFunc(rep.Settings, func(s report.Setting) bool { return s.Name == "prices" && s.Value == "a test" }) {
		t.Errorf("%v", rep.Settings)
	}
}

// Proves that a node which runs is measured too, cold without a restart, with the
// archive that is only read.
func TestBenchColdReadOfANode(t *testing.T) {
	t.Parallel()
	archive := "file://" + filepath.Join(t.TempDir(), "archive")
	s := devServe(t, t.TempDir(), "--archive", archive, "--seal-age", "1s", "--seal-min-bytes", "1B", "--retention-interval", "1s", "--memory-budget", "8MiB")
	rep, r := runBench(t, s.client(), "cold-read", "--records", "2000", "--runs", "1", "--partitions", "2", "--archive", archive, "--displace", "32MiB")
	if r.code != exitOK || !rep.Check.OK() {
		t.Fatalf("exit %d: %s: %+v", r.code, r.err, rep.Report)
	}
	if cold := figures(rep, "cold read"); cold["downloaded"] <= 0 {
		t.Errorf("%v", cold)
	}
	if out := s.client().must(t, "topic", "ls"); strings.Contains(out, "bench-") {
		t.Errorf("topics are left: %s", out)
	}
}

// Proves that what cannot be measured is refused before anything is done: an archive
// that is in use is never restored, a node without archive has no cold records.
func TestBenchArchiveRefused(t *testing.T) {
	t.Parallel()
	s := devServe(t, t.TempDir(), "--archive", "none")
	for args, says := range map[string]string{
		"restore --server http://127.0.0.1:1":   "takes over no archive",
		"cold-read --archive file:///no/such/x": "no such file",
		"cold-read --records 99":                "records: 99",
		"cold-read --wait 25h":                  "wait: 25h",
		"cold-read --readers 0":                 "consumers: 0",
		"cold-read --displace much":             "--displace",
		"cold-read --displace 2TiB":             "displace: 2199023255552",
		"archive-cost --archive file:///x":      "--archive is for --self",
		"archive-cost --self --mb 0":            "--mb: 0",
		"archive-cost --self --mb 10001":        "10001",
		"archive-cost --self --price-put -1":    "price of put",
		"archive-cost --self --price-get NaN":   "price of get",
		"archive-cost --retention -1h":          "retention",
		"archive-cost --self --batch 1001":      "batch: 1001",
		"cold-read":                             "needs a node with an archive",
		"archive-cost --duration 10ms":          "needs a node with an archive",
	} {
		r := s.client().run(append([]string{"bench"}, strings.Fields(args)...)...)
		if r.code == exitOK || !strings.Contains(r.err, says) {
			t.Errorf("%s: exit %d: %s", args, r.code, r.err)
		}
	}
	if out := s.client().must(t, "topic", "ls"); strings.Contains(out, "bench-") {
		t.Errorf("topics are left: %s", out)
	}
}
