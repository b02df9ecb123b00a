package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// sizeOfSegments sums the segment files below a directory.
func sizeOfSegments(t *testing.T, dir string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".seg") && !strings.HasSuffix(path, ".log") {
			return nil //nolint:nilerr // a file may go while it is counted
		}
		if info, err := d.Info(); err == nil {
			n += info.Size()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A node with a topic of short retention, through the API and the command line:
// what is over age leaves disk and bucket, the log goes on with its offsets, and
// a trim by hand takes what it is told to and refuses what it is not (B99, B112,
// B117).
func TestRetentionThroughTheAPI(t *testing.T) {
	dir := t.TempDir()
	s := devServe(t, dir, "--retention-interval", "20ms", "--segment-bytes", "64KiB", "--flush-bytes", "8KiB", "--seal-age", "50ms",
		"--seal-min-bytes", "1B", "--garbage-grace", "10ms", "--garbage-interval", "50ms")
	c := s.client()
	c.must(t, "topic", "create", "short", "--partitions", "1", "--retention", "2s", "--compression", "none")
	c.must(t, "topic", "create", "kept", "--partitions", "1", "--retention", "0s", "--compression", "none")
	stats := func(topic string) broker.PartitionStats {
		t.Helper()
		var info broker.TopicInfo
		if err := json.Unmarshal([]byte(c.must(t, "topic", "info", topic, "--json")), &info); err != nil {
			t.Fatal(err)
		}
		return info.PartitionStats[0]
	}
	put := func(topic string, n int) {
		t.Helper()
		c.stdin = strings.Repeat(`{"v":"`+strings.Repeat("x", 1000)+"\"}\n", n)
		c.must(t, "produce", topic, "--ndjson", "--batch", "20") // a batch is in one segment
		c.stdin = ""
	}
	put("short", 300)
	put("kept", 300)
	eventually(t, "all is archived", func() bool { return stats("short").ArchivedOffset == 300 && stats("kept").ArchivedOffset == 300 })
	eventually(t, "what is over age goes", func() bool {
		p := stats("short")
		return p.OldestOffset == 300 && p.SizeBytes == 0 && p.LocalBytes == 0 && p.ArchivedBytes == 0
	})
	id := func(topic string) string {
		t.Helper()
		var info broker.TopicInfo
		if err := json.Unmarshal([]byte(c.must(t, "topic", "info", topic, "--json")), &info); err != nil {
			t.Fatal(err)
		}
		return info.ID.String()
	}
	if n := sizeOfSegments(t, filepath.Join(dir, "data", "topics", id("short"))); n != 0 {
		t.Errorf("%d bytes of segments are on disk", n)
	}
	eventually(t, "its objects go", func() bool {
		c.run("archive", "gc", "--run") // a collector that met a node which was just starting waits else
		return sizeOfSegments(t, filepath.Join(dir, "archive", "t", id("short"))) == 0
	})
	put("short", 1)
	if p := stats("short"); p.NextOffset != 301 {
		t.Errorf("the next record is %d", p.NextOffset)
	}

	if p := stats("kept"); p.OldestOffset != 0 || p.SizeBytes < 300_000 {
		t.Errorf("kept for ever: %+v", p)
	}
	onDisk, inBucket := sizeOfSegments(t, filepath.Join(dir, "data", "topics", id("kept"))), sizeOfSegments(t, filepath.Join(dir, "archive", "t", id("kept")))
	for _, before := range []int{-1, 301} {
		if r := c.run("topic", "trim", "kept", "--partition", "0", "--before", fmt.Sprint(before)); r.code == exitOK || !strings.Contains(r.err, "from 0 to 300") {
			t.Errorf("trim before %d: exit %d, %s", before, r.code, r.err)
		}
	}
	if r := c.run("topic", "trim", "kept", "--partition", "0"); r.code != exitUsage {
		t.Errorf("a trim without its bound: exit %d", r.code)
	}
	if out := c.must(t, "topic", "trim", "kept", "--partition", "0", "--before", "250"); out != "partition 0 of topic kept begins at offset 250\n" {
		t.Errorf("trim: %q", out)
	}
	if got := records(t, c.must(t, "replay", "kept", "--partition", "0")); len(got) != 50 || got[0].Offset != 250 {
		t.Errorf("%d records are left", len(got))
	}
	eventually(t, "disk and bucket shrink", func() bool {
		c.run("archive", "gc", "--run")
		return sizeOfSegments(t, filepath.Join(dir, "data", "topics", id("kept"))) < onDisk/2 &&
			sizeOfSegments(t, filepath.Join(dir, "archive", "t", id("kept"))) < inBucket/2
	})
	if code := s.stop(); code != exitOK {
		t.Fatalf("exit %d: %s", code, s.stderr)
	}
	c.must(t, "bucket", "verify", "file://"+dir+"/archive")
}
