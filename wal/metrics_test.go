package wal

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Metrics are registered while the log is open and only then, and a log that
// cannot register them does not open, and leaves the other's alone.
func TestMetricsRegistration(t *testing.T) {
	reg := prometheus.NewRegistry()
	o := testOptions(newFS())
	o.Registerer = reg
	l := mustOpen(t, o)
	put(t, l.Log, 1, 10)
	count := func() int {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		return len(families)
	}
	want := count()
	other := testOptions(newFS())
	other.Registerer = reg
	if _, err := tryOpen(other); !errcode.Is(err, errcode.InvalidArgument) {
		t.Fatalf("second log on one registry: %v", err)
	}
	if got := count(); got != want || want == 0 {
		t.Fatalf("%d metrics, were %d", got, want)
	}
	mustClose(t, l)
	if got := count(); got != 0 {
		t.Fatalf("%d metrics after close", got)
	}
}

// Options that cannot work are refused, all of them at once.
func TestOptionsValidate(t *testing.T) {
	if err := testOptions(newFS()).Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Options){
		"no FS":                func(o *Options) { o.FS = nil },
		"no Dir":               func(o *Options) { o.Dir = "" },
		"no incarnation":       func(o *Options) { o.Incarnation = 0 },
		"odd file size":        func(o *Options) { o.FileSize = 256<<10 + 1 },
		"tiny file size":       func(o *Options) { o.FileSize = 4096 },
		"group above the file": func(o *Options) { o.MaxGroup = 256 << 10 },
		"group above 32 MiB":   func(o *Options) { o.FileSize, o.MaxGroup = 64<<20, 32<<20+1 },
		"bytes below a file":   func(o *Options) { o.MaxBytes = 1 },
		"negative interval":    func(o *Options) { o.AckSyncInterval = -1 },
	} {
		o := testOptions(newFS())
		change(&o)
		if _, err := tryOpen(o); !errcode.Is(err, errcode.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
