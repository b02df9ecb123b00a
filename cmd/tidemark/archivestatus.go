package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/api/client"
	"github.com/tidemark-mq/tidemark/internal/broker"
)

func newArchiveStatus(p *process, c *connection) *cobra.Command {
	var topic string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "status", Short: "Show how far the archive is behind, and what it costs",
		Long: `Show how far the archive is behind the node, by topic: records, bytes, and the age of
the oldest record that is in no archived segment yet. Above that stand what a lost machine
would cost now (RPO), since when the archive fails if it does, how the cache does, and what
requests were made why, with their price at list prices of S3. Counts are since the start
of the node. Exits 1 while the archive fails.`,
		Example: `  tidemark archive status
  tidemark archive status --topic orders`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.open()
			if err != nil {
				return err
			}
			s, err := wholeArchiveStatus(cmd.Context(), cl, topic)
			if err != nil {
				return explain(err, c.address())
			}
			if asJSON {
				err = p.printJSON(s)
			} else {
				err = printArchiveStatus(p, s)
			}
			if err == nil && s.Outage != nil {
				err = fmt.Errorf("the archive fails: %s", s.Outage.LastError)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&topic, "topic", "", "only this topic, with its partitions")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// wholeArchiveStatus asks for one topic, or page by page for all of them.
func wholeArchiveStatus(ctx context.Context, cl *client.Client, topic string) (broker.ArchiveStatus, error) {
	if topic != "" {
		return cl.ArchiveStatus(ctx, client.ArchivePage{Topic: topic})
	}
	s, err := cl.ArchiveStatus(ctx, client.ArchivePage{Limit: 1000})
	for err == nil && s.NextPageToken != "" {
		var more broker.ArchiveStatus
		more, err = cl.ArchiveStatus(ctx, client.ArchivePage{Limit: 1000, Token: s.NextPageToken})
		s.Topics, s.NextPageToken = append(s.Topics, more.Topics...), more.NextPageToken
	}
	return s, err
}

func printArchiveStatus(p *process, s broker.ArchiveStatus) error {
	var b strings.Builder
	fmt.Fprintf(&b, "lag     %s\n", lagText(s.Lag))
	fmt.Fprintf(&b, "rpo     %s\n", secondsText(s.RPOSeconds))
	fmt.Fprintf(&b, "outage  %s\n", outageText(s.Outage, time.Now()))
	fmt.Fprintf(&b, "cache   %s of %s, %d hits, %d misses (%.0f %% hits), %s downloaded\n",
		formatBytes(s.Cache.Bytes), formatBytes(s.Cache.MaxBytes), s.Cache.Hits, s.Cache.Misses, 100*s.Cache.HitRatio, formatBytes(s.Cache.Downloaded))
	fmt.Fprintf(&b, "cost    about %.4f $ of requests in %s, %s sent, %s received\n\n",
		s.Cost.Dollars, secondsText(s.Cost.UptimeSeconds), formatBytes(s.Cost.SentBytes), formatBytes(s.Cost.ReceivedBytes))
	if _, err := fmt.Fprint(p.stdout, b.String()); err != nil {
		return err
	}
	if len(s.Cost.Causes) > 0 {
		t := newTable("CAUSE", "REQUESTS", "DOLLARS", "SENT", "RECEIVED")
		for _, c := range s.Cost.Causes {
			t.row(c.Cause, requestsText(c.Requests), fmt.Sprintf("%.4f", c.Dollars), formatBytes(c.SentBytes), formatBytes(c.ReceivedBytes))
		}
		if err := t.print(p.stdout); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(p.stdout); err != nil {
			return err
		}
	}
	t := newTable("TOPIC", "PARTITION", "ARCHIVED", "LAG RECORDS", "LAG BYTES", "OLDEST")
	for _, topic := range s.Topics {
		t.row(topic.Topic, "all", formatBytes(topic.ArchivedBytes), topic.Lag.Records, formatBytes(topic.Lag.Bytes), secondsText(topic.Lag.Seconds))
		for _, part := range topic.Partitions {
			t.row("", part.Partition, formatBytes(part.ArchivedBytes), part.Lag.Records, formatBytes(part.Lag.Bytes), secondsText(part.Lag.Seconds))
		}
	}
	return t.print(p.stdout)
}

func lagText(l broker.ArchiveLag) string {
	if l.Records == 0 && l.Bytes == 0 {
		return "none"
	}
	return fmt.Sprintf("%d records, %s, the oldest %s old", l.Records, formatBytes(l.Bytes), secondsText(l.Seconds))
}

// secondsText writes a length of time for people: "-" is none.
func secondsText(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d <= 0:
		return "-"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	default:
		return d.Round(time.Second).String()
	}
}

func outageText(o *broker.ArchiveOutage, now time.Time) string {
	switch {
	case o == nil:
		return "none"
	case o.Since == 0:
		return o.LastError
	default:
		since := time.UnixMilli(o.Since)
		return fmt.Sprintf("since %s (%s): %s", since.UTC().Format(time.RFC3339), secondsText(now.Sub(since).Seconds()), o.LastError)
	}
}

// requestsText writes counts by operation, by name.
func requestsText(counts map[string]int64) string {
	var parts []string
	for _, op := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[op], op))
	}
	return strings.Join(parts, ", ")
}
