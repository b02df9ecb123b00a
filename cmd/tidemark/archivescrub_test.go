package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// Proves the way of a rotten object back to health through the command: a round that
// is asked for finds it, the file on disk repairs it, the archive verifies again.
// Wrong use is refused, and a topic that is not there is named.
func TestArchiveScrub(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := devServe(t, dir, "--seal-age", "50ms", "--seal-min-bytes", "1", "--wal-interval", "50ms")
	c := s.client()
	c.must(t, "topic", "create", "orders", "--partitions", "1")
	c.stdin = strings.Repeat("x", 5000) + "\n"
	c.must(t, "produce", "orders", "--ack", "archived")
	c.stdin = ""
	report := func(args ...string) (r broker.ScrubReport) {
		t.Helper()
		if err := json.Unmarshal([]byte(c.must(t, append([]string{"archive", "scrub", "--json"}, args...)...)), &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	deadline := time.Now().Add(30 * time.Second)
	for { // until the chain names its segment: what is put is read back before
		var info broker.TopicInfo
		if err := json.Unmarshal([]byte(c.must(t, "topic", "info", "orders", "--json")), &info); err != nil {
			t.Fatal(err)
		}
		if info.PartitionStats[0].ArchivedOffset == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("not archived: %+v", info)
		}
	}
	objects, err := filepath.Glob(filepath.Join(dir, "archive", "t", "*", "*", "s", "*.seg"))
	if err != nil || len(objects) != 1 {
		t.Fatalf("objects %q, %v", objects, err)
	}
	b, err := os.ReadFile(objects[0])
	if err != nil {
		t.Fatal(err)
	}
	b[70] ^= 1
	if err := os.WriteFile(objects[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	r := report("--run", "--topic", "orders")
	for len(r.Asked) > 0 || len(r.Repaired) == 0 {
		if time.Now().After(deadline) {
			t.Fatalf("not repaired: %+v", r)
		}
		r = report()
	}
	if r.IntervalMS != 14*24*3600*1000 {
		t.Errorf("the interval is %d ms", r.IntervalMS)
	}
	out := c.must(t, "archive", "scrub")
	for _, says := range []string{"TIER", "repaired", filepath.Base(objects[0]), "uploaded again from"} {
		if !strings.Contains(out, says) {
			t.Errorf("the report does not say %q:\n%s", says, out)
		}
	}
	command{}.must(t, "bucket", "verify", "file://"+dir+"/archive", "--deep")
	for _, args := range [][]string{{"--topic", "orders"}, {"everything"}} {
		if r := c.run(append([]string{"archive", "scrub"}, args...)...); r.code != exitUsage {
			t.Errorf("exit %d for %q", r.code, args)
		}
	}
	if r := c.run("archive", "scrub", "--run", "--topic", "nothing"); r.code != exitFailed || !strings.Contains(r.err, "nothing") {
		t.Errorf("exit %d: %s", r.code, r.err)
	}
}
