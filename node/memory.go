package node

import (
	"math"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// DefaultMemoryBudget is Options.MemoryBudget where nothing is said: a sixteenth
// of the memory, at most 256 MiB. The memory is Go's limit where one is set.
func DefaultMemoryBudget() int64 {
	total := debug.SetMemoryLimit(-1)
	var info unix.Sysinfo_t
	if total == math.MaxInt64 && unix.Sysinfo(&info) == nil {
		total = int64(info.Totalram) * int64(info.Unit)
	}
	return min(256<<20, total/16)
}
