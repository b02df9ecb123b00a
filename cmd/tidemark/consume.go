package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/api/client"
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

const (
	maxLeases   = 100              // records of one request
	longestWait = 10 * time.Second // of one request; longer ones are made of several
	peekDefault = 10
)

func newConsume(p *process, c *connection) *cobra.Command {
	var o consumeOptions
	var group, delimiter string
	var partition int
	cmd := &cobra.Command{
		Use: "consume TOPIC", Short: "Take records from a topic and print them",
		Long: `Take records from a topic, print them and ack each one after stdout has taken it.
Without --max it goes on until there is nothing left; an empty topic is no error.

A record is printed as a line of JSON; --raw prints its value, byte for byte, and
--delimiter after it. With --no-ack the records stay leased and come back when
the topic's visibility timeout is over. --peek shows records and gives them back
at once; each showing counts as a delivery.`,
		Example: `  tidemark consume orders --max 10
  tidemark consume orders --raw --wait 30s | while read -r line; do echo "$line"; done
  tidemark consume orders --peek`,
		Args: args("TOPIC"),
	}
	f := cmd.Flags()
	f.StringVar(&group, "group", broker.DefaultGroup, "group whose position is used")
	f.IntVar(&partition, "partition", -1, "partition to take from (default any)")
	f.IntVar(&o.max, "max", 0, "number of records (default all there are; with --peek 10, at most 100)")
	f.DurationVar(&o.wait, "wait", 0, "how long to wait for the next record when there is none")
	f.BoolVar(&o.out.raw, "raw", false, "print values alone, byte for byte")
	jsonLines(cmd)
	f.StringVar(&delimiter, "delimiter", `\n`, "what follows each value of --raw; \\n, \\t and \\0 are understood, '' is nothing")
	f.BoolVar(&o.noAck, "no-ack", false, "do not ack; the lines have the receipt handles")
	f.BoolVar(&o.peek, "peek", false, "show records and give them back")
	c.flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.check(f.Changed("max"), group, args[0]); err != nil {
			return err
		}
		o.topic, o.out.w, o.out.delimiter = args[0], p.stdout, unescape(delimiter)
		if f.Changed("partition") {
			if partition < 0 || partition >= broker.MaxPartitions {
				return usagef("--partition %d is not between 0 and %d", partition, broker.MaxPartitions-1)
			}
			p := uint32(partition)
			o.partition = &p
		}
		cl, err := c.open()
		if err != nil {
			return err
		}
		w, err := c.wire()
		if err != nil {
			return err
		}
		return (&consumer{consumeOptions: o, client: cl, wire: w}).run(cmd.Context())
	}
	return cmd
}

type consumeOptions struct {
	topic     string
	partition *uint32 // nil = any
	max       int     // 0 = no end
	wait      time.Duration
	noAck     bool
	peek      bool
	out       output
}

func (o *consumeOptions) check(maxGiven bool, group, topic string) error {
	if err := broker.ValidateName("topic", topic); err != nil {
		return usageError{err}
	}
	switch {
	case maxGiven && o.max < 1:
		return usagef("--max %d is not a number from 1 on", o.max)
	case o.wait < 0:
		return usagef("--wait %s is negative", o.wait)
	case group != broker.DefaultGroup:
		return usagef("--group %q: named groups are not in this build; leave it out or say %s", group, broker.DefaultGroup)
	case o.peek && o.noAck:
		return usagef("--peek and --no-ack do not go together: --peek gives the records back at once, --no-ack keeps them leased")
	case o.peek && o.max > maxLeases:
		return usagef("--max %d: --peek shows at most %d records", o.max, maxLeases)
	case o.peek && !maxGiven:
		o.max = peekDefault
	}
	return nil
}

// consumer takes records until it has enough or there are no more.
type consumer struct {
	consumeOptions
	client *client.Client
	wire   *wire
	shown  []string // handles to give back at the end of a peek
}

// leased is one record on its way to stdout.
type leased struct {
	handle string
	text   []byte // the value, or the record as JSON
}

func (c *consumer) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, c.giveBack(ctx, c.shown)) }()
	for n := 0; ctx.Err() == nil && (c.max == 0 || n < c.max); {
		batch, err := c.take(ctx, c.max-n)
		if err != nil && (errors.Is(err, errNothing) || ctx.Err() != nil) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := c.print(ctx, batch); err != nil {
			return err
		}
		n += len(batch)
	}
	return nil
}

