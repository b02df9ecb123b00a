package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// Proves that settings are changed by the command line as by the API: what is given
// and nothing else, what the node refuses is said by field, and a restart keeps it.
func TestTopicSet(t *testing.T) {
	dir := t.TempDir()
	s := devServe(t, dir)
	c := s.client()
	c.must(t, "topic", "create", "orders", "--retention", "24h", "--max-in-flight", "5")
	if out := c.must(t, "topic", "set", "orders", "--retention", "0s", "--visibility-timeout", "90s", "--max-record-bytes", "2MiB",
		"--default-ack", "committed", "--compression", "none", "--failover", "automatic", "--local-retention", "1h", "--retention-bytes", "1GiB", "--local-retention-bytes", "1MiB"); out != "changed topic orders\n" {
		t.Errorf("%q", out)
	}
	check := func(text string) {
		t.Helper()
		var i broker.TopicInfo
		if err := json.Unmarshal([]byte(text), &i); err != nil {
			t.Fatal(err)
		}
		if i.RetentionMS != 0 || i.VisibilityTimeoutMS != 90_000 || i.MaxRecordBytes != 2<<20 || i.DefaultAck != "committed" || i.Compression != "none" ||
			i.Failover != "automatic" || i.LocalRetentionMS != 3_600_000 || i.RetentionBytes != 1<<30 || i.LocalRetentionBytes != 1<<20 || i.MaxInFlightPerPartition != 5 {
			t.Errorf("%+v", i)
		}
	}
	check(c.must(t, "topic", "set", "orders", "--max-in-flight", "5", "--json"))
	wrong{args: "topic set orders --visibility-timeout 10ms --compression lz4", code: exitFailed, says: []string{"visibility_timeout_ms", "compression", "lz4"}}.check(t, c)
	wrong{args: "topic set nope --retention 1h", code: exitFailed, says: []string{`"nope"`}}.check(t, c)
	if code := s.stop(); code != exitOK {
		t.Fatalf("exit %d: %s", code, s.stderr)
	}
	s = devServe(t, dir)
	c = s.client()
	check(c.must(t, "topic", "info", "orders", "--json"))
	if out := c.must(t, "topic", "info", "orders"); !strings.Contains(out, "1m30s") || !strings.Contains(out, "at most 5 a partition") || !strings.Contains(out, "automatic") || !strings.Contains(out, "partitions") {
		t.Error(out)
	}
}
