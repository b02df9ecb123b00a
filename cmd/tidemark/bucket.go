package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/tier/bucket"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/storeurl"
	"github.com/tidemark-mq/tidemark/wal"
)

func newBucket(p *process) *cobra.Command {
	cmd := family("bucket", "Look at an archive without a node: list, inspect, verify, prove",
		"  tidemark bucket verify file:///srv/archive --deep",
		newBucketLs(p), newBucketInspect(p), newBucketVerify(p), newBucketDoctor(p))
	cmd.Long = `Look at an archive without a node. These commands work beside a running cluster.
They never delete, and only doctor writes: objects of its own below doctor/, which
it removes again.`
	return cmd
}

// openBucket opens an archive that has to be there.
func openBucket(ctx context.Context, p *process, raw string, cause objstore.Cause) (objstore.Store, func(), error) {
	if err := archiveExists(raw); err != nil {
		return nil, nil, err
	}
	log := slog.New(slog.NewTextHandler(p.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	store, err := openStore(ctx, raw, log, nil)
	if err != nil {
		return nil, nil, err
	}
	// Whatever was asked has answered by then.
	return objstore.For(store, cause), func() { _ = store.Close() }, nil
}

// archiveExists refuses a directory that is not there: opening it would make
// it, and a misspelled archive would look like an empty one.
func archiveExists(raw string) error {
	u, err := archiveURL(raw)
	if err != nil {
		return err
	}
	parsed, err := storeurl.Parse(u)
	if err != nil {
		return usageError{err}
	}
	if parsed.Scheme != "file" {
		return nil
	}
	info, err := os.Stat(parsed.Dir)
	if err != nil {
		return fmt.Errorf("archive %s: %w", u, err)
	}
	if !info.IsDir() {
		return fmt.Errorf("archive %s: %s is a file, not a directory", u, parsed.Dir)
	}
	return nil
}

func newBucketLs(p *process) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "ls URL", Short: "List what an archive holds", Example: "  tidemark bucket ls file:///srv/archive",
		Args: args("URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, done, err := openBucket(cmd.Context(), p, args[0], objstore.CauseOther)
			if err != nil {
				return err
			}
			defer done()
			l, err := bucket.List(cmd.Context(), store)
			if err != nil {
				return err
			}
			if asJSON {
				return p.printJSON(l)
			}
			return printListing(p, l)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printListing(p *process, l *bucket.Listing) error {
	if len(l.Clusters) == 0 {
		_, err := fmt.Fprintln(p.stdout, "no cluster has written here")
		return err
	}
	claim := l.Clusters[len(l.Clusters)-1]
	facts := newTable()
	facts.row("newest claim", claim.Key+", "+when(claim.Modified))
	facts.row("metadata exports", l.Exports)
	facts.row("newest export", l.Newest)
	if err := facts.print(p.stdout); err != nil {
		return err
	}
	t := newTable("TOPIC", "PARTITION", "OFFSETS", "SEGMENTS", "RECORDS", "SIZE", "GENERATION", "STATUS")
	for _, topic := range l.Topics {
		for _, c := range topic.Partitions {
			status := "ok"
			switch {
			case c.Err != nil:
				status = c.Err.Error()
			case topic.Deleted:
				status = "deleted"
			}
			t.row(topic.ID.String(), c.ID.Partition, fmt.Sprintf("%d..%d", c.Start, c.End), c.Totals.Segments, c.Totals.Records, formatBytes(c.Totals.Bytes), c.Generation, status)
		}
	}
	if err := t.print(p.stdout); err != nil {
		return err
	}
	n := newTable("NODE", "INCARNATION", "WAL OBJECTS", "SIZE", "LSN", "NEWEST", "STATES", "STATUS")
	for _, i := range l.Nodes {
		status := "open"
		switch {
		case i.Fenced:
			status = "fenced"
		case !i.Open:
			status = "not opened"
		}
		n.row(i.Node, fmt.Sprintf("%016x", i.ID), i.Objects, formatBytes(i.Bytes), fmt.Sprintf("%d..%d", i.First, i.Next), when(i.Newest), i.States, status)
	}
	return n.print(p.stdout)
}

func newBucketInspect(p *process) *cobra.Command {
	return &cobra.Command{
		Use: "inspect URL KEY", Short: "Decode one object of an archive and print it as JSON",
		Example: "  tidemark bucket inspect file:///srv/archive cluster/0000000000000001",
		Args:    args("URL", "KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, done, err := openBucket(cmd.Context(), p, args[0], objstore.CauseOther)
			if err != nil {
				return err
			}
			defer done()
			v, err := bucket.Inspect(cmd.Context(), store, args[1], decoders)
			if err != nil {
				return err
			}
			return p.printJSON(v)
		},
	}
}

// decoders read the objects that nodes write beside segments and chains, and
// check all of what they read.
var decoders = bucket.Decoders{WAL: decodeWAL, State: decodeState}

// shippedWAL is what is shown of a shipped WAL object.
type shippedWAL struct {
	Incarnation string         `json:"incarnation"`
	First       uint64         `json:"first_lsn"`
	Next        uint64         `json:"next_lsn"`
	Frames      map[string]int `json:"frames"` // by kind
	Ranges      []walRange     `json:"ranges"`
}

type walRange struct {
	Partition string `json:"partition"`
	First     int64  `json:"first_offset"`
	Next      int64  `json:"next_offset"`
}

func decodeWAL(key manifest.Key, stored []byte) (any, error) {
	w, err := archive.DecodeWAL(stored)
	if err != nil {
		return nil, err
	}
	if w.Incarnation != key.Incarnation || w.First != key.First || w.Next != key.End {
		return nil, fmt.Errorf("its content is LSNs %d to %d of incarnation %016x, its key says %d to %d of %016x",
			w.First, w.Next, w.Incarnation, key.First, key.End, key.Incarnation)
	}
	out := shippedWAL{Incarnation: fmt.Sprintf("%016x", w.Incarnation), First: w.First, Next: w.Next, Frames: map[string]int{}, Ranges: []walRange{}}
	for _, r := range w.Ranges {
		out.Ranges = append(out.Ranges, walRange{r.Partition.String(), r.First, r.Next})
	}
	err = w.Each(func(f wal.Frame) error { out.Frames[f.Kind.String()]++; return nil })
	return out, err
}

func decodeState(_ manifest.Key, stored []byte) (any, error) { return archive.DecodeState(stored) }

func newBucketVerify(p *process) *cobra.Command {
	var deep, asJSON bool
	var topic string
	cmd := &cobra.Command{
		Use: "verify URL", Short: "Check an archive against its own manifests",
		Long: `Check that everything the chains name is there, without holes and overlaps, and that
the shipped write-ahead log has none either. With --deep every object is read and
every checksum computed. Exits 1 when there is a problem; notes are what a
running or killed cluster leaves behind, and no problem.`,
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
	Summary  bucket.Summary `json:"summary"`
	Findings []finding      `json:"findings"`
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
	var err error
	out.Summary, err = bucket.Verify(ctx, store, o, func(f bucket.Finding) {
		if len(out.Findings) >= maxFindings {
			return
		}
		g := finding{What: f.What, Problem: !f.What.Note(), Key: f.Key, From: f.From, Next: f.Next, Detail: oneLine(f.Detail)}
		if f.Partition != (broker.PartitionID{}) {
			g.Partition = f.Partition.String()
		}
		out.Findings = append(out.Findings, g)
	})
	if err != nil {
		return err
	}
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
	_, err := fmt.Fprintf(p.stdout, "%d topics, %d partitions, %d chain entries, %d segments with %s; %d WAL objects with %s, %d states; checksums of %s; %d problems, %d notes\n",
		s.Topics, s.Partitions, s.Entries, s.Segments.Segments, formatBytes(s.Segments.Bytes),
		s.WALObjects, formatBytes(s.WALBytes), s.States, formatBytes(s.Deep), s.Problems, s.Notes)
	return err
}

func newBucketDoctor(p *process) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "doctor URL", Short: "Prove that an object store can hold an archive",
		Long: `Prove that an object store works as an archive needs it: put, read, create-only also
under a race, ranges, complete lists in order, delete, clock, latency. It writes
below doctor/ and removes what it wrote. Exits 1 when something is missing.`,
		Example: "  tidemark bucket doctor 's3://bucket/prod?endpoint=http://127.0.0.1:9000&region=us-east-1'",
		Args:    args("URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			log := slog.New(slog.NewTextHandler(p.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
			store, err := openStore(cmd.Context(), args[0], log, nil)
			if err != nil {
				return err
			}
			defer func() { _ = store.Close() }() // whatever was asked has answered
			r, err := objstore.Probe(cmd.Context(), objstore.For(store, objstore.CauseDoctor), nil)
			if err != nil {
				return err
			}
			return printReportOfStore(p, r, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printReportOfStore(p *process, r objstore.Report, asJSON bool) error {
	var err error
	if asJSON {
		err = p.printJSON(r)
	} else {
		t := newTable("CHECK", "RESULT", "TOOK", "DETAIL")
		for _, c := range r.Checks {
			t.row(c.Name, map[bool]string{true: "ok", false: "MISSING"}[c.OK], c.Took.Round(time.Microsecond).String(), c.Detail)
		}
		t.row("clock", "", "", "the store's clock is "+r.Skew.String()+" ahead of this one")
		t.row("latency", "", r.Latency.Round(time.Microsecond).String(), "median of small puts and reads")
		err = t.print(p.stdout)
	}
	if err == nil && !r.OK() {
		return fmt.Errorf("%s cannot hold an archive: %d checks failed", r.Store.URL, len(r.Missing()))
	}
	return err
}
