package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/tidemark-mq/tidemark/bench/rawhttp"
	"github.com/tidemark-mq/tidemark/bench/records"
	"github.com/tidemark-mq/tidemark/bench/scenario"
)

// produceOnly produces 1 KiB records of text for a while, as fast as the
// connections go, reads nothing back, and returns how many there were.
func produceOnly(ctx context.Context, target *rawhttp.Target, connections, batch int, during time.Duration) (int64, error) {
	var mark [4]byte
	_, _ = rand.Read(mark[:]) // never fails
	return scenario.ProduceOnly(ctx, scenario.Options{
		Target: target, Size: 1024, Kind: records.Text, Partitions: 6, Connections: connections, Batch: batch, Duration: during,
	}, fmt.Sprintf("load-%x", mark))
}
