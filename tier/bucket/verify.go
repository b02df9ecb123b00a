package bucket

import (
	"context"
	"sync"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Options say what Verify looks at.
type Options struct {
	Deep     bool            // read every object and compute every checksum
	Topic    *broker.TopicID // nil: everything
	Parallel int             // requests at once, 0 = 8
	Decoders Decoders        // read claims and the newest export; with Deep all that they know
	// Progress hears how many of how many bytes Deep has read; the total is
	// found by a list of the archive before. May be nil.
	Progress func(done, total int64)
}

// Verify holds the chains of an archive against its objects, and shipped WAL
// against its order. It calls report, from one goroutine at a time, for each
// finding, and goes on; one broken partition does not hide the others. The
// error is about the walk itself: the store did not list, or ctx ended.
func Verify(ctx context.Context, store objstore.Store, o Options, report func(Finding)) (Summary, error) {
	if o.Parallel <= 0 {
		o.Parallel = 8
	}
	v := &verifier{store: store, opts: o, deleted: make(map[broker.TopicID]bool)}
	v.mu.report = report
	err := v.run(ctx)
	return v.mu.sum, err
}

type verifier struct {
	store   objstore.Store
	opts    Options
	deleted map[broker.TopicID]bool
	mu      struct {
		sync.Mutex
		report func(Finding)
		sum    Summary
	}
	total int64 // bytes that Deep will read, when somebody wants to know
}

func (v *verifier) find(f Finding) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if f.What.Note() {
		v.mu.sum.Notes++
	} else {
		v.mu.sum.Problems++
	}
	v.mu.report(f)
}

func (v *verifier) count(fn func(*Summary)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	fn(&v.mu.sum)
}

// checked counts bytes whose checksums were computed.
func (v *verifier) checked(n int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.sum.Deep += n
	if v.opts.Progress != nil && v.total > 0 {
		v.opts.Progress(min(v.mu.sum.Deep, v.total), v.total)
	}
}

// measure finds how much Deep will read.
func (v *verifier) measure(ctx context.Context) error {
	if !v.opts.Deep || v.opts.Progress == nil {
		return nil
	}
	prefixes := []string{manifest.PrefixTopics, manifest.PrefixWAL, manifest.PrefixState, manifest.PrefixMeta}
	if v.opts.Topic != nil {
		prefixes = []string{manifest.TopicPrefix(*v.opts.Topic)}
	}
	for _, prefix := range prefixes {
		err := Walk(ctx, v.store, prefix, func(o objstore.Info) error {
			if k, err := manifest.ParseKey(o.Key); err == nil && k.Kind != manifest.KindEntry && k.Kind != manifest.KindPage {
				v.total += o.Size
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// failed reports an error of reading key: what it says about the data depends
// on its code.
func (v *verifier) failed(as What, key string, pid broker.PartitionID, err error) {
	if !damage(err) {
		as = Unreadable
	}
	v.find(Finding{What: as, Key: key, Partition: pid, Detail: err.Error()})
}

// damage says whether an error of a read is about what is stored.
func damage(err error) bool {
	switch errcode.Of(err) {
	case errcode.NotFound, errcode.Corrupt, errcode.UnsupportedVersion, errcode.TooLarge, errcode.InvalidArgument:
		return true
	}
	return false
}

func (v *verifier) run(ctx context.Context) error {
	if err := v.measure(ctx); err != nil {
		return err
	}
	err := Walk(ctx, v.store, manifest.PrefixDeleted, func(o objstore.Info) error {
		if k, err := manifest.ParseKey(o.Key); err == nil {
			v.deleted[k.Partition.Topic] = true
		} else {
			v.find(Finding{What: UnknownKey, Key: o.Key})
		}
		return nil
	})
	if err != nil {
		return err
	}
	prefix := manifest.PrefixTopics
	if v.opts.Topic != nil {
		prefix = manifest.TopicPrefix(*v.opts.Topic)
	}
	if err := v.topics(ctx, prefix); err != nil || v.opts.Topic != nil {
		return err
	}
	if err := v.nodes(ctx); err != nil {
		return err
	}
	return v.metadata(ctx)
}

// topics collects the keys of one partition after the other, as they are
// listed, and verifies each when the next begins.
func (v *verifier) topics(ctx context.Context, prefix string) error {
	var p *partition
	done := func() error {
		if p == nil {
			return nil
		}
		q := p
		p = nil
		return v.partition(ctx, q)
	}
	last := broker.TopicID(0)
	err := Walk(ctx, v.store, prefix, func(o objstore.Info) error {
		k, err := manifest.ParseKey(o.Key)
		if err != nil {
			v.find(Finding{What: UnknownKey, Key: o.Key})
			return nil
		}
		if v.deleted[k.Partition.Topic] {
			v.find(Finding{What: Leftover, Key: o.Key, Partition: k.Partition})
			return nil
		}
		if p == nil || p.id != k.Partition {
			if err := done(); err != nil {
				return err
			}
			p = &partition{id: k.Partition, objects: make(map[objectID]int64), pages: make(map[string]int64)}
			v.count(func(s *Summary) {
				s.Partitions++
				if k.Partition.Topic != last {
					s.Topics++
				}
			})
			last = k.Partition.Topic
		}
		p.note(k, o)
		return nil
	})
	if err != nil {
		return err
	}
	return done()
}
