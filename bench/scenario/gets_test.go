package scenario

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tidemark-mq/tidemark/bench/rawhttp"
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// Proves that plain requests read each byte of the objects they are given, of sizes
// around that of a request, page after page of the list, and that an object which is
// shorter than it was, or gone, is an error and no fast read.
func TestPlainGets(t *testing.T) {
	ctx := t.Context()
	st := mem.NewSpace(nil).Store("gets")
	sizes := []int{0, 1, getBytes - 1, getBytes, getBytes + 1}
	total := int64(0)
	for i := range objstore.PageSize + 5 {
		size := sizes[min(i, len(sizes)-1)]
		if i >= len(sizes) {
			size = 10
		}
		if err := st.Put(ctx, fmt.Sprintf("t/x/s/%06d", i), bytes.NewReader(make([]byte, size)), int64(size), objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		total += int64(size)
	}
	if err := st.Put(ctx, "t/x/m/1", bytes.NewReader(nil), 0, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	list, size, err := objects(ctx, st, "t/x/", isSegment)
	if err != nil || len(list) != objstore.PageSize+5 || size != total {
		t.Fatalf("%d objects, %d bytes of %d, %v", len(list), size, total, err)
	}
	var requests atomic.Int64 // each of the readers tells of its own requests
	took, err := plainGets(ctx, st, list, func(_, _ int64) { requests.Add(1) })
	if err != nil || took <= 0 || requests.Load() != objstore.PageSize+5 { // one has none, one has two
		t.Errorf("%v, %d requests, %v", took, requests.Load(), err)
	}
	if h, err := firstGets(ctx, st, list); err != nil || h.TotalCount() != 16 {
		t.Errorf("%v, %v", h.TotalCount(), err)
	}
	list[3].Size++
	if _, err := plainGets(ctx, st, list, func(_, _ int64) {}); err == nil || !strings.Contains(err.Error(), "ends at byte") {
		t.Errorf("a shorter object: %v", err)
	}
	list[3].Key = "t/x/s/none"
	if _, err := plainGets(ctx, st, list, func(_, _ int64) {}); err == nil {
		t.Error("an object that is gone is read")
	}
}

// Proves which refusals the open loop goes on after, and which leave the fate of a
// record open.
func TestAgain(t *testing.T) {
	for _, c := range []struct {
		e             rawhttp.RefusedError
		worth, unsure bool
	}{
		{rawhttp.RefusedError{Status: 429, Retry: "after"}, true, false},
		{rawhttp.RefusedError{Status: 503, Retry: "redirect"}, true, false},
		{rawhttp.RefusedError{Status: 504, Retry: "unknown"}, true, true},
		{rawhttp.RefusedError{Status: 503, Retry: "never"}, false, false},
		{rawhttp.RefusedError{Status: 413, Retry: "never"}, false, false},
		{rawhttp.RefusedError{Status: 429}, true, false},
		{rawhttp.RefusedError{Status: 502}, true, true},
		{rawhttp.RefusedError{Status: 503}, true, true},
		{rawhttp.RefusedError{Status: 404}, false, false},
		{rawhttp.RefusedError{Status: 204}, false, false},
	} {
		if worth, unsure := again(&c.e); worth != c.worth || unsure != c.unsure {
			t.Errorf("%+v: %v, %v", c.e, worth, unsure)
		}
	}
}

// Proves the counts of a bill: what goes with time is counted while records came, what
// goes with bytes until all was archived, and each operation has its price.
func TestBill(t *testing.T) {
	status := func(wal, segment, read int64) broker.ArchiveStatus {
		return broker.ArchiveStatus{Cost: broker.ArchiveCost{Causes: []broker.ArchiveDemand{
			{Cause: "wal", Requests: map[string]int64{"put": wal, "list": 1}, SentBytes: wal * 100},
			{Cause: "segment", Requests: map[string]int64{"put": segment, "head": read, "get_range": read}, ReceivedBytes: read * 10},
		}}}
	}
	p := Prices{Put: 1000, Get: 100, List: 10, Transfer: 1e9}
	c := &bill{p: &p}
	c.add(status(10, 1, 0), status(30, 2, 1), status(99, 5, 3))
	if c.timed != (asked{put: 20, sent: 2000}) || c.sized != (asked{put: 4, get: 6, received: 30}) {
		t.Errorf("%+v, %+v", c.timed, c.sized)
	}
	if got := c.sized.dollars(&p); math.Abs(got-34.6) > 1e-9 {
		t.Errorf("%v $", got)
	}
}
