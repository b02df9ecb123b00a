package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	binary := flag.String("binary", "bin/tidemark", "path of the tidemark binary")
	limit := flag.Duration("limit", 8*time.Minute, "fail after this time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeoutCause(ctx, *limit, fmt.Errorf("the tour is not over after %s", *limit))
	began := time.Now()
	err := tour(ctx, *binary)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	cancel()
	stop()
	if err != nil {
		fmt.Printf("\nFAIL after %.1f s: %v\n", time.Since(began).Seconds(), err)
		os.Exit(1)
	}
	fmt.Printf("\nPASS in %.1f s: every record came back from the archive alone, byte for byte\n", time.Since(began).Seconds())
}

// tour makes both journeys. Everything it starts and writes is gone when it
// returns.
func tour(ctx context.Context, binary string) (err error) {
	if _, err := os.Stat(binary); err != nil {
		return fmt.Errorf("there is no broker to try, run make build: %w", err)
	}
	work, err := os.MkdirTemp("", "tidemark-tour-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()

	c, err := loadCorpus(ctx)
	if err != nil {
		return fmt.Errorf("load the text: %w", err)
	}
	for _, line := range c.notes {
		fmt.Println(line)
	}
	var tables []table
	for _, open := range []func(context.Context, string) (*archive, error){startS3, makeDirectory} {
		t, err := journeyOver(ctx, binary, work, open, c)
		if err != nil {
			return err
		}
		tables = append(tables, t)
	}
	printTables(os.Stdout, tables)
	return nil
}

func journeyOver(ctx context.Context, binary, work string, open func(context.Context, string) (*archive, error), c *corpus) (table, error) {
	dir, err := os.MkdirTemp(work, "journey-")
	if err != nil {
		return nil, err
	}
	a, err := open(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer a.close()
	j := &journey{binary: binary, dir: dir, archive: a, corpus: c}
	if err := j.run(ctx); err != nil {
		return nil, fmt.Errorf("archive in %s: %w", a.name, err)
	}
	// Two copies of the text are on disk by now, which may be all there is.
	return j.table, os.RemoveAll(dir)
}