// take leases up to left records, waiting as long as was asked for.
func (c *consumer) take(ctx context.Context, left int) ([]leased, error) {
	for end := time.Now().Add(c.wait); ; {
		wait := min(max(0, time.Until(end)), longestWait)
		batch, err := c.lease(ctx, left, wait)
		if !errors.Is(err, errNothing) || ctx.Err() != nil || !time.Now().Before(end) {
			return batch, err
		}
	}
}

func (c *consumer) lease(ctx context.Context, left int, wait time.Duration) ([]leased, error) {
	n := maxLeases
	if left > 0 {
		n = min(left, n)
	}
	if c.out.raw {
		return c.leaseValues(ctx, n, wait)
	}
	return c.leaseLines(ctx, n, wait)
}

// leaseValues leases records for the bytes of their values.
func (c *consumer) leaseValues(ctx context.Context, n int, wait time.Duration) ([]leased, error) {
	msgs, err := c.client.Consume(ctx, c.topic, client.ConsumeOptions{Partition: c.partition, Max: n, Wait: wait})
	if err != nil {
		return nil, explain(err, c.wire.base)
	}
	if len(msgs) == 0 {
		return nil, errNothing
	}
	batch := make([]leased, len(msgs))
	for i := range msgs {
		batch[i] = leased{msgs[i].Handle, msgs[i].Value}
	}
	return batch, nil
}

// leaseLines leases records as the node writes them.
func (c *consumer) leaseLines(ctx context.Context, n int, wait time.Duration) ([]leased, error) {
	q := url.Values{"max": {strconv.Itoa(n)}}
	if c.partition != nil {
		q.Set("partition", strconv.Itoa(int(*c.partition)))
	}
	if wait > 0 {
		q.Set("wait", wait.String())
	}
	path := topicPath(c.topic, "/consume")
	body, err := c.wire.read(ctx, http.MethodPost, path, q)
	if err != nil {
		return nil, err
	}
	var list struct {
		Messages []json.RawMessage `json:"messages"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, errcode.Wrap(errcode.Internal, err, "decode the answer of %s", path)
	}
	batch := make([]leased, len(list.Messages))
	for i, m := range list.Messages {
		var lease struct {
			Handle string `json:"receipt_handle"`
		}
		if err := json.Unmarshal(m, &lease); err != nil {
			return nil, errcode.Wrap(errcode.Internal, err, "decode record %d of the answer of %s", i, path)
		}
		batch[i] = leased{lease.Handle, m}
	}
	return batch, nil
}

// print writes a batch and settles it: records that stdout took are acked, the
// others go back.
func (c *consumer) print(ctx context.Context, batch []leased) error {
	handles := make([]string, len(batch))
	for i := range batch {
		handles[i] = batch[i].handle
	}
	taken, err := c.write(batch)
	switch {
	case c.peek:
		c.shown = append(c.shown, handles...)
		return err
	case c.noAck:
		return err
	case err != nil:
		return errors.Join(err, c.giveBack(ctx, handles[taken:]), c.ack(ctx, handles[:taken]))
	default:
		return c.ack(ctx, handles)
	}
}

// write says how many records stdout took.
func (c *consumer) write(batch []leased) (taken int, err error) {
	for i := range batch {
		if c.out.raw {
			err = c.out.value(batch[i].text)
		} else {
			err = c.out.line(batch[i].text)
		}
		if err != nil {
			return i, err
		}
	}
	return len(batch), nil
}

// ack settles printed records. It goes on when the command was interrupted: they
// have been printed.
func (c *consumer) ack(ctx context.Context, handles []string) error {
	if len(handles) == 0 {
		return nil
	}
	ctx, cancel := settleContext(ctx)
	defer cancel()
	errs, err := c.client.AckBatch(ctx, c.topic, handles)
	if err != nil {
		return errcode.Wrap(errcode.Internal, explain(err, c.wire.base), "%d records were printed and not acked; they come again", len(handles))
	}
	failed := 0
	for _, e := range errs {
		if e != nil {
			failed++
			err = e
		}
	}
	if failed > 0 {
		return errcode.Wrap(errcode.Gone, err, "%d printed records could not be acked; they come again", failed)
	}
	return nil
}

// giveBack returns leases at once.
func (c *consumer) giveBack(ctx context.Context, handles []string) error {
	ctx, cancel := settleContext(ctx)
	defer cancel()
	for _, h := range handles {
		// A lease that is over by itself is back already.
		if err := c.client.Settle(ctx, c.topic, h, broker.SettleNack, 0); err != nil && !errcode.Is(err, errcode.Gone) {
			return errcode.Wrap(errcode.Internal, explain(err, c.wire.base), "give a record back; it comes again when its lease ends")
		}
	}
	return nil
}

// settleContext outlives an interrupt by a moment.
func settleContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
}
