package main

import (
	"cmp"
	"os"
	"runtime/debug"

	"github.com/tidemark-mq/tidemark/node"
)

// besideTails is memory for everything but the tails: requests and answers in
// flight, connections, chains of the archive.
const besideTails = 320 << 20

// boundMemory returns the memory budget of the node, and tells the collector
// what the process should take. By itself it lets the heap grow to twice what
// lives, and tails of large records, which live on it, may be half a gigabyte
// while the disk is slow. GOMEMLIMIT overrides it.
func boundMemory(c config) (budget int64) {
	budget = cmp.Or(c.MemoryBudget, node.DefaultMemoryBudget())
	if _, set := os.LookupEnv("GOMEMLIMIT"); !set {
		debug.SetMemoryLimit(2*budget + besideTails)
	}
	return budget
}
