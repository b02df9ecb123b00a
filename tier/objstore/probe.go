package objstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// MaxClockSkew is how far the store's clock may be from the node's: beyond it
// retention pauses, because ages cannot be told.
const MaxClockSkew = 5 * time.Minute

// Check is one thing that an archive needs, and whether the store does it.
type Check struct {
	Name   string // for example "create-only"
	OK     bool
	Detail string // in words: what was seen, and what to do when it is not OK
	Took   time.Duration
}

// Report is what Probe found.
type Report struct {
	Store   Capabilities
	Checks  []Check
	Skew    time.Duration // the store's clock minus the node's; exact to about a second
	Latency time.Duration // the median of small puts and reads
}

// OK reports whether the store can hold an archive.
func (r Report) OK() bool { return len(r.Missing()) == 0 }

// Missing returns the details of what is not OK.
func (r Report) Missing() []string {
	var missing []string
	for _, c := range r.Checks {
		if !c.OK {
			missing = append(missing, c.Name+": "+c.Detail)
		}
	}
	return missing
}

// Probe proves that a store works as an archive needs it, by doing it under the
// prefix doctor/<random>/, which it removes again: put, read, create-only also
// under a race, ranges, lists in order and at once complete, delete, clock,
// latency. A store that fails is a report, not an error; the error is the
// context's end. now is the node's clock, nil for the system's.
func Probe(ctx context.Context, s Store, now func() time.Time) (Report, error) {
	if now == nil {
		now = time.Now
	}
	var id [8]byte
	rand.Read(id[:])
	p := &probe{store: s, ctx: WithCause(ctx, CauseDoctor), now: now, root: "doctor/" + hex.EncodeToString(id[:]) + "/"}
	p.report.Store = s.Capabilities()
	defer p.clean()
	for _, step := range []struct {
		name string
		run  func() (string, error)
	}{
		{"put and get", p.putGet},
		{"create-only", p.createOnly},
		{"create-only race", p.race},
		{"range", p.ranges},
		{"list", p.list},
		{"clock", p.clock},
		{"delete", p.delete},
		{"latency", p.latency},
	} {
		start := time.Now()
		detail, err := step.run()
		if ctx.Err() != nil {
			return p.report, Ended(ctx, "probe", step.name)
		}
		c := Check{Name: step.name, OK: err == nil, Detail: detail, Took: time.Since(start)}
		if err != nil {
			c.Detail = err.Error()
		}
		p.report.Checks = append(p.report.Checks, c)
		// Without the first nothing else says anything new.
		if err != nil && step.name == "put and get" {
			break
		}
	}
	return p.report, nil
}

// Skew asks for the store's time: it returns the store's clock minus the node's,
// exact to about a second, with one small object that is put, read and removed.
func Skew(ctx context.Context, s Store, now func() time.Time) (time.Duration, error) {
	var id [8]byte
	rand.Read(id[:])
	p := &probe{store: s, ctx: WithCause(ctx, CauseDoctor), now: now, root: "doctor/" + hex.EncodeToString(id[:]) + "/"}
	defer p.clean()
	return p.skew()
}

type probe struct {
	store  Store
	ctx    context.Context
	now    func() time.Time
	root   string
	report Report

	mu struct {
		sync.Mutex
		keys []string // to remove at the end
		took []time.Duration
	}
}

// key returns a key of this probe and remembers to remove it.
func (p *probe) key(name string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.keys = append(p.mu.keys, p.root+name)
	return p.root + name
}

func (p *probe) put(key string, data []byte, createOnly bool) error {
	start := time.Now()
	err := p.store.Put(p.ctx, key, bytes.NewReader(data), int64(len(data)), PutOptions{CreateOnly: createOnly})
	p.timed(start)
	return err
}

func (p *probe) get(key string) ([]byte, Info, error) {
	start := time.Now()
	data, info, err := ReadAll(p.ctx, p.store, key, 1<<20)
	p.timed(start)
	return data, info, err
}

func (p *probe) timed(start time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.took = append(p.mu.took, time.Since(start))
}

// missing says what a store lacks, in words.
func missing(format string, args ...any) error {
	return errcode.New(errcode.PreconditionFailed, format, args...)
}

func (p *probe) putGet() (string, error) {
	key, data := p.key("object"), []byte("tidemark doctor")
	if _, _, err := p.get(key); !errcode.Is(err, errcode.NotFound) {
		if err == nil {
			return "", missing("the store returns an object that nobody has put")
		}
		return "", missing("asked for an object that does not exist, the store does not say so: %s", err.Error())
	}
	if err := p.put(key, data, false); err != nil {
		return "", err
	}
	got, info, err := p.get(key)
	switch {
	case errcode.Is(err, errcode.NotFound):
		return "", missing("an object is not there right after its put: the store is not consistent; its asked-for absence may be cached")
	case err != nil:
		return "", err
	case !bytes.Equal(got, data) || info.Size != int64(len(data)):
		return "", missing("the object that comes back is not the one that was put (%d bytes instead of %d)", len(got), len(data))
	}
	if head, err := p.store.Head(p.ctx, key); err != nil || head.Size != info.Size {
		return "", missing("head disagrees with get: %d bytes, %v", head.Size, err)
	}
	return "an object comes back as it was put", nil
}

