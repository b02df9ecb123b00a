package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/api/client"
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

const (
	maxRecord  = 16 << 20
	retryTime  = 30 * time.Second // of one batch that the node refuses for now
	retryPause = 200 * time.Millisecond
)

func newProduce(p *process, c *connection) *cobra.Command {
	pr := &producer{p: p}
	var partition int
	var ack, file string
	cmd := &cobra.Command{
		Use: "produce TOPIC", Short: "Append records to a topic",
		Long: `Append the whole input as one record, byte for byte; or with --ndjson each line of
the input, which has to be JSON, as a record of its own. Blank lines are skipped.

Lines are sent in batches, one after the other, so their order is kept within
each partition. A batch that the node refuses for now is sent again for up to 30
seconds. When the command fails it says which lines are stored.`,
		Example: `  printf '{"n":1}' | tidemark produce orders --key u17
  tidemark produce orders --ndjson --key-field /user/id -f events.ndjson
  tidemark produce photos -f photo.jpg --ack archived`,
		Args: args("TOPIC"),
	}
	f := cmd.Flags()
	f.StringVar(&pr.key, "key", "", "key of the record, or with --ndjson of every record")
	f.IntVar(&partition, "partition", -1, "partition to append to (default by key, else the node chooses)")
	f.StringVar(&ack, "ack", "", "answer when accepted, committed or archived (default the topic's)")
	f.DurationVar(&pr.o.Wait, "ack-wait", 0, "how long to wait for committed or archived, up to 30s (default 10s)")
	f.StringVarP(&file, "file", "f", "-", "input; - is stdin")
	f.BoolVar(&pr.ndjson, "ndjson", false, "one JSON value a line, each a record")
	f.StringVar(&pr.o.KeyField, "key-field", "", "with --ndjson: JSON pointer to the key in each line, for example /user/id")
	f.IntVar(&pr.batch, "batch", maxBatchRecords, "with --ndjson: most records of one request, up to 1000")
	f.BoolVar(&pr.empty, "empty", false, "an empty input is an empty record, no mistake")
	f.BoolVar(&pr.asJSON, "json", false, "print the receipt as JSON")
	c.flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		pr.topic, pr.keyed = args[0], f.Changed("key")
		if err := pr.check(f.Changed("batch"), file); err != nil {
			return err
		}
		var err error
		if pr.o.Ack, err = parseAck(ack); err != nil {
			return err
		}
		if f.Changed("partition") {
			if partition < 0 || partition >= broker.MaxPartitions {
				return usagef("--partition %d is not between 0 and %d", partition, broker.MaxPartitions-1)
			}
			n := uint32(partition)
			pr.o.Partition = &n
		}
		if pr.client, err = c.open(); err != nil {
			return err
		}
		pr.server = c.address()
		in, done, err := p.input(file)
		if err != nil {
			return err
		}
		defer done()
		if pr.ndjson {
			return pr.lines(cmd.Context(), in)
		}
		return pr.one(cmd.Context(), in)
	}
	return cmd
}

// input opens a file, or stdin for "-".
func (p *process) input(file string) (io.Reader, func(), error) {
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, nil, usagef("input: %w", err)
		}
		return f, func() { f.Close() }, nil
	}
	if isTerminal(p.stdin) {
		p.say("reading from the terminal; end with Ctrl-D")
	}
	return p.stdin, func() {}, nil
}

// producer appends records to one topic.
type producer struct {
	p      *process
	client *client.Client
	server string
	topic  string
	key    string
	keyed  bool
	ndjson bool
	batch  int
	empty  bool
	asJSON bool
	o      client.ProduceOptions
}

func (pr *producer) check(batchGiven bool, file string) error {
	if err := broker.ValidateName("topic", pr.topic); err != nil {
		return usageError{err}
	}
	switch {
	case pr.o.Wait < 0 || pr.o.Wait > 30*time.Second:
		return usagef("--ack-wait %s is not between 0s and 30s", pr.o.Wait)
	case pr.batch < 1 || pr.batch > maxBatchRecords:
		return usagef("--batch %d is not between 1 and %d", pr.batch, maxBatchRecords)
	case !pr.ndjson && (batchGiven || pr.o.KeyField != ""):
		return usagef("--batch and --key-field go with --ndjson")
	case pr.keyed && pr.o.KeyField != "":
		return usagef("--key and --key-field do not go together")
	case file == "":
		return usagef("--file is empty: name a file, or - for stdin")
	}
	return nil
}

// one appends the whole input as one record.
func (pr *producer) one(ctx context.Context, in io.Reader) error {
	value, err := readAtMost(in, "the record", maxRecord)
	if err != nil {
		return err
	}
	if len(value) == 0 && !pr.empty {
		return usagef("the input is empty: say --empty to append an empty record")
	}
	rec := broker.Record{Value: value}
	if pr.keyed {
		rec.Key = []byte(pr.key)
	}
	got, err := pr.client.Produce(ctx, pr.topic, rec, pr.o)
	if err != nil {
		return pr.explain(err)
	}
	if pr.asJSON {
		return pr.p.printJSON(got)
	}
	_, err = fmt.Fprintf(pr.p.stdout, "topic %s partition %d offset %d%s\n", pr.topic, got.Partition, got.Offset, map[bool]string{true: " archived"}[got.Archived])
	return err
}

