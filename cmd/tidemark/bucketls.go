package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/tier/bucket"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

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
				return p.printJSON(listingOf(l))
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
		n.row(i.Node, fmt.Sprintf("%016x", i.ID), i.Objects, formatBytes(i.Bytes), fmt.Sprintf("%d..%d", i.First, i.Next), when(i.Newest), i.States, incarnationStatus(i))
	}
	return n.print(p.stdout)
}

// listing is the JSON form of ls.
type listing struct {
	Clusters  []listedObject      `json:"clusters"` // claims of generations, ascending
	Exports   int                 `json:"exports"`
	Newest    string              `json:"newest_export"`
	Topics    []listedTopic       `json:"topics"`
	Nodes     []listedIncarnation `json:"nodes"`
	Snapshots []listedObject      `json:"snapshots"`
}

type listedObject struct {
	Key      string    `json:"key"`
	Bytes    int64     `json:"bytes"`
	Modified time.Time `json:"modified"`
}

type listedTopic struct {
	ID         string            `json:"id"`
	Deleted    bool              `json:"deleted"`
	Partitions []listedPartition `json:"partitions"`
}

type listedPartition struct {
	Partition  uint32 `json:"partition"`
	Seq        uint64 `json:"seq"` // of the chain's last entry
	Generation uint32 `json:"generation"`
	Start      int64  `json:"start"`
	End        int64  `json:"end"`
	Segments   int64  `json:"segments"`
	Records    int64  `json:"records"`
	Bytes      int64  `json:"bytes"`
	Gaps       int    `json:"gaps"`
	Error      string `json:"error,omitempty"` // why the chain cannot be read
}

type listedIncarnation struct {
	Node        string    `json:"node"`
	Incarnation string    `json:"incarnation"`
	Status      string    `json:"status"`
	Objects     int       `json:"wal_objects"`
	Bytes       int64     `json:"wal_bytes"`
	First       uint64    `json:"first_lsn"`
	Next        uint64    `json:"next_lsn"`
	Newest      time.Time `json:"newest"`
	States      int       `json:"states"`
}

func incarnationStatus(i bucket.Incarnation) string {
	switch {
	case i.Fenced:
		return "fenced"
	case !i.Open:
		return "not opened"
	default:
		return "open"
	}
}

func listingOf(l *bucket.Listing) listing {
	out := listing{
		Clusters: objectsOf(l.Clusters), Exports: l.Exports, Newest: l.Newest, Snapshots: objectsOf(l.Snapshots),
		Topics: []listedTopic{}, Nodes: []listedIncarnation{},
	}
	for _, t := range l.Topics {
		topic := listedTopic{ID: t.ID.String(), Deleted: t.Deleted, Partitions: []listedPartition{}}
		for _, p := range t.Partitions {
			q := listedPartition{
				Partition: p.ID.Partition, Seq: p.Seq, Generation: p.Generation, Start: p.Start, End: p.End,
				Segments: p.Totals.Segments, Records: p.Totals.Records, Bytes: p.Totals.Bytes, Gaps: len(p.Gaps),
			}
			if p.Err != nil {
				q.Error = p.Err.Error()
			}
			topic.Partitions = append(topic.Partitions, q)
		}
		out.Topics = append(out.Topics, topic)
	}
	for _, i := range l.Nodes {
		out.Nodes = append(out.Nodes, listedIncarnation{
			Node: i.Node, Incarnation: fmt.Sprintf("%016x", i.ID), Status: incarnationStatus(i), Objects: i.Objects, Bytes: i.Bytes,
			First: i.First, Next: i.Next, Newest: i.Newest, States: i.States,
		})
	}
	return out
}

func objectsOf(list []bucket.Object) []listedObject {
	out := make([]listedObject, len(list))
	for i, o := range list {
		out[i] = listedObject(o)
	}
	return out
}
