package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/tier/bucket"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/storeurl"
)

func newBucket(p *process) *cobra.Command {
	cmd := family("bucket", "Look at an archive without a node: list, inspect, verify, print, prove",
		"  tidemark bucket verify file:///srv/archive --deep",
		newBucketLs(p), newBucketInspect(p), newBucketVerify(p), newBucketCat(p), newBucketDoctor(p))
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

func newBucketInspect(p *process) *cobra.Command {
	cmd := &cobra.Command{
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
	cmd.Flags().Bool("json", false, "print JSON (there is no other form)")
	return cmd
}
