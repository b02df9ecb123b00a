package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// ConsumeOptions say what to lease. The zero value takes one record of any
// partition without waiting.
type ConsumeOptions struct {
	Partition *uint32
	Max       int           // 0 or 1: one record, exact bytes
	Wait      time.Duration // for the first record; the node clamps it
}

// Consume leases records. No records and no error: there was nothing in time.
func (c *Client) Consume(ctx context.Context, topic string, o ConsumeOptions) ([]broker.Message, error) {
	return c.consume(ctx, topic, o, c.retry)
}

func (c *Client) consume(ctx context.Context, topic string, o ConsumeOptions, retry Retry) ([]broker.Message, error) {
	q := url.Values{}
	if o.Partition != nil {
		q.Set("partition", strconv.FormatUint(uint64(*o.Partition), 10))
	}
	if o.Wait > 0 {
		q.Set("wait", o.Wait.String())
	}
	// A consume whose answer was lost may be repeated: its records come back when
	// their leases end, and others come now.
	r := request{method: http.MethodPost, path: path("v1", "topics", topic, "consume"), query: q, safety: harmless}
	take := c.takeMany
	if o.Max <= 1 {
		take, r.accept = c.takeOne, "application/octet-stream"
	} else {
		q.Set("max", strconv.Itoa(o.Max))
	}
	var msgs []broker.Message
	err := retry.again(ctx, harmless, func(ctx context.Context) error {
		one := func() error {
			return c.once(ctx, &r, func(res *http.Response) (err error) {
				msgs, err = nil, nil
				if res.StatusCode != http.StatusNoContent {
					msgs, err = take(ctx, res, &r)
				}
				return err
			})
		}
		many := o.Max > 1
		if many && !c.noFrames.Load() {
			r.accept = mediaFrames
		}
		err := one()
		if many && r.accept != "" && errcode.Is(err, errcode.UnsupportedType) {
			c.noFrames.Store(true)
			r.accept = ""
			err = one()
		}
		return err
	})
	return msgs, err
}

func (c *Client) takeMany(ctx context.Context, res *http.Response, r *request) ([]broker.Message, error) {
	if mediaOf(res) == mediaFrames {
		return takeFrames(ctx, res, r)
	}
	var out struct {
		Messages []message `json:"messages"`
	}
	if err := decodeBody(ctx, res, &out, r); err != nil {
		return nil, err
	}
	msgs := make([]broker.Message, len(out.Messages))
	for i := range out.Messages {
		var err error
		if msgs[i], err = out.Messages[i].decode(); err != nil {
			return nil, errcode.Wrap(errcode.Internal, err, "decode message %d of %s", i, r.path)
		}
	}
	return msgs, nil
}

// takeFrames reads records of which every byte is kept.
func takeFrames(ctx context.Context, res *http.Response, r *request) (msgs []broker.Message, err error) {
	f := frameReader{in: bufio.NewReader(io.LimitReader(res.Body, maxAnswer))}
	for {
		m, err := f.next()
		if errors.Is(err, io.EOF) {
			return msgs, nil
		}
		if err != nil {
			return nil, transportError(ctx, fmt.Errorf("decode message %d: %w", len(msgs), err), r, false)
		}
		msgs = append(msgs, m)
	}
}

// takeOne reads a bare value, of which every byte is kept.
func (c *Client) takeOne(ctx context.Context, res *http.Response, r *request) ([]broker.Message, error) {
	value, err := readBody(ctx, res, r)
	if err != nil {
		return nil, err
	}
	m, err := bareMessage(res.Header, value)
	if err != nil {
		return nil, errcode.Wrap(errcode.Internal, err, "decode the answer of %s", r.path)
	}
	return []broker.Message{m}, nil
}

// Settle ends or extends one lease. d is how long to extend (0: the topic's
// visibility timeout), or how long a nacked record stays hidden; it must be 0
// for an ack.
func (c *Client) Settle(ctx context.Context, topic, handle string, action broker.SettleAction, d time.Duration) error {
	q := settleQuery(action, d)
	q.Set("receipt_handle", handle)
	_, err := c.call(ctx, request{method: http.MethodPost, path: path("v1", "topics", topic, "ack"), query: q, safety: harmless}, nil)
	return err
}

func settleQuery(action broker.SettleAction, d time.Duration) url.Values {
	q := url.Values{"action": {string(action)}}
	if d > 0 {
		name := "for"
		if action == broker.SettleNack {
			name = "delay"
		}
		q.Set(name, d.String())
	}
	return q
}

// Ack settles one record for good.
func (c *Client) Ack(ctx context.Context, topic, handle string) error {
	return c.Settle(ctx, topic, handle, broker.SettleAck, 0)
}

// AckBatch acks up to 100 records and returns one error (or nil) per handle, in
// order.
func (c *Client) AckBatch(ctx context.Context, topic string, handles []string) ([]error, error) {
	return c.settleBatch(ctx, topic, handles, broker.SettleAck, 0, c.retry)
}

// settleBatch is Settle for up to 100 handles. retry is for the whole call.
func (c *Client) settleBatch(ctx context.Context, topic string, handles []string, action broker.SettleAction, d time.Duration, retry Retry) ([]error, error) {
	var out struct {
		Results []struct {
			Status int    `json:"status"`
			Error  string `json:"error"`
			Code   string `json:"code"`
			Retry  string `json:"retry"`
		} `json:"results"`
	}
	r := request{
		method: http.MethodPost, path: path("v1", "topics", topic, "ack"), query: settleQuery(action, d),
		contentType: "application/json", safety: harmless,
	}
	var err error
	if r.body, err = json.Marshal(map[string][]string{"receipt_handles": handles}); err != nil {
		return nil, errcode.Wrap(errcode.InvalidArgument, err, "encode receipt handles")
	}
	err = retry.again(ctx, harmless, func(ctx context.Context) error {
		return c.once(ctx, &r, func(res *http.Response) error { return decodeBody(ctx, res, &out, &r) })
	})
	if err != nil {
		return nil, err
	}
	if len(out.Results) != len(handles) {
		return nil, errcode.New(errcode.Internal, "%d handles were settled, the answer has %d results", len(handles), len(out.Results))
	}
	errs := make([]error, len(handles))
	for i, res := range out.Results {
		if res.Status >= 300 {
			errs[i] = errcode.New(codeOf(res.Status, res.Code, res.Retry), "%s", res.Error)
		}
	}
	return errs, nil
}
