package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func newHealthcheck(p *process, c *connection) *cobra.Command {
	var timeout time.Duration
	var ready bool
	cmd := &cobra.Command{
		Use: "healthcheck", Short: "Ask a node whether it is alive",
		Long: "Ask a node for /healthz and exit 0 when it answers, else 1. With --ready it has to be ready for data too.",
		Example: `  tidemark healthcheck
  tidemark healthcheck --server http://node-1:7942 --ready`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			path := "/healthz"
			if ready {
				path = "/readyz"
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return askHealth(ctx, p, c, path)
		},
	}
	c.flags(cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", 2*time.Second, "how long to wait for the answer")
	cmd.Flags().BoolVar(&ready, "ready", false, "ask for /readyz")
	return cmd
}

func askHealth(ctx context.Context, p *process, c *connection, path string) error {
	to, err := c.resolve()
	if err != nil {
		return err
	}
	server := to.server
	if err := checkServer(server); err != nil {
		return err
	}
	target := strings.TrimSuffix(server, "/") + path
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return usagef("--server: %w", err)
	}
	hc, err := c.client()
	if err != nil {
		return err
	}
	res, err := hc.Do(req)
	if err != nil {
		return explain(err, server)
	}
	defer func() { _ = res.Body.Close() }() // the status is the answer
	if res.StatusCode != http.StatusOK {
		body, _ := readAtMost(res.Body, "the answer", 64<<10)
		return fmt.Errorf("%s answers %s: %.1000s", target, res.Status, strings.TrimSpace(string(body)))
	}
	_, err = fmt.Fprintln(p.stdout, "ok")
	return err
}
