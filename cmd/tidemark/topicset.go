package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

func newTopicSet(p *process, c *connection) *cobra.Command {
	var asJSON bool
	var settings topicFlags
	cmd := &cobra.Command{
		Use: "set NAME", Short: "Change the settings of a topic",
		Long: `Change settings of a topic: all that are given, or none. They hold from then on, without a restart; what is not
given stays as it is. Leases that were given out keep their length.`,
		Example: `  tidemark topic set orders --retention 720h --visibility-timeout 1m
  tidemark topic set audit --default-ack archived --json`,
		Args: args("NAME"),
	}
	settings.add(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := broker.ValidateName("topic", args[0]); err != nil {
			return usageError{err}
		}
		var change broker.TopicSpec
		if err := settings.lay(cmd.Flags(), &change); err != nil {
			return err
		}
		if change == (broker.TopicSpec{}) {
			return usagef("no setting is given; --help lists them")
		}
		cl, err := c.open()
		if err != nil {
			return err
		}
		info, err := cl.SetTopic(cmd.Context(), args[0], change)
		if err != nil {
			return explain(err, c.address())
		}
		if asJSON {
			return p.printJSON(info)
		}
		_, err = fmt.Fprintf(p.stdout, "changed topic %s\n", info.Name)
		return err
	}
	return cmd
}

// topicFlags are the settings of a topic as flags, the same for a new topic and
// for one that is changed.
type topicFlags struct {
	retention, localRetention, visibility            time.Duration
	retentionBytes, localRetentionBytes, recordBytes string
	inFlight                                         int64
	ack, failover, compression                       string
}

func (t *topicFlags) add(f *pflag.FlagSet) {
	f.DurationVar(&t.retention, "retention", 0, "time after which records are removed, also from the archive; 0s keeps them for ever")
	f.DurationVar(&t.localRetention, "local-retention", 0, "time after which archived records leave the local disk")
	f.DurationVar(&t.visibility, "visibility-timeout", 0, "how long a consumer holds a record before it goes back")
	f.StringVar(&t.retentionBytes, "retention-bytes", "", "size of a partition above which its oldest records are removed")
	f.StringVar(&t.localRetentionBytes, "local-retention-bytes", "", "size of a partition on local disk above which archived records leave it")
	f.StringVar(&t.recordBytes, "max-record-bytes", "", "largest value of a record, up to 16MiB")
	f.Int64Var(&t.inFlight, "max-in-flight", 0, "records of one partition that consumers hold at once")
	f.StringVar(&t.ack, "default-ack", "", "level of a produce that names none: accepted, committed or archived")
	f.StringVar(&t.failover, "failover", "", "automatic or wait")
	f.StringVar(&t.compression, "compression", "", "zstd or none")
}

// lay puts the settings that were given into spec.
func (t *topicFlags) lay(f *pflag.FlagSet, spec *broker.TopicSpec) error {
	for _, d := range []struct {
		name  string
		value time.Duration
		to    **int64
	}{
		{"retention", t.retention, &spec.RetentionMS},
		{"local-retention", t.localRetention, &spec.LocalRetentionMS},
		{"visibility-timeout", t.visibility, &spec.VisibilityTimeoutMS},
	} {
		if !f.Changed(d.name) {
			continue
		}
		ms := d.value.Milliseconds()
		if ms < 0 || d.value > 0 && ms == 0 {
			return usagef("--%s %s is not a whole number of milliseconds from 0 on", d.name, d.value)
		}
		*d.to = &ms
	}
	for _, s := range []struct {
		name, value string
		to          **int64
	}{
		{"retention-bytes", t.retentionBytes, &spec.RetentionBytes},
		{"local-retention-bytes", t.localRetentionBytes, &spec.LocalRetentionBytes},
		{"max-record-bytes", t.recordBytes, &spec.MaxRecordBytes},
	} {
		if !f.Changed(s.name) {
			continue
		}
		n, err := parseBytes(s.value)
		if err != nil {
			return usagef("--%s: %w", s.name, err)
		}
		*s.to = &n
	}
	if f.Changed("max-in-flight") {
		spec.MaxInFlightPerPartition = &t.inFlight
	}
	if f.Changed("default-ack") {
		level, err := parseAck(t.ack)
		if err != nil {
			return err
		}
		spec.DefaultAck = &level
	}
	if f.Changed("failover") {
		spec.Failover = &t.failover
	}
	if f.Changed("compression") {
		spec.Compression = &t.compression
	}
	return nil
}
