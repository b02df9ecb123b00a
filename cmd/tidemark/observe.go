package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
)

// logForm is what can be changed of a log while it is written.
type logForm struct {
	level slog.LevelVar
	text  atomic.Bool
}

func (f *logForm) use(c *config) {
	f.level.Set(c.LogLevel)
	f.text.Store(c.LogFormat == "text")
}

// newLogger returns the node's log.
func newLogger(w io.Writer, c *config) (*slog.Logger, *logForm) {
	f := &logForm{}
	f.use(c)
	o := &slog.HandlerOptions{Level: &f.level}
	return slog.New(&twoForms{form: f, json: slog.NewJSONHandler(w, o), text: slog.NewTextHandler(w, o)}), f
}

// twoForms writes a log in the form that is asked for now. Each form is written
// by one call of Write.
type twoForms struct {
	form       *logForm
	json, text slog.Handler
}

func (h *twoForms) now() slog.Handler {
	if h.form.text.Load() {
		return h.text
	}
	return h.json
}

// Enabled implements slog.Handler.
func (h *twoForms) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.form.level.Level()
}

// Handle implements slog.Handler.
func (h *twoForms) Handle(ctx context.Context, r slog.Record) error { return h.now().Handle(ctx, r) }

// WithAttrs implements slog.Handler.
func (h *twoForms) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &twoForms{form: h.form, json: h.json.WithAttrs(attrs), text: h.text.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h *twoForms) WithGroup(name string) slog.Handler {
	return &twoForms{form: h.form, json: h.json.WithGroup(name), text: h.text.WithGroup(name)}
}

// metricsRoutes are what the metrics listener answers. Health asks the same
// routes as the API's listener, which need no credentials.
func metricsRoutes(metrics, health http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.Handle("GET /healthz", health)
	mux.Handle("GET /readyz", health)
	return mux
}

func pprofRoutes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}
