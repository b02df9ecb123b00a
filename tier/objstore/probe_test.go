package objstore_test

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// Proves that a sound store passes every check and is left as it was.
func TestProbeSound(t *testing.T) {
	s := mem.New("", nil)
	if err := put(s, "mine", "v"); err != nil {
		t.Fatal(err)
	}
	r, err := objstore.Probe(t.Context(), s, nil)
	if err != nil || !r.OK() || len(r.Checks) != 8 || r.Store.Kind != "mem" {
		t.Fatalf("%+v, %v, missing %q", r, err, r.Missing())
	}
	page, err := s.List(t.Context(), "", "", 0)
	if err != nil || len(page.Objects) != 1 || page.Objects[0].Key != "mine" {
		t.Errorf("left behind: %+v, %v", page, err)
	}
}

// overwriting is a store that ignores the condition of a create-only put.
type overwriting struct{ objstore.Store }

func (s overwriting) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, opts objstore.PutOptions) error {
	opts.CreateOnly = false
	return s.Store.Put(ctx, key, body, size, opts)
}

// Proves that each thing a store can lack is found and said in words.
func TestProbeFindsWhatIsMissing(t *testing.T) {
	faulty := func(r fault.Rule) objstore.Store {
		f := fault.New(mem.New("", nil), fault.Options{})
		f.Add(r)
		return f
	}
	denied := errcode.New(errcode.Denied, "AccessDenied")
	for _, c := range []struct {
		name  string
		store objstore.Store
		check string // the one that fails
		says  string
	}{
		{"condition ignored", overwriting{mem.New("", nil)}, "create-only", "If-None-Match"},
		{"puts denied", faulty(fault.Rule{Ops: []string{fault.Put}, Do: fault.Fail, Err: denied}), "put and get", "AccessDenied"},
		{"puts pretended", faulty(fault.Rule{Ops: []string{fault.Put}, Do: fault.Pretend}), "put and get", "right after its put"},
		{"puts torn", faulty(fault.Rule{Ops: []string{fault.Put}, Do: fault.Tear}), "put and get", "not the one that was put"},
		{"absence denied", faulty(fault.Rule{Ops: []string{fault.Get}, Times: 1, Do: fault.Fail, Err: denied}), "put and get", "does not exist"},
		{"heads lie", faulty(fault.Rule{Ops: []string{fault.Head}, Do: fault.Tear}), "put and get", "head disagrees"},
		{"heads say a larger size", faulty(fault.Rule{Ops: []string{fault.Head}, Do: fault.Flip}), "put and get", "head disagrees"},
		{"heads deny", faulty(fault.Rule{Ops: []string{fault.Head}, Do: fault.Pretend}), "put and get", "head disagrees"},
		{"ranges short", faulty(fault.Rule{Ops: []string{fault.GetRange}, Do: fault.Tear}), "range", "instead of"},
		{"lists stale", faulty(fault.Rule{Ops: []string{fault.List}, Do: fault.Stale, Age: 1}), "list", "put just before"},
		{"lists denied", faulty(fault.Rule{Ops: []string{fault.List}, Do: fault.Fail, Err: denied}), "list", "AccessDenied"},
		{"deletes denied", faulty(fault.Rule{Ops: []string{fault.Delete}, Do: fault.Fail, Err: denied}), "delete", "only grow"},
		{"deletes pretended", faulty(fault.Rule{Ops: []string{fault.Delete}, Do: fault.Pretend}), "delete", "still there"},
		{"clock", mem.New("", func() time.Time { return time.Now().Add(time.Hour) }), "clock", "1h0m0s"},
	} {
		r, err := objstore.Probe(t.Context(), c.store, nil)
		if err != nil || r.OK() {
			t.Errorf("%s: %+v, %v", c.name, r, err)
			continue
		}
		i := slices.IndexFunc(r.Checks, func(k objstore.Check) bool { return !k.OK })
		if r.Checks[i].Name != c.check || !strings.Contains(r.Checks[i].Detail, c.says) {
			t.Errorf("%s: %s: %s; want %s to say %q", c.name, r.Checks[i].Name, r.Checks[i].Detail, c.check, c.says)
		}
	}
}

// Proves that a caller who goes away gets an error, not a verdict.
func TestProbeCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := objstore.Probe(ctx, mem.New("", nil), nil); !errcode.Is(err, errcode.Canceled) {
		t.Errorf("%v", err)
	}
}
