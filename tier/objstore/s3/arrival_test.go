package s3

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
)

// Proves what WithArrival promises, on an answer that breaks off twice: each
// announcement names more bytes than the one before, those bytes are the object's
// and stay as they are, and after a break only the rest is asked for.
func TestArrival(t *testing.T) {
	const size = 1<<20 + 17
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	var ranges []string // under the fake's lock
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, _ []byte) {
		var first, last int
		if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &first, &last); err != nil {
			answerError(w, 400, "InvalidRange", r.Header.Get("Range"))
			return
		}
		ranges = append(ranges, r.Header.Get("Range"))
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, size))
		w.Header().Set("Content-Length", fmt.Sprint(last+1-first))
		w.WriteHeader(http.StatusPartialContent)
		if len(ranges) <= 2 {
			_, _ = w.Write(data[first : first+300_000])
			return // less than announced: the connection is closed
		}
		_, _ = w.Write(data[first : last+1])
	})
	s := objstore.Stack(open(t, f.options()), objstore.StackOptions{Retry: objstore.RetryPolicy{Base: time.Millisecond}})
	p := make([]byte, size-10)
	var at []int
	var seen []byte // what was announced, as it was then
	ctx := objstore.WithArrival(t.Context(), func(n int) {
		if n <= len(seen) || n > len(p) {
			t.Errorf("%d bytes are announced after %d of %d", n, len(seen), len(p))
			return
		}
		at, seen = append(at, n), append(seen, p[len(seen):n]...)
	})
	n, err := s.GetRange(ctx, "k", p, 10)
	if err != nil || n != len(p) || !bytes.Equal(p, data[10:]) {
		t.Fatalf("%d of %d bytes, or others: %v", n, len(p), err)
	}
	if !bytes.Equal(seen, p) {
		t.Errorf("announced at %v were other bytes, or not all", at)
	}
	want := []string{"bytes=10-1048592", "bytes=300010-1048592", "bytes=600010-1048592"}
	if !slices.Equal(ranges, want) {
		t.Errorf("asked for %v, want %v", ranges, want)
	}
	if len(at) < 5 {
		t.Errorf("announcements at %v, want one for each quarter of a megabyte", at)
	}

	// A store that damages an answer announces nothing of it.
	bad := fault.New(open(t, f.options()), fault.Options{Seed: 1})
	bad.Add(fault.Rule{Ops: []string{fault.GetRange}, Do: fault.Flip})
	seen = nil
	if n, err := bad.GetRange(ctx, "k", p, 10); err != nil || n != len(p) {
		t.Fatal(n, err)
	}
	if bytes.Equal(p, data[10:]) || len(seen) > 0 {
		t.Errorf("%d bytes were announced of an answer that was damaged after that", len(seen))
	}
}
