package main

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/tier/objstore"
)

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
			return printDiagnosis(p, r, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printDiagnosis(p *process, r objstore.Report, asJSON bool) error {
	var err error
	if asJSON {
		err = p.printJSON(diagnosisOf(r))
	} else {
		t := newTable("CHECK", "RESULT", "TOOK", "DETAIL")
		for _, c := range r.Checks {
			t.row(c.Name, map[bool]string{true: "ok", false: "MISSING"}[c.OK], c.Took.Round(time.Microsecond).String(), c.Detail)
		}
		err = t.print(p.stdout)
	}
	if err == nil && !r.OK() {
		return fmt.Errorf("%s cannot hold an archive: %d checks failed", r.Store.URL, len(r.Missing()))
	}
	return err
}

// diagnosis is the JSON form of doctor.
type diagnosis struct {
	URL       string           `json:"url"`
	OK        bool             `json:"ok"`
	Checks    []diagnosedCheck `json:"checks"`
	SkewMS    int64            `json:"clock_skew_ms"` // the store's clock minus this one
	LatencyMS float64          `json:"latency_ms"`
}

type diagnosedCheck struct {
	Name   string  `json:"name"`
	OK     bool    `json:"ok"`
	Detail string  `json:"detail"`
	TookMS float64 `json:"took_ms"`
}

func diagnosisOf(r objstore.Report) diagnosis {
	d := diagnosis{URL: r.Store.URL, OK: r.OK(), SkewMS: r.Skew.Milliseconds(), LatencyMS: milliseconds(r.Latency)}
	for _, c := range r.Checks {
		d.Checks = append(d.Checks, diagnosedCheck{c.Name, c.OK, c.Detail, milliseconds(c.Took)})
	}
	return d
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
