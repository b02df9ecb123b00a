package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/node/repair"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

func newWALRepair(p *process) *cobra.Command {
	var apply, asJSON bool
	var archive string
	cmd := &cobra.Command{
		Use: "repair DIR", Short: "Make a data directory start again whose write-ahead log is damaged",
		Long: `Make a data directory start again whose write-ahead log is damaged. Without --apply
it prints what it would do and changes nothing: which LSNs do not verify, which of
them the archive still has, which offsets of which partitions are lost for good.

With --archive, frames that the archive has fill the holes. When they fill all of
them, only the damaged files are written anew: nothing is lost, nothing else changes.

Otherwise the directory is rebuilt: every record that survives keeps its offset, lost
offsets stay empty, and the directory gets a new incarnation and each partition a new
generation that goes on 2^32 offsets above its end, so that no offset is given out
twice. What is replaced is kept in wal/damaged-<time>.

The node must be stopped. An interrupted repair is run again.`,
		Example: `  tidemark wal repair /var/lib/tidemark
  tidemark wal repair /var/lib/tidemark --archive 's3://bucket/prod?region=eu-west-1'
  tidemark wal repair /var/lib/tidemark --archive file:///srv/archive --apply`,
		Args: args("DIR"),
	}
	f := cmd.Flags()
	f.BoolVar(&apply, "apply", false, "carry the plan out")
	f.StringVar(&archive, "archive", "", "object store of this node, to fill holes from: s3://bucket/prefix or file:///dir")
	f.BoolVar(&asJSON, "json", false, "print the plan (with --apply the report) as JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		dir, err := filepath.Abs(args[0])
		if err != nil {
			return usagef("repair: %w", err)
		}
		o := repair.Options{Dir: dir, Logger: slog.New(slog.NewTextHandler(p.stderr, &slog.HandlerOptions{Level: slog.LevelError}))}
		if archive != "" {
			store, done, err := openBucket(cmd.Context(), p, archive, objstore.CauseRestore)
			if err != nil {
				return err
			}
			defer done()
			o.Store = store
		}
		return runRepair(cmd.Context(), p, o, apply, asJSON)
	}
	return cmd
}

func runRepair(ctx context.Context, p *process, o repair.Options, apply, asJSON bool) error {
	if !apply {
		plan, err := repair.Look(ctx, o)
		if err != nil {
			return err
		}
		if asJSON {
			return p.printJSON(plan)
		}
		if err := printRepairPlan(p.stdout, plan); err != nil || plan.Action == repair.Nothing {
			return err
		}
		_, err = fmt.Fprintln(p.stdout, "nothing was changed; --apply does it")
		return err
	}
	report, err := repair.Run(ctx, o, func(plan *repair.Plan) error {
		if asJSON {
			return nil
		}
		return printRepairPlan(p.stdout, plan)
	})
	if err != nil {
		return err
	}
	if asJSON {
		return p.printJSON(report)
	}
	if report.Action == repair.Nothing {
		return nil
	}
	t := newTable()
	t.row("repaired", report.Dir)
	if report.NewIncarnation != "" {
		t.row("new incarnation", report.NewIncarnation)
	}
	t.row("replaced files", report.Kept)
	t.row("took", report.Took.Round(time.Millisecond).String())
	return t.print(p.stdout)
}

func printRepairPlan(w io.Writer, p *repair.Plan) error {
	t := newTable()
	t.row("directory", p.Dir)
	t.row("incarnation", p.Incarnation)
	t.row("what to do", map[repair.Action]string{
		repair.Nothing: "nothing: the log verifies",
		repair.Refill:  "refill: write the damaged files anew, with what the archive has; nothing is lost",
		repair.Rebuild: "rebuild: frames are lost; new incarnation, new generations",
		repair.Resume:  "resume: put in place what an interrupted repair has built",
	}[p.Action])
	if p.Action != repair.Resume {
		t.row("in the log", fmt.Sprintf("LSN %d..%d, %d frames of them are there", p.FirstLSN, p.NextLSN-1, p.Frames))
	}
	if p.Archive != "" {
		t.row("archive", p.Archive)
	}
	if err := t.print(w); err != nil {
		return err
	}
	if err := printDamage(w, p); err != nil {
		return err
	}
	if len(p.Partitions) > 0 {
		t := newTable("TOPIC", "PARTITION", "RECORDS END", "OF THE LOG ALONE", "LOST OFFSETS", "GENERATION", "GOES ON AT")
		for _, x := range p.Partitions {
			t.row(x.Topic, x.Partition, x.End, x.FromLog, lostOffsets(x), x.Generation, x.Start)
		}
		if err := t.print(w); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(w, "acks in lost frames are lost too: such records are delivered again"); err != nil {
			return err
		}
	}
	for _, a := range p.Advice {
		if _, err := fmt.Fprintf(w, "advice: %s\n", a); err != nil {
			return err
		}
	}
	return nil
}

func printDamage(w io.Writer, p *repair.Plan) error {
	if len(p.Damage) == 0 {
		return nil
	}
	t := newTable("DAMAGED FILE", "POSITION", "LSN", "WHY")
	for _, d := range p.Damage {
		t.row(d.File, d.Position, lsnSpan(d.From, d.Next, d.Open), oneLine(d.Why))
	}
	if err := t.print(w); err != nil {
		return err
	}
	spans := func(what string, list []repair.LSNs) error {
		if len(list) == 0 {
			return nil
		}
		var parts []string
		for _, l := range list {
			parts = append(parts, lsnSpan(l.From, l.Next, l.Open))
		}
		_, err := fmt.Fprintf(w, "%s: LSN %s\n", what, strings.Join(parts, ", "))
		return err
	}
	if err := spans("the archive has", p.Filled); err != nil {
		return err
	}
	return spans("lost for good", p.Lost)
}

func lsnSpan(from, next uint64, open bool) string {
	switch {
	case next == from && open:
		return fmt.Sprintf("%d and an unknown number behind it", from)
	case next == from:
		return "none lost"
	case open:
		return fmt.Sprintf("%d..%d, perhaps more", from, next-1)
	default:
		return fmt.Sprintf("%d..%d", from, next-1)
	}
}

func lostOffsets(x repair.Partition) string {
	var parts []string
	for _, r := range x.Lost {
		parts = append(parts, offsetSpan(r[0], r[1]))
	}
	if x.EndUnknown {
		parts = append(parts, fmt.Sprintf("%d.. perhaps", x.End))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
