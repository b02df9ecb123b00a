package reload

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// values are the series of a registry: by name, and the value of their label.
func values(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return got
}

// Proves that every signal is one reload, that outcomes are logged and counted
// with what changed or why not, and that Run ends with its context.
func TestOutcomes(t *testing.T) {
	reg := prometheus.NewRegistry()
	var log bytes.Buffer
	outcomes := []error{nil, errors.New("data_dir cannot change"), nil}
	ran := make(chan struct{})
	n := 0
	r, err := New(func() ([]string, error) {
		err := outcomes[n]
		n++
		ran <- struct{}{}
		return []string{"log_level from info to debug"}, err
	}, slog.New(slog.NewTextHandler(&log, nil)), reg)
	if err != nil {
		t.Fatal(err)
	}
	signals := make(chan os.Signal)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(ctx, signals) }()
	for range outcomes {
		signals <- syscall.SIGHUP
		<-ran
	}
	cancel()
	<-ended
	got := values(t, reg)
	if got["tidemark_config_reloads_total done"] != 2 || got["tidemark_config_reloads_total refused"] != 1 || got["tidemark_config_reload_ok"] != 1 {
		t.Errorf("after two good ones and a bad one between: %v", got)
	}
	for _, says := range []string{"log_level from info to debug", "data_dir cannot change", "level=ERROR"} {
		if !strings.Contains(log.String(), says) {
			t.Errorf("no word of %q in %s", says, log.String())
		}
	}
	if _, err := New(nil, slog.Default(), reg); err == nil {
		t.Error("the same metrics were registered twice")
	}
}

// Proves that a refused reload stays visible until a good one.
func TestRefusalStaysVisible(t *testing.T) {
	reg := prometheus.NewRegistry()
	r, err := New(func() ([]string, error) { return nil, errors.New("no") }, slog.New(slog.DiscardHandler), reg)
	if err != nil {
		t.Fatal(err)
	}
	if got := values(t, reg); got["tidemark_config_reload_ok"] != 1 || got["tidemark_config_reloads_total refused"] != 0 {
		t.Errorf("before any reload: %v", got)
	}
	r.once()
	if got := values(t, reg); got["tidemark_config_reload_ok"] != 0 || got["tidemark_config_reloads_total refused"] != 1 {
		t.Errorf("after a refusal: %v", got)
	}
}