func (pr *producer) explain(err error) error {
	err = explain(err, pr.server)
	if errcode.Of(err).Retry() == errcode.RetryUnknown && !errcode.Is(err, errcode.Canceled) {
		return errcode.Wrap(errcode.Internal, err, "whether it is stored is not known")
	}
	return err
}

// receipt is what a run of batches did.
type receipt struct {
	Topic   string  `json:"topic"`
	Records int     `json:"records"`
	Bytes   int64   `json:"bytes"`
	Batches int     `json:"batches"`
	Seconds float64 `json:"seconds"`
}

// lines appends each line of the input.
func (pr *producer) lines(ctx context.Context, in io.Reader) error {
	from := newIntake(pr.batch)
	stop := context.AfterFunc(ctx, from.stop)
	defer stop()
	defer from.stop()
	// It ends with the input. When this command ends first, a read of stdin may
	// still be under way: nothing can end that but the end of the process.
	go from.read(in)
	var b lines
	done := receipt{Topic: pr.topic}
	started := time.Now()
	meter := newMeter(pr.p.stderr)
	defer meter.close()
	for last := 0; ; {
		err := from.take(&b)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = pr.sendAgain(ctx, &b)
		}
		if err != nil {
			return pr.stopped(err, last, &b)
		}
		last = b.numbers[b.count()-1]
		done.Batches++
		done.Records += b.count()
		done.Bytes += int64(len(b.body) - b.count())
		meter.show(done.Records, done.Bytes)
	}
	meter.close()
	done.Seconds = time.Since(started).Seconds()
	if pr.asJSON {
		return pr.p.printJSON(done)
	}
	_, err := fmt.Fprintf(pr.p.stdout, "appended %d records (%s) to %s in %.1f s, %.0f/s\n",
		done.Records, formatBytes(done.Bytes), pr.topic, done.Seconds, float64(done.Records)/max(done.Seconds, 1e-3))
	return err
}

// ofBatch is how a node names a record of a batch; its lines count from there.
var ofBatch = regexp.MustCompile(`^message \d+: (line \d+ )?`)

// stopped says what is stored when the input, a line or a batch is wrong.
func (pr *producer) stopped(err error, last int, b *lines) error {
	stored := "nothing is stored"
	if last > 0 {
		stored = "the lines up to " + strconv.Itoa(last) + " are stored"
	}
	var e *errcode.Error
	if errors.As(err, &e) {
		if i, convErr := strconv.Atoi(fmt.Sprint(e.Facts["message"])); convErr == nil && i >= 0 && i < b.count() {
			return errcode.New(e.Code, "line %d: %s; %s", b.numbers[i], ofBatch.ReplaceAllString(e.Msg, ""), stored)
		}
	}
	if b.count() > 0 && b.numbers[0] > last && errcode.Of(err).Retry() == errcode.RetryUnknown {
		stored += fmt.Sprintf(", of lines %d to %d it is not known", b.numbers[0], b.numbers[b.count()-1])
	}
	return fmt.Errorf("%w; %s", explain(err, pr.server), stored)
}

// sendAgain sends a batch, again as long as the node says that it is refused
// for now and nothing of it was stored.
func (pr *producer) sendAgain(ctx context.Context, b *lines) error {
	for end := time.Now().Add(retryTime); ; {
		err := pr.send(ctx, b)
		var e *errcode.Error
		if err == nil || !errors.As(err, &e) || e.Code.Retry() != errcode.RetryAfter {
			return err
		}
		pause := max(e.Wait, retryPause)
		if time.Now().Add(pause).After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

func (pr *producer) send(ctx context.Context, b *lines) error {
	if !pr.keyed {
		_, err := pr.client.ProduceNDJSON(ctx, pr.topic, bytes.NewReader(b.body), pr.o)
		return err
	}
	// A key for all lines goes into frames, whose values the node does not look
	// into: so that a line is JSON is checked here.
	recs := make([]broker.Record, b.count())
	for i := range recs {
		recs[i] = broker.Record{Key: []byte(pr.key), Value: b.line(i)}
		if !json.Valid(recs[i].Value) {
			return errcode.New(errcode.InvalidArgument, "not JSON").With("message", i)
		}
	}
	_, err := pr.client.ProduceBatch(ctx, pr.topic, recs, pr.o)
	return err
}

// meter shows how far a run has come, on a terminal alone.
type meter struct {
	w       io.Writer // nil: not a terminal
	started time.Time
	shown   time.Time
}

func newMeter(w io.Writer) *meter {
	m := &meter{started: time.Now()}
	if isTerminal(w) {
		m.w = w
	}
	return m
}

func (m *meter) show(records int, size int64) {
	now := time.Now()
	if m.w == nil || now.Sub(m.started) < time.Second || now.Sub(m.shown) < 200*time.Millisecond {
		return
	}
	m.shown = now
	fmt.Fprintf(m.w, "\r%d records, %s, %.0f/s\x1b[K", records, formatBytes(size), float64(records)/now.Sub(m.started).Seconds())
}

// close takes the line away.
func (m *meter) close() {
	if m.w != nil && !m.shown.IsZero() {
		fmt.Fprint(m.w, "\r\x1b[K")
		m.shown = time.Time{}
	}
}
