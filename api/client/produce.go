package client

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// ProduceOptions are what a produce may say. The zero value leaves everything
// to the node.
type ProduceOptions struct {
	Partition *uint32       // nil: by key, else the node chooses
	Ack       broker.Ack    // "": the topic's level
	Wait      time.Duration // for the ack level; 0: the node's default
	KeyField  string        // NDJSON: JSON pointer to the key in each line
}

func (o ProduceOptions) query() url.Values {
	q := url.Values{}
	if o.Partition != nil {
		q.Set("partition", strconv.FormatUint(uint64(*o.Partition), 10))
	}
	if o.Ack != broker.AckDefault {
		q.Set("ack", string(o.Ack))
	}
	if o.Wait > 0 {
		q.Set("wait", o.Wait.String())
	}
	if o.KeyField != "" {
		q.Set("key_field", o.KeyField)
	}
	return q
}

// Receipt says where one record stands. Offset is -1 while nobody has assigned
// it: another node owns the partition and the level was accepted.
type Receipt struct {
	Topic       string `json:"topic"`
	Partition   uint32 `json:"partition"`
	Offset      int64  `json:"offset"`
	TimestampMS int64  `json:"timestamp_ms"` // 0 at level accepted
	Generation  uint32 `json:"generation"`   // 0 at level accepted
	Archived    bool   `json:"archived"`
}

// Produce appends one record: its key, value and headers. Header names lose
// their case on the way.
func (c *Client) Produce(ctx context.Context, topic string, rec broker.Record, o ProduceOptions) (Receipt, error) {
	r := request{
		method: http.MethodPost, path: path("v1", "topics", topic, "produce"), query: o.query(),
		body: bytes.NewReader(rec.Value), contentType: "application/octet-stream", header: http.Header{},
	}
	if rec.Key != nil {
		r.query.Set("key", string(rec.Key))
	}
	for _, h := range rec.Headers {
		name := textproto.CanonicalMIMEHeaderKey("Tidemark-Header-" + h.Name)
		r.header[name] = append(r.header[name], string(h.Value))
	}
	res, err := c.send(ctx, r)
	if err != nil {
		return Receipt{}, err
	}
	defer func() { _ = res.Body.Close() }() // it has been read
	return receiptOf(res, topic, r)
}

func receiptOf(res *http.Response, topic string, r request) (Receipt, error) {
	if res.StatusCode != http.StatusAccepted {
		var out Receipt
		return out, decodeBody(res.Body, &out, r)
	}
	out := Receipt{Topic: topic, Offset: -1}
	partition, err := strconv.ParseUint(res.Header.Get("Tidemark-Partition"), 10, 32)
	if err != nil {
		return out, errcode.New(errcode.Internal, "POST %s: the answer names no partition; is this a Tidemark node?", r.path)
	}
	out.Partition = uint32(partition)
	if text := res.Header.Get("Tidemark-Offset"); text != "" {
		if out.Offset, err = strconv.ParseInt(text, 10, 64); err != nil {
			return out, errcode.New(errcode.Internal, "POST %s: the answer's offset is %.40q", r.path, text)
		}
	}
	return out, nil
}

// BatchReceipt says where the records of a batch stand.
type BatchReceipt struct {
	Accepted   int                `json:"accepted"`   // records, at every level
	Partitions []broker.Placement `json:"partitions"` // at committed and archived
	Archived   bool               `json:"archived"`
}

// noKey is the key length of a frame without a key.
const noKey = 0xFFFFFFFF

// AppendFrame appends a record in the form of application/vnd.tidemark.frames;
// key nil means no key.
func AppendFrame(b, key, value []byte) []byte {
	if key == nil {
		b = binary.BigEndian.AppendUint32(b, noKey)
	} else {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(key))), key...)
	}
	return append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
}

// ProduceBatch appends the keys and values of records, all or none. Frames
// carry no headers: a record with some is refused rather than cut.
func (c *Client) ProduceBatch(ctx context.Context, topic string, recs []broker.Record, o ProduceOptions) (BatchReceipt, error) {
	var body []byte
	for i := range recs {
		if len(recs[i].Headers) > 0 {
			return BatchReceipt{}, errcode.New(errcode.InvalidArgument, "record %d of the batch has headers, which frames cannot carry; produce it alone", i)
		}
		body = AppendFrame(body, recs[i].Key, recs[i].Value)
	}
	return c.batch(ctx, topic, bytes.NewReader(body), "application/vnd.tidemark.frames", o)
}

// ProduceNDJSON appends one record for each line of body that holds a JSON
// value, all or none.
func (c *Client) ProduceNDJSON(ctx context.Context, topic string, body io.Reader, o ProduceOptions) (BatchReceipt, error) {
	return c.batch(ctx, topic, body, "application/x-ndjson", o)
}

func (c *Client) batch(ctx context.Context, topic string, body io.Reader, kind string, o ProduceOptions) (BatchReceipt, error) {
	var out BatchReceipt
	_, err := c.call(ctx, request{
		method: http.MethodPost, path: path("v1", "topics", topic, "produce", "batch"), query: o.query(), body: body, contentType: kind,
	}, &out)
	for _, p := range out.Partitions {
		out.Accepted += p.Count
	}
	return out, err
}
