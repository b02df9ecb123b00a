package scenario

import (
	"context"

	"github.com/tidemark-mq/tidemark/bench/load"
	"github.com/tidemark-mq/tidemark/bench/rawhttp"
	"github.com/tidemark-mq/tidemark/bench/records"
)

// Fill makes a topic and produces n records of text into it, in batches, for
// measurements that read.
func Fill(ctx context.Context, target *rawhttp.Target, topic string, partitions, size int, n int64) error {
	b := &bench{Options: Options{Target: target, Size: size, Kind: records.Text, Partitions: partitions}, corpus: records.NewCorpus(records.Text, 1)}
	t := &trial{b: b, topic: topic, run: records.NewRun(b.corpus, size, 1)}
	t.ledger = records.NewLedger(t.run)
	if err := createTopic(ctx, target, topic, partitions, size); err != nil {
		return err
	}
	return t.fillTo(ctx, n, func(int64, int64) {})
}

// ProduceOnly makes a topic, produces into it for the duration of the options, in
// the closed loop, and returns the number of records. Nothing is verified, and the
// topic stays.
func ProduceOnly(ctx context.Context, o Options, topic string) (int64, error) {
	b := &bench{Options: o, corpus: records.NewCorpus(o.Kind, 1)}
	t := &trial{b: b, topic: topic, run: records.NewRun(b.corpus, o.Size, 1)}
	t.ledger = records.NewLedger(t.run)
	if err := createTopic(ctx, o.Target, topic, o.Partitions, o.Size); err != nil {
		return 0, err
	}
	send := t.single
	if o.Batch > 1 {
		send = t.batch
	}
	_, err := t.produce(ctx, load.Plan{Connections: o.Connections, Duration: o.Duration}, send)
	accepted, _ := t.ledger.Counts()
	return int64(accepted), err
}
