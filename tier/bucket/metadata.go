package bucket

import (
	"context"

	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// metadata looks at claims, exports and snapshots. The newest export is read
// always, because a restore needs just that one; Deep reads all of them.
func (v *verifier) metadata(ctx context.Context) error {
	claims := 0
	err := v.keys(ctx, manifest.PrefixCluster, func(k manifest.Key) error {
		claims++
		return v.small(ctx, k)
	})
	if err != nil {
		return err
	}
	read := func(k manifest.Key) error {
		if v.opts.Decoders.Export == nil {
			return nil
		}
		return v.read(ctx, k, ExportCorrupt, v.opts.Decoders.Export)
	}
	var newest manifest.Key
	err = v.keys(ctx, manifest.PrefixMeta, func(k manifest.Key) error {
		v.count(func(s *Summary) { s.Exports++ })
		before := newest
		newest = k
		if v.opts.Deep && before != (manifest.Key{}) {
			return read(before)
		}
		return nil
	})
	if err != nil {
		return err
	}
	switch {
	case newest != (manifest.Key{}):
		err = read(newest)
	case claims > 0 && v.opts.Decoders.Export != nil && v.partitions() > 0:
		v.find(Finding{What: NoExport, Key: manifest.PrefixMeta, Detail: "topics have segments, and nothing says what they are: a restore cannot work"})
	}
	if err != nil {
		return err
	}
	return v.keys(ctx, manifest.PrefixSnap, func(manifest.Key) error { return nil })
}

func (v *verifier) partitions() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mu.sum.Partitions
}

// keys calls fn for each key below prefix, and reports those that are none.
func (v *verifier) keys(ctx context.Context, prefix string, fn func(manifest.Key) error) error {
	return Walk(ctx, v.store, prefix, func(o objstore.Info) error {
		k, err := manifest.ParseKey(o.Key)
		if err != nil {
			v.find(Finding{What: UnknownKey, Key: o.Key})
			return nil
		}
		return fn(k)
	})
}
