package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// Proves the way of a deleted topic out of the archive through the command: the
// report names it and its grace, a turn that is asked for holds the grace, and
// at the end the bucket has nothing of it but a tombstone (T16).
func TestArchiveGC(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := devServe(t, dir, "--seal-age", "50ms", "--seal-min-bytes", "1", "--wal-interval", "50ms", "--state-interval", "50ms",
		"--garbage-grace", "300ms", "--garbage-interval", "20ms", "--pitr-window", "50ms")
	c := s.client()
	c.must(t, "topic", "create", "doomed", "--partitions", "1")
	c.stdin = `{"n":1}` + "\n"
	c.must(t, "produce", "doomed", "--ack", "archived")
	c.stdin = ""
	archive := "file://" + dir + "/archive"
	deadline := time.Now().Add(30 * time.Second)
	for { // until its segment is in the archive
		var info broker.TopicInfo
		if err := json.Unmarshal([]byte(c.must(t, "topic", "info", "doomed", "--json")), &info); err != nil {
			t.Fatal(err)
		}
		if info.PartitionStats[0].ArchivedOffset == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("not archived: %+v", info)
		}
	}
	c.must(t, "topic", "rm", "doomed", "--force")
	report := func(args ...string) (r broker.GarbageReport) {
		t.Helper()
		if err := json.Unmarshal([]byte(c.must(t, append([]string{"archive", "gc", "--json"}, args...)...)), &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := report("--run"); len(r.Causes) != 8 || r.GraceMS != 300 || r.LastTurnAt == 0 {
		t.Fatalf("%+v", r)
	}
	for out := ""; ; {
		out = command{}.must(t, "bucket", "ls", archive, "--json")
		if r := report(); r.Causes[1].Deleted > 0 && r.Causes[1].Waiting == 0 && !strings.Contains(out, "doomed") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the topic is still in the bucket:\n%s\n%+v", out, report())
		}
	}
	// What is left is whole to those who look at it from outside.
	command{}.must(t, "bucket", "verify", archive, "--deep")
	out := c.must(t, "archive", "gc")
	for _, says := range []string{"CAUSE", "topic", "everything of deleted topics", "incarnation"} {
		if !strings.Contains(out, says) {
			t.Errorf("the report does not say %q:\n%s", says, out)
		}
	}
	if r := c.run("archive", "gc", "everything"); r.code != exitUsage {
		t.Errorf("exit %d for an argument", r.code)
	}
}
