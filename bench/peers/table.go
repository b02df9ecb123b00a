package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tidemark-mq/tidemark/bench/report"
)

// Report is everything that was measured.
type Report struct {
	Started time.Time         `json:"started"`
	Seconds float64           `json:"seconds"`
	Machine report.Machine    `json:"machine"`
	Rounds  int               `json:"rounds"`
	Systems []system          `json:"systems"`
	Missing map[string]string `json:"missing,omitempty"` // programs that are not there, and how to get them
	Lines   []Line            `json:"lines"`
}

// Line is one figure of a peer beside Tidemark's.
type Line struct {
	Row      string    `json:"row"`
	What     string    `json:"what"`
	Figure   string    `json:"figure"`
	Peer     string    `json:"peer"`
	Promise  string    `json:"promise"`
	Ours     string    `json:"tidemark_promise"`
	Theirs   []float64 `json:"peer_rounds"`
	Tidemark []float64 `json:"tidemark_rounds"`
	Ratios   []float64 `json:"ratios"` // Tidemark over the peer, of each round
}

// peers are the systems that are there; missing says how to install the others.
func peers(ctx context.Context, o *options) (there []system, missing map[string]string) {
	missing = map[string]string{}
	add := func(program, how string, systems ...system) {
		v, err := version(ctx, program)
		switch {
		case errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist):
			missing[program] = "is not installed: " + how
		case err != nil:
			missing[program] = err.Error()
		default:
			for _, s := range systems {
				s.Version = v
				there = append(there, s)
			}
		}
	}
	add(o.nats, "make nats-server", natsSystem(o.nats, "always"), natsSystem(o.nats, ""))
	add(o.redis, "apt-get install redis-server", redisSystem(o.redis, "always"), redisSystem(o.redis, "everysec"))
	return there, missing
}

// measure measures every row with every system in turn, in rounds. What was measured
// until an error is returned beside it.
func measure(ctx context.Context, o options, progress io.Writer) (*Report, error) {
	rep := &Report{Started: time.Now().UTC(), Machine: report.ThisMachine(), Rounds: o.rounds}
	rep.Machine.FileSystem = report.FileSystem(o.work)
	defer func() {
		rep.Machine.LoadAfter, rep.Seconds = report.LoadAverage(), time.Since(rep.Started).Seconds()
	}()
	us := tidemarkSystem()
	var err error
	if us.Version, err = tidemarkVersion(ctx, o.tidemark); err != nil {
		return nil, err
	}
	var there []system
	there, rep.Missing = peers(ctx, &o)
	rep.Systems = append([]system{us}, there...)
	for _, program := range []string{o.nats, o.redis} {
		if why, ok := rep.Missing[program]; ok {
			fmt.Fprintf(progress, "%s %s\n", program, why)
		}
	}
	if len(there) == 0 {
		return rep, errors.New("there is no peer to measure")
	}
	for _, r := range rows() {
		if len(o.rows) > 0 && !slices.Contains(o.rows, r.name) {
			continue
		}
		if err := rep.row(ctx, &o, &r, there, progress); err != nil {
			return rep, fmt.Errorf("row %s: %w", r.name, err)
		}
	}
	return rep, nil
}

// row measures one row: in each round Tidemark first or last, by turns, and the peers
// in an order that turns too.
func (rep *Report) row(ctx context.Context, o *options, r *row, there []system, progress io.Writer) error {
	lines := map[string]*Line{}
	for _, s := range there {
		for _, f := range r.figures {
			lines[s.Name+f] = &Line{Row: r.name, What: r.what, Figure: f, Peer: s.Name, Promise: s.Promises[r.name], Ours: rep.Systems[0].Promises[r.name]}
		}
	}
	for round := range o.rounds {
		fmt.Fprintf(progress, "%s, round %d of %d\n", r.name, round+1, o.rounds)
		got := map[string]map[string]float64{}
		order := append([]system{rep.Systems[0]}, there...)
		turn := round % len(order)
		order = append(order[turn:], order[:turn]...)
		for _, s := range order {
			figures, err := s.measure(ctx, o, r)
			if err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
			got[s.Name] = figures
		}
		for _, s := range there {
			for _, f := range r.figures {
				l, ours, theirs := lines[s.Name+f], got[rep.Systems[0].Name][f], got[s.Name][f]
				l.Theirs, l.Tidemark, l.Ratios = append(l.Theirs, theirs), append(l.Tidemark, ours), append(l.Ratios, ours/theirs)
			}
		}
	}
	for _, f := range r.figures {
		for _, s := range there {
			rep.Lines = append(rep.Lines, *lines[s.Name+f])
		}
	}
	return nil
}

// measure measures a row of one system, which is started for it and stopped.
func (s *system) measure(ctx context.Context, o *options, r *row) (out map[string]float64, err error) {
	if s.open == nil {
		return measureTidemark(ctx, o, r.name)
	}
	p, err := s.open(ctx, o.work)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	return r.peer(ctx, p, o)
}

func tidemarkVersion(ctx context.Context, program string) (string, error) {
	b, err := exec.CommandContext(ctx, program, "version").Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: run 'make build' first", program, err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return line, nil
}

func (rep *Report) print(w io.Writer) error {
	m := &rep.Machine
	fmt.Fprintf(w, "%s, %d cores, %.1f GiB, %s, %s, data on %s; load average %s before, %s after; %d rounds in turns, %.0f s\n",
		m.CPU, m.Cores, m.MemoryGiB, m.OS, m.Go, m.FileSystem, m.LoadBefore, m.LoadAfter, rep.Rounds, rep.Seconds)
	fmt.Fprintf(w, "records of %d bytes; servers and clients share the machine; each server is new for each measurement\n\n", recordBytes)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SYSTEM\tVERSION\tSETTINGS")
	for _, s := range rep.Systems {
		fmt.Fprintf(t, "%s\t%s\t%s\n", s.Name, s.Version, s.Settings)
	}
	fmt.Fprintln(t)
	fmt.Fprintln(t, "ROW\tFIGURE\tPEER\tPEER'S\tTIDEMARK'S\tRATIO\tLOWEST\tHIGHEST\tPEER'S ANSWER PROMISES\tTIDEMARK'S")
	for _, l := range rep.Lines {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", l.Row, l.Figure, l.Peer, report.Figure(report.Median(l.Theirs)), report.Figure(report.Median(l.Tidemark)),
			report.Figure(report.Median(l.Ratios)), report.Figure(slices.Min(l.Ratios)), report.Figure(slices.Max(l.Ratios)), l.Promise, l.Ours)
	}
	fmt.Fprintln(t)
	for _, r := range rows() {
		if slices.ContainsFunc(rep.Lines, func(l Line) bool { return l.Row == r.name }) {
			fmt.Fprintf(t, "%s\t%s\n", r.name, r.what)
		}
	}
	for program, why := range rep.Missing {
		fmt.Fprintf(t, "not measured\t%s %s\n", program, why)
	}
	return t.Flush()
}
