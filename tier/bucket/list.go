package bucket

import (
	"context"
	"strings"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Listing is what an archive holds.
type Listing struct {
	Clusters  []Object // claims of cluster generations, ascending
	Exports   int      // metadata exports
	Newest    string   // key of the newest export, "" for none
	Topics    []Topic
	Nodes     []Incarnation // by node and incarnation
	Snapshots []Object
}

// Object is one object of the listing.
type Object struct {
	Key      string
	Bytes    int64
	Modified time.Time
}

// Topic is one topic incarnation.
type Topic struct {
	ID         broker.TopicID
	Deleted    bool // it has a tombstone
	Partitions []Partition
}

// Partition is what a partition's chain says. Err is set instead when the
// chain cannot be read.
type Partition struct {
	ID         broker.PartitionID
	Seq        uint64
	Generation uint32
	Start, End int64
	Totals     manifest.Totals
	Gaps       []manifest.Gap
	Err        error
}

// Incarnation is what one data directory has shipped.
type Incarnation struct {
	Node        string
	ID          uint64
	Open        bool // it has announced itself
	Fenced      bool // it was adopted
	Objects     int  // of shipped WAL
	Bytes       int64
	First, Next uint64 // LSNs, half open; 0, 0 without objects
	Newest      time.Time
	States      int
	State       uint64 // LSN of the newest state object
}

// List reads the listing. Topics cost one LIST for each partition and the
// GETs that find the chain's end; WAL and state are listed whole.
func List(ctx context.Context, store objstore.Store) (*Listing, error) {
	l := &Listing{}
	if err := l.simple(ctx, store); err != nil {
		return nil, err
	}
	if err := l.topics(ctx, store); err != nil {
		return nil, err
	}
	return l, l.nodes(ctx, store)
}

func (l *Listing) simple(ctx context.Context, store objstore.Store) error {
	collect := func(to *[]Object) func(objstore.Info) error {
		return func(o objstore.Info) error {
			*to = append(*to, Object{o.Key, o.Size, o.Modified})
			return nil
		}
	}
	if err := Walk(ctx, store, manifest.PrefixCluster, collect(&l.Clusters)); err != nil {
		return err
	}
	if err := Walk(ctx, store, manifest.PrefixSnap, collect(&l.Snapshots)); err != nil {
		return err
	}
	return Walk(ctx, store, manifest.PrefixMeta, func(o objstore.Info) error {
		l.Exports++
		l.Newest = o.Key
		return nil
	})
}

func (l *Listing) topics(ctx context.Context, store objstore.Store) error {
	deleted := make(map[broker.TopicID]bool)
	err := Walk(ctx, store, manifest.PrefixDeleted, func(o objstore.Info) error {
		if k, err := manifest.ParseKey(o.Key); err == nil {
			deleted[k.Partition.Topic] = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	for after := ""; ; {
		key, err := first(ctx, store, manifest.PrefixTopics, after)
		if err != nil || key == "" {
			return err
		}
		k, err := manifest.ParseKey(key)
		if err != nil {
			after = key // not the archive's; verify reports it
			continue
		}
		// '0' follows '/', so this skips all of the partition's keys.
		after = strings.TrimSuffix(manifest.PartitionPrefix(k.Partition), "/") + "0"
		if n := len(l.Topics); n == 0 || l.Topics[n-1].ID != k.Partition.Topic {
			l.Topics = append(l.Topics, Topic{ID: k.Partition.Topic, Deleted: deleted[k.Partition.Topic]})
		}
		t := &l.Topics[len(l.Topics)-1]
		t.Partitions = append(t.Partitions, readPartition(ctx, store, k.Partition))
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

func readPartition(ctx context.Context, store objstore.Store, pid broker.PartitionID) Partition {
	c, err := manifest.Load(ctx, store, pid, 0)
	if err != nil {
		return Partition{ID: pid, Err: err}
	}
	return Partition{ID: pid, Seq: c.Seq(), Generation: c.Generation(), Start: c.Start(), End: c.End(), Totals: c.Totals(), Gaps: c.Gaps()}
}

func (l *Listing) nodes(ctx context.Context, store objstore.Store) error {
	at := make(map[string]int)
	of := func(k manifest.Key) *Incarnation {
		id := manifest.WALPrefix(k.Node, k.Incarnation)
		i, ok := at[id]
		if !ok {
			i = len(l.Nodes)
			at[id] = i
			l.Nodes = append(l.Nodes, Incarnation{Node: k.Node, ID: k.Incarnation})
		}
		return &l.Nodes[i]
	}
	for _, prefix := range []string{manifest.PrefixWAL, manifest.PrefixState} {
		err := Walk(ctx, store, prefix, func(o objstore.Info) error {
			k, err := manifest.ParseKey(o.Key)
			if err != nil {
				return nil // verify reports it
			}
			of(k).note(k, o)
			return nil
		})
		if err != nil {
			return errcode.Wrap(errcode.Internal, err, "walk %s", prefix)
		}
	}
	return nil
}

func (n *Incarnation) note(k manifest.Key, o objstore.Info) {
	switch k.Kind {
	case manifest.KindWALOpen:
		n.Open = true
	case manifest.KindWALFence:
		n.Fenced = true
	case manifest.KindState:
		n.States++
		n.State = max(n.State, k.First)
	case manifest.KindWAL:
		if n.Objects == 0 {
			n.First = k.First
		}
		n.Objects++
		n.Bytes += o.Size
		n.Next = max(n.Next, k.End)
		if o.Modified.After(n.Newest) {
			n.Newest = o.Modified
		}
	}
}
