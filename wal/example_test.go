package wal_test

import (
	"context"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/wal"
)

// A record is durable when WaitDurable says so, and comes back at the next
// start.
func Example() {
	o := wal.Options{FS: vfs.NewMem(), Dir: "wal", Incarnation: 42, FileSize: 256 << 10}
	log, _, err := wal.Open(o, nil)
	if err != nil {
		panic(err)
	}
	slot, err := log.Reserve(wal.KindCommit, 5)
	if err != nil {
		panic(err) // nothing was reserved
	}
	copy(slot.Body, "hello")
	slot.Done()
	if err := log.WaitDurable(context.Background(), slot.LSN); err != nil {
		panic(err) // it may be there after a restart or not
	}
	if err := log.Close(); err != nil {
		panic(err)
	}

	log, info, err := wal.Open(o, func(f wal.Frame) error {
		if f.Kind != wal.KindMark {
			fmt.Printf("LSN %d %v %s\n", f.LSN, f.Kind, f.Body)
		}
		return nil
	})
	if err != nil {
		panic(err)
	}
	fmt.Println("next LSN", info.Next)
	if err := log.Close(); err != nil {
		panic(err)
	}
	// Output:
	// LSN 1 commit hello
	// next LSN 4
}
