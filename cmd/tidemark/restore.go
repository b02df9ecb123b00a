package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node/restore"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

func newRestore(p *process) *cobra.Command {
	var archive, dir, nodeID, raftAddr string
	var takeOver, force, dryRun, asJSON bool
	cmd := &cobra.Command{
		Use: "restore --archive URL --data-dir DIR", Short: "Rebuild a node from the archive alone",
		Long: `Rebuild a node from the archive alone: topics, records and group positions.

The plan is printed first; --dry-run stops after it and changes nothing. With
--take-over the restored node goes on in the same archive, and the node that
wrote it is fenced: it serves no more, even when it comes back. A cluster that
is seen writing is refused unless --force is given. Nothing that exists on disk
is overwritten.`,
		Example: `  tidemark restore --archive file:///srv/archive --data-dir /var/lib/tidemark --dry-run
  tidemark restore --archive 's3://bucket/prod?region=eu-west-1' --data-dir /var/lib/tidemark --take-over`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case archive == "":
				return usagef("restore: --archive is missing: name the object store, for example s3://bucket/prefix or file:///dir")
			case dir == "":
				return usagef("restore: --data-dir is missing: name the directory to create")
			case !takeOver && !dryRun:
				return usagef("restore: say --take-over to go on in this archive, which fences the node that wrote it, or --dry-run to see the plan")
			}
			if err := broker.ValidateName("node", nodeID); err != nil {
				return usagef("--node-id: %w", err)
			}
			abs, err := filepath.Abs(dir)
			if err != nil {
				return usagef("--data-dir: %w", err)
			}
			return runRestore(cmd.Context(), p, archive, restoreArgs{
				asJSON: asJSON, dryRun: dryRun,
				o: restore.Options{Dir: abs, NodeID: nodeID, RaftAddr: raftAddr, TakeOver: takeOver, Force: force},
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&archive, "archive", "", "object store to restore from: s3://bucket/prefix or file:///dir")
	f.StringVar(&dir, "data-dir", "", "directory to create; it must not exist, or be empty")
	f.BoolVar(&takeOver, "take-over", false, "go on in this archive and fence the node that wrote it")
	f.BoolVar(&force, "force", false, "take over although the cluster is seen writing")
	f.BoolVar(&dryRun, "dry-run", false, "print the plan and change nothing")
	f.StringVar(&nodeID, "node-id", "node-1", "name of the restored node; serve must be given the same")
	f.StringVar(&raftAddr, "raft-addr", "127.0.0.1:0", "loopback address for the metadata plane while restoring")
	f.BoolVar(&asJSON, "json", false, "print the report (with --dry-run the plan) as JSON")
	return cmd
}

type restoreArgs struct {
	asJSON, dryRun bool
	o              restore.Options
}

func runRestore(ctx context.Context, p *process, archive string, a restoreArgs) error {
	store, done, err := openBucket(ctx, p, archive, objstore.CauseRestore)
	if err != nil {
		return err
	}
	defer done()
	a.o.Store = store
	a.o.Logger = slog.New(slog.NewTextHandler(p.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if isTerminal(p.stderr) {
		p.say("looking at %s, and whether somebody writes there", store.Capabilities().URL)
	}
	if a.dryRun {
		plan, err := restore.Look(ctx, a.o)
		if err != nil {
			return err
		}
		if a.asJSON {
			return p.printJSON(plan)
		}
		return printPlan(p.stdout, &plan)
	}
	if !a.asJSON {
		a.o.Planned = func(plan restore.Plan) error { return printPlan(p.stdout, &plan) }
	}
	bars := newBars(p.stderr)
	a.o.Progress = bars.progress
	report, err := restore.Run(ctx, a.o)
	bars.wait(err == nil)
	if err != nil {
		return err
	}
	if a.asJSON {
		return p.printJSON(report)
	}
	return printReport(p.stdout, report)
}

func printPlan(w io.Writer, p *restore.Plan) error {
	t := newTable()
	t.row("archive", p.Archive)
	t.row("cluster", p.ClusterID)
	t.row("generation", fmt.Sprintf("%d, restored as %d", p.Generation, p.NewGeneration))
	t.row("topics", p.Topics)
	if p.DeletedTopics > 0 {
		t.row("deleted topics", fmt.Sprintf("%d that the metadata still names: not restored", p.DeletedTopics))
	}
	t.row("partitions", p.Partitions)
	t.row("archived records", fmt.Sprintf("%d in %d segments, %s; they stay in the archive", p.ArchivedRecords, p.Segments, formatBytes(p.ArchivedBytes)))
	t.row("WAL to replay", fmt.Sprintf("%d objects, %s", p.WALObjects, formatBytes(p.WALBytes)))
	if len(p.TornEntries) > 0 {
		t.row("torn entries", fmt.Sprintf("%d chain entries do not read, %s first: passed, nothing rests on them", len(p.TornEntries), p.TornEntries[0]))
	}
	t.row("newest object", when(p.NewestObject))
	t.row("may be missing", fmt.Sprintf("what was accepted after it: about %d records, if they came as before", p.MayBeMissing))
	state := "no write seen"
	if p.Alive {
		state = "ALIVE: it is writing now"
	}
	t.row("old cluster", state)
	return t.print(w)
}

func printReport(w io.Writer, r *restore.Report) error {
	t := newTable()
	t.row("restored to", r.Dir)
	t.row("incarnation", r.Incarnation)
	t.row("from the WAL", fmt.Sprintf("%d records, %s", r.TailRecords, formatBytes(r.TailBytes)))
	if r.UnknownFrames > 0 {
		t.row("not restored", fmt.Sprintf("%d frames of topics that are unknown", r.UnknownFrames))
	}
	if len(r.Damaged) > 0 {
		t.row("damaged", fmt.Sprintf("%d objects, %s first; what they held stands in others too", len(r.Damaged), r.Damaged[0]))
	}
	t.row("newest record", when(r.NewestRecord))
	t.row("took", r.Took.Round(time.Millisecond).String())
	return t.print(w)
}