func (p *probe) createOnly() (string, error) {
	key := p.key("once")
	if err := p.put(key, []byte("first"), true); err != nil {
		return "", fmt.Errorf("the store refuses a create-only put: %w", err)
	}
	err := p.put(key, []byte("second"), true)
	if err == nil {
		return "", missing("the store ignores the condition of a create-only put (S3: If-None-Match) and overwrites; two nodes could overwrite each other's history, so it cannot hold an archive")
	}
	if !errcode.Is(err, errcode.Exists) {
		return "", fmt.Errorf("the store does not say that the key is taken: %w", err)
	}
	if got, _, err := p.get(key); err != nil || string(got) != "first" {
		return "", missing("a refused put has changed the object: %q, %v", got, err)
	}
	return "a taken key is refused and stays as it is", nil
}

// race lets writers meet: a store may check the condition and then write.
func (p *probe) race() (string, error) {
	const writers, rounds = 8, 3
	for round := range rounds {
		key := p.key(fmt.Sprintf("race-%d", round))
		errs := make([]error, writers)
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() { errs[w] = p.put(key, []byte{byte(w)}, true) })
		}
		wg.Wait()
		winners := 0
		for _, err := range errs {
			switch {
			case err == nil:
				winners++
			case !errcode.Is(err, errcode.Exists) && !mayPass(err):
				return "", err
			}
		}
		if winners > 1 {
			return "", missing("%d of %d writers created the same object at once; two nodes could own a partition", winners, writers)
		}
	}
	return fmt.Sprintf("of %d writers at most one wins", writers), nil
}

func (p *probe) ranges() (string, error) {
	key, data := p.key("ranged"), []byte("0123456789")
	if err := p.put(key, data, false); err != nil {
		return "", err
	}
	for _, c := range []struct {
		off, n int
		want   string
	}{{0, 1, "0"}, {3, 4, "3456"}, {9, 1, "9"}, {8, 5, "89"}, {10, 4, ""}, {50, 4, ""}} {
		buf := make([]byte, c.n)
		n, err := p.store.GetRange(p.ctx, key, buf, int64(c.off))
		if err != nil {
			return "", fmt.Errorf("a range of %d bytes at %d of 10: %w", c.n, c.off, err)
		}
		if string(buf[:n]) != c.want {
			return "", missing("a range of %d bytes at %d of 10 gave %q instead of %q", c.n, c.off, buf[:n], c.want)
		}
	}
	return "ranges are exact, at the end and past it too", nil
}

// list proves order, completeness right after the puts, and paging.
func (p *probe) list() (string, error) {
	var want []string
	for _, name := range []string{"l/a-b", "l/a.b", "l/a/b", "l/a0", "l/b", "l/00000000000000000009", "l/00000000000000000010"} {
		key := p.key(name)
		if err := p.put(key, []byte(name), false); err != nil {
			return "", err
		}
		want = append(want, key)
		slices.Sort(want)
		var got []string
		for after, more := "", true; more; {
			page, err := p.store.List(p.ctx, p.root+"l/", after, 3)
			if err != nil {
				return "", err
			}
			for _, o := range page.Objects {
				got = append(got, o.Key)
				after = o.Key
			}
			more = page.More && len(page.Objects) > 0
		}
		if slices.Equal(got, want) {
			continue
		}
		if len(got) < len(want) {
			return "", missing("a list does not show what was put just before (%d of %d objects); taking over a dead node's records needs lists that are complete", len(got), len(want))
		}
		return "", missing("a list is not in the order of its keys: %s", strings.Join(got, " "))
	}
	return "lists are complete at once, in order and by pages", nil
}

func (p *probe) skew() (time.Duration, error) {
	key := p.key("clock")
	before := p.now()
	if err := p.put(key, []byte("now"), true); err != nil {
		return 0, err
	}
	after := p.now()
	_, info, err := p.get(key)
	if err != nil {
		return 0, err
	}
	return info.Modified.Sub(before.Add(after.Sub(before) / 2)).Round(time.Millisecond), nil
}

func (p *probe) clock() (string, error) {
	var err error
	if p.report.Skew, err = p.skew(); err != nil {
		return "", err
	}
	if p.report.Skew.Abs() > MaxClockSkew {
		return "", missing("the store's clock differs from this machine's by %v; more than %v stops retention: set the clocks", p.report.Skew, MaxClockSkew)
	}
	return fmt.Sprintf("the store's clock differs by %v", p.report.Skew), nil
}

func (p *probe) delete() (string, error) {
	keys := []string{p.key("gone-1"), p.key("gone-2")}
	for _, k := range keys {
		if err := p.put(k, []byte("x"), false); err != nil {
			return "", err
		}
	}
	if err := p.store.Delete(p.ctx, append(keys, p.root+"never-there")); err != nil {
		return "", fmt.Errorf("the store refuses to delete; the archive would only grow: %w", err)
	}
	// Some stores report deletes that they did not do.
	for _, k := range keys {
		if _, _, err := p.get(k); !errcode.Is(err, errcode.NotFound) {
			return "", missing("an object is still there after its delete was reported: is a lock or a retention rule on the bucket? (%v)", err)
		}
	}
	return "deleted objects are gone", nil
}

func (p *probe) latency() (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	slices.Sort(p.mu.took)
	p.report.Latency = p.mu.took[len(p.mu.took)/2].Round(100 * time.Microsecond)
	slowest := p.mu.took[len(p.mu.took)-1].Round(100 * time.Microsecond)
	return fmt.Sprintf("small puts and reads take %v, the slowest took %v", p.report.Latency, slowest), nil
}

// cleanPatience bounds the removal of what the probe put.
const cleanPatience = 30 * time.Second

// clean removes the probe's objects, also when its context is over. What it
// cannot remove the report has said already, and the objects are tiny.
func (p *probe) clean() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), cleanPatience)
	defer cancel()
	_ = p.store.Delete(ctx, p.mu.keys)
}
