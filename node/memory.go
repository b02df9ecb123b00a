package node

import (
	"math"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// memoryBudget is what the tails of a node may hold: an eighth of the memory,
// at most 512 MiB. The memory is Go's limit where one is set.
func memoryBudget() int64 {
	total := debug.SetMemoryLimit(-1)
	var info unix.Sysinfo_t
	if total == math.MaxInt64 && unix.Sysinfo(&info) == nil {
		total = int64(info.Totalram) * int64(info.Unit)
	}
	return min(512<<20, total/8)
}
