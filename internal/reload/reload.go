package reload

import (
	"context"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"
)

// Func takes a new configuration over. It returns the changes for the log, none
// when there are none; with an error nothing has changed.
type Func func() (changes []string, err error)

// Reloader runs a Func at signals.
type Reloader struct {
	reload Func
	log    *slog.Logger
	done   prometheus.Counter
	refuse prometheus.Counter
	ok     prometheus.Gauge
}

// New returns a reloader whose outcomes go to log, and to reg unless it is nil.
func New(reload Func, log *slog.Logger, reg prometheus.Registerer) (*Reloader, error) {
	total := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tidemark_config_reloads_total",
		Help: "Reloads of the configuration by their result: done or refused.",
	}, []string{"result"})
	r := &Reloader{
		reload: reload, log: log, done: total.WithLabelValues("done"), refuse: total.WithLabelValues("refused"),
		ok: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tidemark_config_reload_ok",
			Help: "0 while the last reload of the configuration was refused, else 1.",
		}),
	}
	r.ok.Set(1)
	if reg != nil {
		for _, c := range []prometheus.Collector{total, r.ok} {
			if err := reg.Register(c); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

// Run reloads at each signal until ctx ends. A nil channel never has one.
func (r *Reloader) Run(ctx context.Context, signals <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			r.once()
		}
	}
}

func (r *Reloader) once() {
	changes, err := r.reload()
	// The log first: who sees the count finds the reason.
	if err != nil {
		r.log.Error("the new configuration is refused, the node goes on with the one it has", "error", err)
		r.refuse.Inc()
		r.ok.Set(0)
		return
	}
	r.log.Info("the configuration was read again", "changes", append([]string{}, changes...)) // [] in the log, not null
	r.done.Inc()
	r.ok.Set(1)
}
