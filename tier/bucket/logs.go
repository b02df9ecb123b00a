package bucket

import (
	"context"
	"fmt"
	"slices"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// maxLooks bounds how often what seems to be missing is looked for again.
const maxLooks = 5

// shippedLog is what a list shows of one incarnation's log and states.
type shippedLog struct {
	runs   []run
	states []manifest.Key // ascending
}

// run is a part of a log without a hole.
type run struct {
	key         manifest.Key // of its first object
	first, next uint64
}

// holes reports what the shipped logs lack of what restores need of them: of one
// that begins with the newest state object, with Deep of one that begins with
// any, because the older ones stand in for a damaged one. Without a state a log
// may begin anywhere. What no state needs any more is being deleted, in whatever
// order the store does that, and is not looked at; nor is an incarnation that the
// metadata calls retired.
//
// Nodes ship and delete meanwhile, so states are listed before logs: one that is
// listed was put after the frames that it needs, and while it stands none of them
// is deleted. What seems to be missing is looked for again, and reported when it
// is missing each time.
func (v *verifier) holes(ctx context.Context) error {
	var missing map[writer][]Finding
	for look := range maxLooks {
		logs, err := v.listLogs(ctx)
		if err != nil {
			return err
		}
		found := make(map[writer][]Finding)
		for w, l := range logs {
			if before, suspect := missing[w]; look == 0 || suspect {
				f, err := v.lacks(ctx, w, l)
				if err != nil {
					return err
				}
				if look > 0 {
					f = slices.DeleteFunc(f, func(x Finding) bool {
						return x.What == WALHole && !slices.ContainsFunc(before, func(y Finding) bool { return x.From < y.Next && y.From < x.Next })
					})
				}
				if len(f) > 0 {
					found[w] = f
				}
			}
		}
		if missing = found; len(missing) == 0 {
			return nil
		}
	}
	retired, err := v.retired(ctx)
	if err != nil {
		return err
	}
	for w, findings := range missing {
		for _, f := range findings {
			if !retired(w.node, w.incarnation) {
				v.find(f)
			}
		}
	}
	return nil
}

// listLogs lists states, and then logs.
func (v *verifier) listLogs(ctx context.Context) (map[writer]*shippedLog, error) {
	logs := make(map[writer]*shippedLog)
	of := func(k manifest.Key) *shippedLog {
		l := logs[writerOf(k)]
		if l == nil {
			l = &shippedLog{}
			logs[writerOf(k)] = l
		}
		return l
	}
	for _, prefix := range []string{manifest.PrefixState, manifest.PrefixWAL} {
		err := Walk(ctx, v.store, prefix, func(o objstore.Info) error {
			k, err := manifest.ParseKey(o.Key)
			switch {
			case err != nil: // reported elsewhere
			case k.Kind == manifest.KindState:
				l := of(k)
				l.states = append(l.states, k)
			case k.Kind == manifest.KindWAL:
				of(k).add(k)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return logs, nil
}

// add takes the next object. Overlaps are allowed.
func (l *shippedLog) add(k manifest.Key) {
	if n := len(l.runs); n > 0 && k.First <= l.runs[n-1].next {
		l.runs[n-1].next = max(l.runs[n-1].next, k.End)
		return
	}
	l.runs = append(l.runs, run{k, k.First, k.End})
}

// lacks returns the holes in what is needed of a log.
func (v *verifier) lacks(ctx context.Context, w writer, l *shippedLog) (out []Finding, err error) {
	needs := v.opts.Decoders.Needs
	if len(l.runs) <= 1 && (needs == nil || !v.opts.Deep) {
		return nil, nil // no state is read when nothing seems to be missing
	}
	floor, known := uint64(0), false
	for _, k := range slices.Backward(l.states) {
		if needs == nil || known && !v.opts.Deep {
			break
		}
		stored, _, err := objstore.ReadAll(ctx, v.store, k.String(), maxObject)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if errcode.Is(err, errcode.NotFound) {
			continue // deleted since; what only it needed may be gone too
		}
		from, upTo := uint64(0), uint64(0)
		if err == nil {
			from, upTo, err = needs(k, stored)
		}
		if err != nil && damage(err) {
			continue // a restore passes it over, and Deep reports it
		}
		if err != nil {
			return []Finding{{What: Unreadable, Key: k.String(), Detail: err.Error()}}, nil
		}
		if !known || from < floor {
			floor, known = from, true
		}
		if f, short := l.short(k, from, upTo); short && len(out) == 0 {
			out = append(out, f)
		}
	}
	for i := 1; i < len(l.runs); i++ {
		r, from := &l.runs[i], max(l.runs[i-1].next, floor)
		if from < r.first {
			out = append(out, Finding{What: WALHole, Key: r.key.String(), From: int64(from), Next: int64(r.first)})
		}
	}
	return out, nil
}

// short says whether the log lacks frames at the beginning or at the end of what
// a state needs; what it lacks in the middle is between two runs.
func (l *shippedLog) short(k manifest.Key, from, upTo uint64) (Finding, bool) {
	if from > upTo {
		return Finding{}, false
	}
	f := Finding{What: WALHole, Key: k.String(), From: int64(from), Next: int64(upTo) + 1,
		Detail: fmt.Sprintf("a restore that begins with this state object needs LSNs %d to %d", from, upTo)}
	at := slices.IndexFunc(l.runs, func(r run) bool { return r.next > from })
	switch {
	case at < 0:
		return f, true
	case l.runs[at].first > from && at == 0:
		f.Next = int64(min(l.runs[0].first, upTo+1))
		return f, true
	}
	if last := l.runs[len(l.runs)-1].next; last <= upTo {
		f.From = int64(last)
		return f, true
	}
	return f, false
}

// retired returns which incarnations the newest export calls retired. It is read
// behind the lists: what is deleted of them is deleted after it was put.
func (v *verifier) retired(ctx context.Context) (func(node string, incarnation uint64) bool, error) {
	none := func(string, uint64) bool { return false }
	decode := v.opts.Decoders.Retired
	if decode == nil {
		return none, nil
	}
	var newest manifest.Key
	err := Walk(ctx, v.store, manifest.PrefixMeta, func(o objstore.Info) error {
		if k, err := manifest.ParseKey(o.Key); err == nil && k.Kind == manifest.KindMeta {
			newest = k
		}
		return nil
	})
	if err != nil || newest == (manifest.Key{}) {
		return none, err
	}
	stored, _, err := objstore.ReadAll(ctx, v.store, newest.String(), maxObject)
	if err == nil {
		var is func(string, uint64) bool
		if is, err = decode(newest, stored); err == nil {
			return is, nil
		}
	}
	return none, ctx.Err() // the look at the metadata reports it
}
