package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

func newTopic(p *process, c *connection) *cobra.Command {
	cmd := family("topic", "Create, list, describe, change, trim and remove topics", "  tidemark topic ls",
		newTopicCreate(p, c), newTopicLs(p, c), newTopicInfo(p, c), newTopicSet(p, c), newTopicTrim(p, c), newTopicRm(p, c))
	c.flags(cmd)
	return cmd
}

func newTopicCreate(p *process, c *connection) *cobra.Command {
	var asJSON bool
	var partitions uint32
	var settings topicFlags
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a topic",
		Long: "Create a topic. The number of partitions is fixed for ever; what is not given takes the node's defaults.",
		Example: `  tidemark topic create orders --partitions 6 --retention 720h
  tidemark topic create audit --retention 0s --default-ack archived`,
		Args: args("NAME"),
	}
	f := cmd.Flags()
	f.Uint32Var(&partitions, "partitions", broker.DefaultPartition, "number of partitions, 1 to 1024")
	settings.add(f)
	f.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := broker.ValidateName("topic", args[0]); err != nil {
			return usageError{err}
		}
		spec := broker.TopicSpec{Name: args[0]}
		if f.Changed("partitions") {
			if partitions == 0 || partitions > broker.MaxPartitions {
				return usagef("--partitions %d is not between 1 and %d", partitions, broker.MaxPartitions)
			}
			spec.Partitions = &partitions
		}
		if err := settings.lay(f, &spec); err != nil {
			return err
		}
		cl, err := c.open()
		if err != nil {
			return err
		}
		info, err := cl.CreateTopic(cmd.Context(), spec)
		if err != nil {
			return explain(err, c.address())
		}
		if asJSON {
			return p.printJSON(info)
		}
		_, err = fmt.Fprintf(p.stdout, "created topic %s with %d partitions\n", info.Name, info.Partitions)
		return err
	}
	return cmd
}

// parseAck reads a level of a produce; "" is the topic's.
func parseAck(text string) (broker.Ack, error) {
	switch a := broker.Ack(text); a {
	case broker.AckDefault, broker.AckAccepted, broker.AckCommitted, broker.AckArchived:
		return a, nil
	}
	return "", usagef("ack level %q is not one of accepted, committed, archived", text)
}

func newTopicLs(p *process, c *connection) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "ls", Short: "List topics", Example: "  tidemark topic ls --json",
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.open()
			if err != nil {
				return err
			}
			all := []broker.TopicInfo{}
			for token := ""; ; {
				page, next, err := cl.Topics(cmd.Context(), token, 1000)
				if err != nil {
					return explain(err, c.address())
				}
				all = append(all, page...)
				if next == "" {
					break
				}
				token = next
			}
			if asJSON {
				return p.printJSON(all)
			}
			t := newTable("TOPIC", "PARTITIONS", "RETENTION", "DEFAULT ACK", "CREATED")
			for _, i := range all {
				t.row(i.Name, i.Partitions, retention(i.RetentionMS, i.RetentionBytes), i.DefaultAck, when(time.Unix(i.CreatedAt, 0)))
			}
			return t.print(p.stdout)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// retention says how long records stay.
func retention(ms, bytes int64) string {
	text := "for ever"
	if ms > 0 {
		text = (time.Duration(ms) * time.Millisecond).String()
	}
	if bytes > 0 {
		text += ", " + formatBytes(bytes)
	}
	return text
}

// when writes a time for people, "-" for none.
func when(t time.Time) string {
	if t.IsZero() || t.Unix() == 0 {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

func newTopicInfo(p *process, c *connection) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "info NAME", Short: "Describe a topic and its partitions", Example: "  tidemark topic info orders",
		Args: args("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.open()
			if err != nil {
				return err
			}
			info, err := cl.Topic(cmd.Context(), args[0])
			if err != nil {
				return explain(err, c.address())
			}
			if asJSON {
				return p.printJSON(info)
			}
			return printTopic(p, info)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printTopic(p *process, info broker.TopicInfo) error {
	facts := newTable()
	facts.row("topic", info.Name)
	facts.row("id", info.ID.String())
	facts.row("created", when(time.Unix(info.CreatedAt, 0)))
	facts.row("partitions", info.Partitions)
	facts.row("retention", retention(info.RetentionMS, info.RetentionBytes))
	facts.row("local retention", retention(info.LocalRetentionMS, info.LocalRetentionBytes))
	facts.row("visibility timeout", (time.Duration(info.VisibilityTimeoutMS) * time.Millisecond).String())
	facts.row("in flight", fmt.Sprintf("at most %d a partition", info.MaxInFlightPerPartition))
	facts.row("largest record", formatBytes(info.MaxRecordBytes))
	facts.row("default ack", string(info.DefaultAck))
	facts.row("failover", info.Failover)
	facts.row("compression", info.Compression)
	if err := facts.print(p.stdout); err != nil {
		return err
	}
	t := newTable("PARTITION", "OLDEST", "HIGH WATERMARK", "ARCHIVED", "SIZE", "LOCAL", "IN ARCHIVE", "SEGMENTS", "GENERATION", "OWNER", "STATUS")
	for _, s := range info.PartitionStats {
		t.row(strconv.FormatUint(uint64(s.Index), 10), s.OldestOffset, s.HighWatermark, s.ArchivedOffset,
			formatBytes(s.SizeBytes), formatBytes(s.LocalBytes), formatBytes(s.ArchivedBytes), s.Segments, s.Generation, s.OwnerNode, s.Status)
	}
	return t.print(p.stdout)
}

func newTopicTrim(p *process, c *connection) *cobra.Command {
	var partition uint32
	var before int64
	var asJSON bool
	cmd := &cobra.Command{
		Use: "trim NAME", Short: "Remove the oldest records of a partition",
		Long: `Remove the records of a partition below an offset. The offset is the first one that stays; up to the
end of the log, which leaves it empty. Offsets go on where they were. What was removed cannot be brought back.`,
		Example: "  tidemark topic trim orders --partition 0 --before 120000",
		Args:    args("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range []string{"partition", "before"} {
				if !cmd.Flags().Changed(name) {
					return usagef("--%s is missing", name)
				}
			}
			cl, err := c.open()
			if err != nil {
				return err
			}
			oldest, err := cl.Trim(cmd.Context(), args[0], partition, before)
			if err != nil {
				return explain(err, c.address())
			}
			if asJSON {
				return p.printJSON(map[string]any{"topic": args[0], "partition": partition, "oldest_offset": oldest})
			}
			_, err = fmt.Fprintf(p.stdout, "partition %d of topic %s begins at offset %d\n", partition, args[0], oldest)
			return err
		},
	}
	cmd.Flags().Uint32Var(&partition, "partition", 0, "partition")
	cmd.Flags().Int64Var(&before, "before", 0, "first offset to keep")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newTopicRm(p *process, c *connection) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "rm NAME", Short: "Remove a topic and everything in it",
		Long:    "Remove a topic and everything in it. Without --force a topic that has unsettled records is refused.",
		Example: "  tidemark topic rm orders --force",
		Args:    args("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.open()
			if err != nil {
				return err
			}
			if err := cl.DeleteTopic(cmd.Context(), args[0], force); err != nil {
				return explain(err, c.address())
			}
			_, err = fmt.Fprintf(p.stdout, "removed topic %s\n", args[0])
			return err
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "although records are not settled yet")
	return cmd
}
