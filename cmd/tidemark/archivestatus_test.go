package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// Proves what an operator sees of the archive: what waits for it, what it was asked
// why and at what price; one topic with its partitions.
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
}

// Proves what an operator sees of an outage: since when and why, with an exit code,
// and the pages of a node with many topics joined.
func TestArchiveStatusOfAnOutage(t *testing.T) {
	t.Parallel()
	asked := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		st := broker.ArchiveStatus{
			RPOSeconds: 65, Outage: &broker.ArchiveOutage{Since: time.Now().Add(-70 * time.Second).UnixMilli(), LastError: "put: connection refused"},
			Cache: broker.ArchiveCache{Bytes: 1 << 20, MaxBytes: 1 << 30, Hits: 3, Misses: 1, HitRatio: 0.75},
			Cost:  broker.ArchiveCost{Dollars: 0.0123, Causes: []broker.ArchiveDemand{{Cause: "wal", Requests: map[string]int64{"put": 7, "get": 2}}}},
		}
		asked++
		st.Topics = []broker.ArchiveTopic{{Topic: "first"}}
		if st.NextPageToken = "more"; r.URL.Query().Get("page_token") == "more" {
			st.Topics[0].Topic, st.NextPageToken = "second", ""
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(st); err != nil {
			t.Error(err)
		}
	}))
	defer srv.Close()
	r := command{}.run("archive", "status", "--server", srv.URL)
	for _, says := range []string{"rpo     1m5s", "outage  since 2", "(1m10s)", "connection refused", "3 hits, 1 misses (75 % hits)", "0.0123 $", "2 get, 7 put", "first", "second"} {
		if !strings.Contains(r.out, says) {
			t.Errorf("%q is not in\n%s", says, r.out)
		}
	}
	if r.code != 1 || !strings.Contains(r.err, "the archive fails: put: connection refused") || asked != 2 {
		t.Errorf("exit code %d after %d requests: %s", r.code, asked, r.err)
	}
}
