package client

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
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
	q := url.Values{}
	if o.Partition != nil {
		q.Set("partition", strconv.FormatUint(uint64(*o.Partition), 10))
	}
	if o.Wait > 0 {
		q.Set("wait", o.Wait.String())
	}
	r := request{method: http.MethodPost, path: path("v1", "topics", topic, "consume"), query: q}
	if o.Max <= 1 {
		return c.consumeOne(ctx, r)
	}
	q.Set("max", strconv.Itoa(o.Max))
	var out struct {
		Messages []message `json:"messages"`
	}
	if _, err := c.call(ctx, r, &out); err != nil {
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

// consumeOne asks for the bare value, so that every byte of it is kept.
func (c *Client) consumeOne(ctx context.Context, r request) ([]broker.Message, error) {
	r.accept = "application/octet-stream"
	res, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }() // it has been read
	if res.StatusCode == http.StatusNoContent {
		return nil, nil
	}
	value, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, transportError(err, r)
	}
	m, err := bareMessage(res.Header, value)
	if err != nil {
		return nil, errcode.Wrap(errcode.Internal, err, "decode the answer of %s", r.path)
	}
	return []broker.Message{m}, nil
}

func bareMessage(h http.Header, value []byte) (broker.Message, error) {
	m := broker.Message{Handle: h.Get("Tidemark-Receipt-Handle")}
	m.Value = value
	var n [4]int64
	for i, name := range []string{"Tidemark-Partition", "Tidemark-Offset", "Tidemark-Timestamp-Ms", "Tidemark-Delivery-Count"} {
		var err error
		if n[i], err = strconv.ParseInt(h.Get(name), 10, 64); err != nil {
			return m, errcode.New(errcode.Internal, "header %s is %.40q", name, h.Get(name))
		}
	}
	m.Partition, m.Offset, m.Timestamp, m.Attempt = uint32(n[0]), n[1], n[2], uint32(n[3])
	var err error
	if _, ok := h["Tidemark-Key"]; ok {
		if m.Key, err = bytesOf(h.Get("Tidemark-Key"), h.Get("Tidemark-Key-Encoding")); err != nil {
			return m, err
		}
	}
	if list := h.Get("Tidemark-Headers"); list != "" {
		text, err := base64.StdEncoding.DecodeString(list)
		if err != nil {
			return m, err
		}
		var headers []header
		if err := json.Unmarshal(text, &headers); err != nil {
			return m, err
		}
		m.Headers, err = headersOf(headers)
		return m, err
	}
	for name, values := range h {
		if short, ok := strings.CutPrefix(name, "Tidemark-Header-"); ok {
			for _, v := range values {
				m.Headers = append(m.Headers, broker.Header{Name: strings.ToLower(short), Value: []byte(v)})
			}
		}
	}
	return m, nil
}

// header is a record header as JSON answers show it.
type header struct {
	Name     string `json:"name"`
	Value    string `json:"value"`
	Encoding string `json:"value_encoding"`
}

// message is a record as JSON answers show it.
type message struct {
	Partition       uint32          `json:"partition"`
	Offset          int64           `json:"offset"`
	Key             *string         `json:"key"`
	KeyEncoding     string          `json:"key_encoding"`
	Payload         json.RawMessage `json:"payload"`
	PayloadEncoding string          `json:"payload_encoding"`
	TimestampMS     int64           `json:"timestamp_ms"`
	Headers         []header        `json:"headers"`
	Attempt         uint32          `json:"delivery_count"`
	Handle          string          `json:"receipt_handle"`
}

func (m *message) decode() (broker.Message, error) {
	out := broker.Message{Partition: m.Partition, Attempt: m.Attempt, Handle: m.Handle}
	out.Offset, out.Timestamp = m.Offset, m.TimestampMS
	var err error
	if m.Key != nil {
		if out.Key, err = bytesOf(*m.Key, m.KeyEncoding); err != nil {
			return out, err
		}
	}
	if out.Value = m.Payload; len(m.Payload) > 0 && m.Payload[0] == '"' {
		var text string
		if err := json.Unmarshal(m.Payload, &text); err != nil {
			return out, err
		}
		if out.Value, err = bytesOf(text, m.PayloadEncoding); err != nil {
			return out, err
		}
	}
	out.Headers, err = headersOf(m.Headers)
	return out, err
}

func headersOf(list []header) (out []broker.Header, err error) {
	for _, h := range list {
		value, err := bytesOf(h.Value, h.Encoding)
		if err != nil {
			return nil, err
		}
		out = append(out, broker.Header{Name: h.Name, Value: value})
	}
	return out, nil
}

// bytesOf is the text, or what its base64 stands for; never nil.
func bytesOf(text, encoding string) ([]byte, error) {
	switch encoding {
	case "":
		return []byte(text), nil
	case "base64":
		return base64.StdEncoding.DecodeString(text)
	default:
		return nil, errcode.New(errcode.UnsupportedVersion, "encoding %.40q is not known to this client; use a newer one", encoding)
	}
}

// Settle ends or extends one lease. d is how long to extend (0: the topic's
// visibility timeout), or how long a nacked record stays hidden; it must be 0
// for an ack.
func (c *Client) Settle(ctx context.Context, topic, handle string, action broker.SettleAction, d time.Duration) error {
	q := url.Values{"receipt_handle": {handle}, "action": {string(action)}}
	if d > 0 {
		name := "for"
		if action == broker.SettleNack {
			name = "delay"
		}
		q.Set(name, d.String())
	}
	_, err := c.call(ctx, request{method: http.MethodPost, path: path("v1", "topics", topic, "ack"), query: q}, nil)
	return err
}

// Ack settles one record for good.
func (c *Client) Ack(ctx context.Context, topic, handle string) error {
	return c.Settle(ctx, topic, handle, broker.SettleAck, 0)
}

// AckBatch acks records and returns one error (or nil) per handle, in order.
func (c *Client) AckBatch(ctx context.Context, topic string, handles []string) ([]error, error) {
	var out struct {
		Results []struct {
			Status int    `json:"status"`
			Error  string `json:"error"`
			Code   string `json:"code"`
		} `json:"results"`
	}
	r := request{method: http.MethodPost, path: path("v1", "topics", topic, "ack")}
	if _, err := c.callJSON(ctx, r, map[string][]string{"receipt_handles": handles}, &out); err != nil {
		return nil, err
	}
	if len(out.Results) != len(handles) {
		return nil, errcode.New(errcode.Internal, "%d handles were acked, the answer has %d results", len(handles), len(out.Results))
	}
	errs := make([]error, len(handles))
	for i, res := range out.Results {
		if res.Status < 300 {
			continue
		}
		code, known := codes[res.Code]
		if !known {
			code = foreignCode(res.Status)
		}
		errs[i] = errcode.New(code, "%s", res.Error)
	}
	return errs, nil
}
