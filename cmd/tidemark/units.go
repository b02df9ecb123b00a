package main

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

var sizeUnits = []struct {
	suffix string
	bytes  int64
}{
	// Longer suffixes first: "MiB" ends in "B" too.
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1},
}

// parseBytes reads a size such as 64MiB, 1.5GiB, 500MB or 1048576.
func parseBytes(text string) (int64, error) {
	number, unit := text, int64(1)
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(text, u.suffix); ok {
			number, unit = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	if n, err := strconv.ParseUint(number, 10, 63); err == nil {
		if int64(n) > math.MaxInt64/unit {
			return 0, fmt.Errorf("%q is larger than any disk", text)
		}
		return int64(n) * unit, nil
	}
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || unit == 1 || strings.ContainsAny(number, "eExXpPnN_+-") || f*float64(unit) >= math.MaxInt64 {
		return 0, fmt.Errorf("%q is not a size; write bytes as 1048576, 64MiB or 1.5GiB", text)
	}
	return int64(f * float64(unit)), nil
}

// formatBytes writes a size for people, with three digits.
func formatBytes(n int64) string {
	if n < 1<<10 {
		return strconv.FormatInt(n, 10) + " B"
	}
	value, unit := float64(n), ""
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"} {
		value, unit = value/1024, u
		if value < 999.5 {
			break
		}
	}
	return strconv.FormatFloat(value, 'g', 3, 64) + " " + unit
}

// parseDuration reads a length of time that is not negative.
func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a length of time; write it as 500ms, 10s or 12h", text)
	}
	return d, nil
}

// readAtMost reads r to its end and refuses more than most bytes.
func readAtMost(r io.Reader, name string, most int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if int64(len(b)) > most {
		return nil, fmt.Errorf("%s is larger than %s", name, formatBytes(most))
	}
	return b, nil
}
