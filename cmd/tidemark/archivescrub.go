package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

func newArchiveScrub(p *process, c *connection) *cobra.Command {
	var run, asJSON bool
	var topic string
	cmd := &cobra.Command{
		Use: "scrub", Short: "Show what was verified of the stored segments, or verify them now",
		Long: `Show how far the node is in reading again what it has stored, on disk and in the
archive, and which copies it found damaged. A node does that by itself, slowly; with --run
it verifies everything, or one topic, now. The command does not wait for the end of it.
Exits 1 while there are damaged copies that could not be repaired.`,
		Example: `  tidemark archive scrub
  tidemark archive scrub --run --topic orders`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if topic != "" && !run {
				return usagef("--topic says what to verify now: it needs --run")
			}
			cl, err := c.open()
			if err != nil {
				return err
			}
			var r broker.ScrubReport
			if run {
				r, err = cl.StartScrub(cmd.Context(), topic)
			} else {
				r, err = cl.Scrub(cmd.Context())
			}
			if err != nil {
				return explain(err, c.address())
			}
			if asJSON {
				err = p.printJSON(r)
			} else {
				err = printScrub(p, r)
			}
			if err == nil && r.Unrepaired > 0 {
				err = fmt.Errorf("%d damaged copies of segments could not be repaired", r.Unrepaired)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&run, "run", false, "verify now")
	cmd.Flags().StringVar(&topic, "topic", "", "with --run: only this topic")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printScrub(p *process, r broker.ScrubReport) error {
	t := newTable("TIER", "ROUND", "BEGAN", "SEGMENTS", "READ", "LEFT", "DAMAGED", "REPAIRED", "UNREAD")
	row := func(tier, name string, x broker.ScrubRound, left string) {
		if x.StartedAt > 0 {
			t.row(tier, name, formatUnixMS(x.StartedAt), x.Segments, formatBytes(x.Bytes), left, x.Damaged, x.Repaired, x.Unread)
		}
	}
	for _, x := range []struct {
		name string
		broker.ScrubTier
	}{{"local", r.Local}, {"archive", r.Archive}} {
		if x.Round.EndedAt == 0 {
			row(x.name, "now", x.Round, formatBytes(x.LeftBytes))
		}
		row(x.name, "last", x.Last, "-")
	}
	if err := t.print(p.stdout); err != nil {
		return err
	}
	var b strings.Builder
	if r.IntervalMS == 0 {
		fmt.Fprintln(&b, "nothing is verified but what is asked for: scrub-interval is 0")
	}
	for _, x := range r.Asked {
		fmt.Fprintf(&b, "being verified now: topic %s, %d partitions are left\n", x.Topic, x.Partitions)
	}
	if why := r.Local.Paused; why != "" {
		fmt.Fprintf(&b, "local files are left alone: %s\n", why)
	}
	if why := r.Archive.Paused; why != "" && why != r.Local.Paused {
		fmt.Fprintf(&b, "objects are left alone: %s\n", why)
	}
	show := func(title string, list []broker.ScrubFinding) {
		for _, f := range list {
			fmt.Fprintf(&b, "%s %s %s%s, offsets %d to %d of partition %d of topic %s: %s; %s\n", formatUnixMS(f.At), title, f.File, f.Key, f.From, f.Next, f.Partition, f.TopicID, f.What, f.Done)
		}
	}
	show("DAMAGED", r.Findings)
	show("repaired", r.Repaired)
	_, err := fmt.Fprint(p.stdout, b.String())
	return err
}

func formatUnixMS(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }
