//go:build !race

package racing

// Enabled says that the race detector runs.
const Enabled = false
