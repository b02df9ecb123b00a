package storetest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// walkPages lists to the end and checks every page's promises on the way.
func walkPages(t *testing.T, b *bucket, prefix, after string, limit int) []objstore.Info {
	t.Helper()
	var all []objstore.Info
	for {
		page, err := b.List(b.ctx, prefix, after, limit)
		if err != nil {
			t.Fatalf("list %q after %q: %v", prefix, after, err)
		}
		if limit > 0 && len(page.Objects) > limit {
			t.Fatalf("list %q after %q: %d objects, limit %d", prefix, after, len(page.Objects), limit)
		}
		for _, o := range page.Objects {
			if o.Key <= after {
				t.Fatalf("list %q: %q comes after %q", prefix, o.Key, after)
			}
			after = o.Key
		}
		all = append(all, page.Objects...)
		if !page.More {
			return all
		}
		if len(page.Objects) == 0 {
			t.Fatalf("list %q after %q: an empty page says that more follow", prefix, after)
		}
	}
}

func keysOf(objects []objstore.Info) []string {
	keys := make([]string, len(objects))
	for i, o := range objects {
		keys[i] = o.Key
	}
	return keys
}

// Proves that a prefix with more objects than one page is listed to its end, at a
// page size that divides nothing and at the largest. B220.
func testListPages(t *testing.T, b *bucket) {
	const n = 2501
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("many/p%02d/s/%020d", i/300, i*4096)
	}
	putMany(t, b, append([]string{"many.", "many-before", "many0after"}, keys...))
	for _, limit := range []int{7, 1000, 0} {
		got := walkPages(t, b, "many/", "", limit)
		if !slices.Equal(keysOf(got), keys) {
			t.Fatalf("page size %d: %d keys; want the %d that were put, in order", limit, len(got), n)
		}
		for _, o := range got {
			if o.Size != int64(len(o.Key)) || o.Modified.IsZero() {
				t.Fatalf("page size %d: %+v", limit, o)
			}
		}
	}
	page, err := b.List(b.ctx, "many/", "", 0)
	if err != nil || len(page.Objects) != objstore.PageSize || !page.More {
		t.Fatalf("no limit: %d objects, more %v, %v; want a page of %d", len(page.Objects), page.More, err, objstore.PageSize)
	}
}

// Proves that keys come in byte order of the whole key, which is not the order of
// a directory walk: '-' and '.' sort before '/', letters and digits after.
func testListOrder(t *testing.T, b *bucket) {
	keys := []string{
		"a-/x", "a-b", "a.b", "a.d/x", "a/b", "a/b-c", "a/b.c/d", "a0", "aA", "a_", "aa/b", "ab",
		"A", "Z/z", "b/0/1/2/3", "b/0/1/2-3", "b/00", "b/1", "c/00000000000000000009", "c/00000000000000000010",
	}
	// "a/b" and "a/b/..." cannot both be; "a/b" is an object here.
	putMany(t, b, keys)
	slices.Sort(keys)
	for limit := range len(keys) + 2 {
		if got := keysOf(walkPages(t, b, "", "", limit)); !slices.Equal(got, keys) {
			t.Fatalf("limit %d: got %q, want %q", limit, got, keys)
		}
	}
	// Every start, whether a key, a prefix of one, or between two.
	for _, after := range append([]string{"a", "a/", "a/b.", "a/b.c/", "b/0", "b/0/", "b/0/1/2/", "zzz", "Z", "aa/", "a-/x/"}, keys...) {
		i, found := slices.BinarySearch(keys, after)
		if found {
			i++
		}
		if got := keysOf(walkPages(t, b, "", after, 3)); !slices.Equal(got, keys[i:]) {
			t.Fatalf("after %q: got %q, want %q", after, got, keys[i:])
		}
	}
}

// Proves that a prefix is a prefix of bytes, not a directory, together with a
// start inside, before and behind it.
func testListEdges(t *testing.T, b *bucket) {
	if page, err := b.List(b.ctx, "", "", 0); err != nil || len(page.Objects) != 0 || page.More {
		t.Fatalf("an empty store lists %+v, %v", page, err)
	}
	keys := []string{"wal/1/a", "wal/1/b", "wal/10/a", "wal/2/a", "wal-x", "w", "x/wal/1/a"}
	putMany(t, b, keys)
	for _, c := range []struct {
		prefix, after string
		want          []string
	}{
		{"wal/1", "", []string{"wal/1/a", "wal/1/b", "wal/10/a"}},
		{"wal/1/", "", []string{"wal/1/a", "wal/1/b"}},
		{"wal/1/a", "", []string{"wal/1/a"}},
		{"wal/1/a", "wal/1/a", nil},
		{"wal", "", []string{"wal-x", "wal/1/a", "wal/1/b", "wal/10/a", "wal/2/a"}},
		{"wal/", "wal/1/a", []string{"wal/1/b", "wal/10/a", "wal/2/a"}},
		{"wal/", "a", []string{"wal/1/a", "wal/1/b", "wal/10/a", "wal/2/a"}},
		{"wal/", "wal/1/zz", []string{"wal/10/a", "wal/2/a"}},
		{"wal/", "x", nil},
		{"wal/3", "", nil},
		{"none/", "", nil},
		{"wal/1/a/b/c", "", nil},
		{"wal/2/a.", "", nil},
	} {
		for _, limit := range []int{0, 1, 2} {
			got := keysOf(walkPages(t, b, c.prefix, c.after, limit))
			if !slices.Equal(got, c.want) && len(got)+len(c.want) > 0 {
				t.Errorf("list %q after %q by %d: got %q, want %q", c.prefix, c.after, limit, got, c.want)
			}
		}
	}
	// A page that ends exactly at the last object says that nothing follows.
	if page, err := b.List(b.ctx, "wal/1/", "", 2); err != nil || len(page.Objects) != 2 || page.More {
		t.Errorf("a page that ends at the end: %+v, %v", page, err)
	}
}
