//go:build !race

package api

// raceEnabled tells tests that count allocations that the race detector runs.
const raceEnabled = false
