package main

import (
	"strings"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// A stanza becomes one line of JSON with its fields in their order, continued
// lines included; what is no stanza is left out.
func TestParse(t *testing.T) {
	r, ok := parse([]byte("Package: 0ad\nDescription: a game\n with \"two\" lines\n .\n\tand <a tab>\nno field\nSize: 7\n"))
	want := `{"Package":"0ad","Description":"a game\n with \"two\" lines\n .\n\tand <a tab>","Size":"7"}`
	if !ok || string(r.key) != "0ad" || string(r.value) != want {
		t.Errorf("%v %q %s", ok, r.key, r.value)
	}
	for _, none := range []string{"", "\n", "Version: 1", "text"} {
		if r, ok := parse([]byte(none)); ok {
			t.Errorf("%q became %q", none, r.key)
		}
	}
}

// The sum tells apart records whose bytes are the same in a row, and their order.
func TestDigestTellsRecordsApart(t *testing.T) {
	sums := map[string]bool{(&digest{}).sum(): true}
	for _, records := range [][][2]string{
		{{"a", "bc"}}, {{"ab", "c"}}, {{"", "abc"}}, {{"abc", ""}}, {{"a", "b"}, {"c", ""}}, {{"c", ""}, {"a", "b"}}, {{"", ""}},
	} {
		var d digest
		for _, r := range records {
			d.add([]byte(r[0]), []byte(r[1]))
		}
		first := d.sum()
		if sums[first] || first != d.sum() || d.count != len(records) {
			t.Errorf("%q: %s, %d", records, d.sum(), d.count)
		}
		sums[d.sum()] = true
	}
}

// Records stand in the partition in which the broker will put their key, and
// every one of them is counted once.
func TestCorpusByPartition(t *testing.T) {
	c := &corpus{}
	for _, key := range []string{"a", "b", "c", "d", "a", ""} {
		c.add(record{[]byte(key), []byte("v")})
	}
	total := 0
	for p, records := range c.parts {
		total += len(records)
		for _, r := range records {
			if at := broker.PartitionForKey(r.key, partitions); at != uint32(p) {
				t.Errorf("%q is in %d, not %d", r.key, p, at)
			}
		}
		if c.sums[p].count != len(records) {
			t.Errorf("partition %d: %d of %d summed", p, c.sums[p].count, len(records))
		}
	}
	if total != 6 || c.records != 6 || c.bytes != 11 {
		t.Errorf("%d %d %d", total, c.records, c.bytes)
	}
}

// Requests are added up by operation, whatever other labels say.
func TestCountRequests(t *testing.T) {
	counts, err := countRequests(strings.NewReader(`# TYPE tidemark_objstore_requests_total counter
tidemark_objstore_requests_total{cause="wal",class="write",code="ok",operation="put"} 3
tidemark_objstore_requests_total{cause="upload",class="write",code="exists",operation="put"} 2
tidemark_objstore_requests_total{cause="fence",class="read",code="not_found",operation="get"} 1e+01
tidemark_objstore_request_seconds_count{operation="put"} 99
`))
	if err != nil || len(counts) != 2 || counts["put"] != 5 || counts["get"] != 10 {
		t.Errorf("%v %v", counts, err)
	}
}

// A batch ends at its bound of records or bytes and is never empty.
func TestBatchOf(t *testing.T) {
	small := make([]record, batchRecords+1)
	if n := batchOf(small); n != batchRecords {
		t.Errorf("%d small records", n)
	}
	if n := batchOf([]record{{value: make([]byte, batchBytes)}, {}}); n != 1 {
		t.Errorf("%d large records", n)
	}
	if n := batchOf(small[:1]); n != 1 {
		t.Errorf("%d of one record", n)
	}
}
