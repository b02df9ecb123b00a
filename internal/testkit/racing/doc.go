// Package racing tells tests whether the race detector runs: it allocates by
// itself and makes pools forget at random, so counts of allocations mean nothing
// under it.
package racing
