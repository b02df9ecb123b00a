package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/tier/bucket"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

func newBucketVerify(p *process) *cobra.Command {
	var deep, asJSON bool
	var topic string
	cmd := &cobra.Command{
		Use: "verify URL", Short: "Check an archive against its own manifests",
		Long: `Check that everything the chains name is there, without holes and overlaps, that the
shipped write-ahead log has none either, and that claims, OPEN and FENCE objects and
the newest metadata read. With --deep every object is read and every checksum
computed: each batch of each segment, each frame of the log, states of groups, all
metadata; overlapping log objects must hold the same frames. Memory is bounded by
one object of the log and eight parts of segments. Exits 1 when there is a problem;
notes are what a running or killed cluster leaves behind, and no problem.`,
		Example: "  tidemark bucket verify 's3://bucket/prod?region=eu-west-1' --deep",
		Args:    args("URL"),
	}
	cmd.Flags().BoolVar(&deep, "deep", false, "read every object and compute every checksum")
	cmd.Flags().StringVar(&topic, "topic", "", "id of the one topic to check, 16 hexadecimal digits")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o := bucket.Options{Deep: deep, Decoders: decoders}
		if topic != "" {
			id, err := broker.ParseTopicID(topic)
			if err != nil {
				return usagef("--topic: %w", err)
			}
			o.Topic = &id
		}
		store, done, err := openBucket(cmd.Context(), p, args[0], objstore.CauseScrub)
		if err != nil {
			return err
		}
		defer done()
		return verify(cmd.Context(), p, store, o, asJSON)
	}
	return cmd
}

// verification is the JSON form of a verify.
type verification struct {
	Summary  summary   `json:"summary"`
	Findings []finding `json:"findings"`
}

type summary struct {
	Topics       int   `json:"topics"`
	Partitions   int   `json:"partitions"`
	Entries      int   `json:"chain_entries"`
	Segments     int64 `json:"segments"`
	SegmentBytes int64 `json:"segment_bytes"`
	Orphans      int   `json:"orphans"`
	OrphanBytes  int64 `json:"orphan_bytes"`
	WALObjects   int   `json:"wal_objects"`
	WALBytes     int64 `json:"wal_bytes"`
	States       int   `json:"states"`
	Exports      int   `json:"metadata_exports"`
	DeepBytes    int64 `json:"checksummed_bytes"`
	Problems     int   `json:"problems"`
	Notes        int   `json:"notes"`
}

func summaryOf(s bucket.Summary) summary {
	return summary{
		Topics: s.Topics, Partitions: s.Partitions, Entries: s.Entries,
		Segments: s.Segments.Segments, SegmentBytes: s.Segments.Bytes, Orphans: s.Orphans, OrphanBytes: s.OrphanSize,
		WALObjects: s.WALObjects, WALBytes: s.WALBytes, States: s.States, Exports: s.Exports, DeepBytes: s.Deep, Problems: s.Problems, Notes: s.Notes,
	}
}

type finding struct {
	What      bucket.What `json:"what"`
	Problem   bool        `json:"problem"`
	Partition string      `json:"partition,omitempty"`
	Key       string      `json:"key,omitempty"`
	From      int64       `json:"from,omitempty"`
	Next      int64       `json:"next,omitempty"`
	Detail    string      `json:"detail,omitempty"`
}

// maxFindings bounds what is kept of a badly damaged archive.
const maxFindings = 10000

func verify(ctx context.Context, p *process, store objstore.Store, o bucket.Options, asJSON bool) error {
	out := verification{Findings: []finding{}}
	bars := newBars(p.stderr)
	o.Progress = func(done, total int64) { bars.progress("checksums", done, total) }
	if !o.Deep || bars.all == nil {
		o.Progress = nil
	}
	sum, err := bucket.Verify(ctx, store, o, func(f bucket.Finding) {
		if len(out.Findings) >= maxFindings {
			return
		}
		g := finding{What: f.What, Problem: !f.What.Note(), Key: f.Key, From: f.From, Next: f.Next, Detail: oneLine(f.Detail)}
		if f.Partition != (broker.PartitionID{}) {
			g.Partition = f.Partition.String()
		}
		out.Findings = append(out.Findings, g)
	})
	bars.wait(err == nil)
	if err != nil {
		return err
	}
	out.Summary = summaryOf(sum)
	if asJSON {
		err = p.printJSON(out)
	} else {
		err = printVerification(p, &out)
	}
	if err == nil && out.Summary.Problems > 0 {
		return fmt.Errorf("the archive has %d problems", out.Summary.Problems)
	}
	return err
}

func printVerification(p *process, v *verification) error {
	if len(v.Findings) > 0 {
		t := newTable("KIND", "WHAT", "PARTITION", "RANGE", "OBJECT", "DETAIL")
		for _, f := range v.Findings {
			kind, span := "note", ""
			if f.Problem {
				kind = "PROBLEM"
			}
			if f.Next > f.From {
				span = fmt.Sprintf("%d..%d", f.From, f.Next)
			}
			t.row(kind, string(f.What), f.Partition, span, f.Key, f.Detail)
		}
		if err := t.print(p.stdout); err != nil {
			return err
		}
	}
	s := v.Summary
	_, err := fmt.Fprintf(p.stdout, "%d topics, %d partitions, %d chain entries, %d segments with %s; %d WAL objects with %s, %d states, %d metadata exports; checksums of %s; %d problems, %d notes\n",
		s.Topics, s.Partitions, s.Entries, s.Segments, formatBytes(s.SegmentBytes),
		s.WALObjects, formatBytes(s.WALBytes), s.States, s.Exports, formatBytes(s.DeepBytes), s.Problems, s.Notes)
	return err
}
