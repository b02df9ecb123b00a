package raftmeta_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/raftmeta"
)

func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	data, err := os.MkdirTemp("", "tidemark")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(data)

	m, err := raftmeta.Open(ctx, raftmeta.Options{Dir: filepath.Join(data, "raft"), NodeID: "n1", BindAddr: "127.0.0.1:0"})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	if _, err := m.RegisterIncarnation(ctx, 0xa1, map[string]string{"http": "127.0.0.1:7942"}); err != nil {
		log.Fatal(err)
	}
	topic := raftmeta.DefaultTopic("orders")
	topic.RetentionMs = 0 // for ever
	topic, err = m.CreateTopic(ctx, topic)
	if err != nil {
		log.Fatal(err)
	}
	a, _ := m.Assignment(broker.PartitionID{Topic: topic.ID, Partition: 2})
	fmt.Println(topic.Name, topic.Partitions, a.Owner, a.OwnerIncarnation, a.Generation)
	// Output: orders 3 n1 00000000000000a1 1
}
