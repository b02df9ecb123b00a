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

// Proves what an operator sees of the archive: what waits for it, what it was asked
// why and at what price, and that it fails, with an exit code, since when and why;
// one topic with its partitions.
func TestArchiveStatus(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := devServe(t, dir, "--wal-interval", "50ms")
	c := s.client()
	c.must(t, "topic", "create", "orders", "--partitions", "2")
	c.must(t, "topic", "create", "other", "--partitions", "1")
	c.stdin = strings.Repeat("x", 5000) + "\n"
	c.must(t, "produce", "orders", "--ack", "archived")
	c.stdin = ""
	status := func(args ...string) (st broker.ArchiveStatus) {
		t.Helper()
		if err := json.Unmarshal([]byte(c.must(t, append([]string{"archive", "status", "--json"}, args...)...)), &st); err != nil {
			t.Fatal(err)
		}
		return st
	}
	// It is in the shipped log, and in no archived segment.
	st := status()
	if st.Lag.Records != 1 || st.Lag.Bytes == 0 || st.Lag.Seconds <= 0 || st.Outage != nil || st.AnsweredAt == 0 || len(st.Topics) != 2 || st.Topics[0].Lag.Records != 1 || st.Topics[1].Lag.Records != 0 {
		t.Fatalf("%+v", st)
	}
	puts := map[string]int64{}
	for _, cause := range st.Cost.Causes {
		puts[cause.Cause] = cause.Requests["put"]
	}
	if puts["wal"] == 0 || puts["segment"] != 0 || st.Cost.Dollars <= 0 || st.Cost.SentBytes == 0 || st.Cost.UptimeSeconds <= 0 || st.Cache.MaxBytes == 0 {
		t.Errorf("cost %+v, cache %+v", st.Cost, st.Cache)
	}
	if st := status("--topic", "orders"); len(st.Topics) != 1 || len(st.Topics[0].Partitions) != 2 || st.Topics[0].Partitions[0].Lag.Records+st.Topics[0].Partitions[1].Lag.Records != 1 {
		t.Errorf("one topic: %+v", st.Topics)
	}
	out := c.must(t, "archive", "status", "--topic", "orders")
	for _, says := range []string{"lag     1 records", "outage  none", "CAUSE", "wal", "TOPIC", "orders  all"} {
		if !strings.Contains(out, says) {
			t.Errorf("%q is not in\n%s", says, out)
		}
	}
	if r := c.run("archive", "status", "--topic", "none"); r.code != 1 || !strings.Contains(r.err, "none") {
		t.Errorf("no such topic: exit code %d: %s", r.code, r.err)
	}
	// The archive's directory becomes a file: nothing can be put.
	archive := filepath.Join(dir, "archive")
	if err := os.Rename(archive, archive+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(archive, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.stdin = "y\n"
	c.must(t, "produce", "orders")
	c.stdin = ""
	deadline := time.Now().Add(30 * time.Second)
	for {
		r := c.run("archive", "status")
		if r.code == 1 && strings.Contains(r.out, "outage  since 2") && strings.Contains(r.err, "the archive fails: ") && !strings.Contains(r.out, "rpo     -") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no outage: exit code %d\n%s%s", r.code, r.out, r.err)
		}
	}
	if err := os.Remove(archive); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(archive+".away", archive); err != nil {
		t.Fatal(err)
	}
	for {
		if r := c.run("archive", "status"); r.code == 0 && strings.Contains(r.out, "outage  none") {
			break
		}
		if time.Now().After(deadline.Add(30 * time.Second)) {
			t.Fatal("the outage does not end")
		}
	}
}
