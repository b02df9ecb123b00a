package main

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/storeurl"
)

// openStore opens the archive at a URL with everything that a node puts around
// it: metrics, deadlines, limits, retries. reg may be nil.
func openStore(ctx context.Context, raw string, log *slog.Logger, reg prometheus.Registerer) (objstore.Store, error) {
	u, err := archiveURL(raw)
	if err != nil {
		return nil, err
	}
	if _, err := storeurl.Parse(u); err != nil {
		return nil, usageError{err}
	}
	backend, err := storeurl.Open(ctx, u, storeurl.Options{Logger: log})
	if err != nil {
		return nil, err
	}
	metrics, err := objstore.NewMetrics(reg)
	if err != nil {
		_ = backend.Close() // nothing was sent yet
		return nil, err
	}
	return objstore.Stack(backend, objstore.StackOptions{Metrics: metrics}), nil
}
