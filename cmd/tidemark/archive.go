package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

func newArchive(p *process, c *connection) *cobra.Command {
	cmd := family("archive", "Look after the archive of a running node", "  tidemark archive status\n  tidemark archive gc\n  tidemark archive scrub", newArchiveStatus(p, c), newArchiveGC(p, c), newArchiveScrub(p, c))
	c.flags(cmd)
	return cmd
}

func newArchiveGC(p *process, c *connection) *cobra.Command {
	var run, asJSON bool
	cmd := &cobra.Command{
		Use: "gc", Short: "Show what the archive no longer needs, and delete it",
		Long: `Show what the archive holds that nothing needs any more, why, and what hinders
its deletion. A node deletes it by itself, after a grace; with --run it takes a turn now.
The grace holds then too, and nothing is deleted that the node would not delete itself.`,
		Example: `  tidemark archive gc
  tidemark archive gc --run`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.open()
			if err != nil {
				return err
			}
			ask := cl.Garbage
			if run {
				ask = cl.CollectGarbage
			}
			r, err := ask(cmd.Context())
			if err != nil {
				return explain(err, c.address())
			}
			if asJSON {
				return p.printJSON(r)
			}
			return printGarbage(p, r)
		},
	}
	cmd.Flags().BoolVar(&run, "run", false, "delete what is due now")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printGarbage(p *process, r broker.GarbageReport) error {
	t := newTable("CAUSE", "WAITING", "BYTES", "OLDEST", "DELETED", "FREED", "WHAT")
	for _, c := range r.Causes {
		oldest := "-"
		if c.OldestMS > 0 {
			oldest = (time.Duration(c.OldestMS) * time.Millisecond).Round(time.Second).String()
		}
		t.row(c.Cause, c.Waiting, formatBytes(c.Bytes), oldest, c.Deleted, formatBytes(c.DeletedBytes), c.Why)
	}
	if err := t.print(p.stdout); err != nil {
		return err
	}
	var b strings.Builder
	for _, c := range r.Causes {
		for _, h := range c.Holds {
			fmt.Fprintf(&b, "%s: %s\n", c.Cause, h)
		}
	}
	if r.Paused != "" {
		fmt.Fprintf(&b, "paused: %s\n", r.Paused)
	}
	if r.RetryInMS > 0 {
		fmt.Fprintf(&b, "next try in %s\n", (time.Duration(r.RetryInMS) * time.Millisecond).Round(time.Second))
	}
	if r.LastTurnAt == 0 {
		fmt.Fprintln(&b, "no turn was taken yet: what an earlier process left is not known")
	}
	_, err := fmt.Fprint(p.stdout, b.String())
	return err
}
