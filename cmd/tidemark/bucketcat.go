package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/api"
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/bucket"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

func newBucketCat(p *process) *cobra.Command {
	c := bucketCat{}
	var topic, delimiter string
	var partition int
	var asJSON bool
	cmd := &cobra.Command{
		Use: "cat URL --topic T --partition P", Short: "Print the records of a partition from the archive alone",
		Long: `Print the records of a partition from the archive alone, without a node and without
restoring: first what its segments hold, then what is in the shipped write-ahead log
behind them. Records come as replay prints them, one line of JSON each, or with --raw
their values alone. Positions of groups play no part: everything is printed.

T is the topic's name, as the newest metadata of the archive knows it, or its id of
16 hexadecimal digits, which works for deleted topics too.`,
		Example: `  tidemark bucket cat file:///srv/archive --topic orders --partition 0
  tidemark bucket cat 's3://bucket/prod?region=eu-west-1' --topic orders --partition 3 --from 1000 --to 2000 --raw`,
		Args: args("URL"),
	}
	f := cmd.Flags()
	f.StringVar(&topic, "topic", "", "name or id of the topic (required)")
	f.IntVar(&partition, "partition", -1, "partition to read (required)")
	f.Int64Var(&c.o.From, "from", 0, "first offset (default the oldest record)")
	f.Int64Var(&c.o.To, "to", -1, "offset to stop before (default the end of what the archive holds)")
	f.BoolVar(&c.out.raw, "raw", false, "print values alone")
	f.BoolVar(&asJSON, "json", false, "print one JSON object a line (the default)")
	f.StringVar(&delimiter, "delimiter", `\n`, "what follows each value of --raw; \\n, \\t and \\0 are understood, '' is nothing")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case topic == "":
			return usagef("bucket cat: --topic is missing: name one (`tidemark bucket ls` lists their ids)")
		case !f.Changed("partition"):
			return usagef("bucket cat: --partition is missing")
		case partition < 0 || partition >= broker.MaxPartitions:
			return usagef("--partition %d is not between 0 and %d", partition, broker.MaxPartitions-1)
		case c.o.From < 0:
			return usagef("--from %d is negative", c.o.From)
		case f.Changed("to") && c.o.To < 0:
			return usagef("--to %d is negative", c.o.To)
		case f.Changed("to") && c.o.From > c.o.To:
			return usagef("--from %d is after --to %d", c.o.From, c.o.To)
		case asJSON && c.out.raw:
			return usagef("--json and --raw are different forms: give one")
		}
		store, done, err := openBucket(cmd.Context(), p, args[0], objstore.CauseOther)
		if err != nil {
			return err
		}
		defer done()
		if err := c.find(cmd.Context(), store, topic, uint32(partition)); err != nil {
			return err
		}
		w := bufio.NewWriterSize(p.stdout, 64<<10)
		c.out.w, c.out.delimiter, c.o.Decoders = w, unescape(delimiter), decoders
		_, err = bucket.Cat(cmd.Context(), store, c.o, c.batch)
		return errors.Join(err, c.out.explain(w.Flush()))
	}
	return cmd
}

// bucketCat prints batches.
type bucketCat struct {
	o       bucket.CatOptions
	out     output
	scratch segment.Scratch
	line    []byte
}

func (c *bucketCat) batch(b []byte, _ *segment.BatchHeader) error {
	it, err := segment.Records(b, &c.scratch)
	if err != nil {
		return err
	}
	var rec broker.Record
	for it.Next(&rec) {
		if rec.Offset < c.o.From || c.o.To >= 0 && rec.Offset >= c.o.To {
			continue
		}
		if c.out.raw {
			err = c.out.value(rec.Value)
		} else {
			c.line = api.AppendRecordLine(c.line[:0], &rec)
			_, err = c.out.w.Write(c.line)
			err = c.out.explain(err)
		}
		if err != nil {
			return err
		}
	}
	return it.Err()
}

// find finds a topic by its name in the archive's newest metadata, or takes
// what looks like an id for one.
func (c *bucketCat) find(ctx context.Context, store objstore.Store, topic string, partition uint32) error {
	st, key, err := newestExport(ctx, store)
	if err == nil {
		if t, ok := st.Topic(topic); ok {
			if partition >= t.Partitions {
				return errcode.New(errcode.NotFound, "topic %s has %d partitions, there is no partition %d", topic, t.Partitions, partition)
			}
			c.partition(st, broker.PartitionID{Topic: t.ID, Partition: partition})
			return nil
		}
		err = errcode.New(errcode.NotFound, "the archive's newest metadata, %s, knows no topic %q; `tidemark bucket ls` lists ids, which work too", key, topic)
	}
	id, notID := broker.ParseTopicID(topic)
	if notID != nil {
		return err
	}
	c.partition(st, broker.PartitionID{Topic: id, Partition: partition})
	return nil
}

// partition takes what the metadata, if there is any, says of a partition.
func (c *bucketCat) partition(st *raftmeta.State, id broker.PartitionID) {
	c.o.Partition = id
	if st == nil {
		return
	}
	if a, ok := st.Assignment(id); ok {
		c.o.Present = manifest.Fence{Generation: a.Generation, PreviousEnd: a.PreviousEnd, Start: a.Start}
	}
}

// newestExport reads the newest metadata of an archive.
func newestExport(ctx context.Context, store objstore.Store) (*raftmeta.State, string, error) {
	key := ""
	err := bucket.Walk(ctx, store, manifest.PrefixMeta, func(o objstore.Info) error {
		if k, err := manifest.ParseKey(o.Key); err == nil && k.Kind == manifest.KindMeta {
			key = o.Key
		}
		return nil
	})
	if err != nil {
		return nil, "", err
	}
	if key == "" {
		return nil, "", errcode.New(errcode.NotFound, "the archive holds no metadata, so no topic has a name there; `tidemark bucket ls` lists ids, which work too")
	}
	stored, _, err := objstore.ReadAll(ctx, store, key, maxExport)
	if err != nil {
		return nil, key, fmt.Errorf("read %s: %w", key, err)
	}
	plain, err := archive.Unpack(stored)
	if err != nil {
		return nil, key, errcode.Wrap(errcode.Corrupt, err, "metadata export %s", key)
	}
	st, err := raftmeta.ParseExport(plain)
	return st, key, errcode.Wrap(errcode.Corrupt, err, "metadata export %s", key)
}

// maxExport bounds a metadata export as it is stored.
const maxExport = 256 << 20
