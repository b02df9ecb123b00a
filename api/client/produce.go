package client

import (
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
	// ExpectedOffset, which needs Partition, is where the record, or the first of
	// the batch, has to stand: else nothing is stored, and the error has the code
	// PreconditionFailed and a [NextOffset]. With AtLeastOnce such an error may
	// follow a try whose answer was lost: look at what stands there. Nil: wherever
	// the log ends.
	ExpectedOffset *int64
	// AtLeastOnce sends again what may have been stored already, as after a lost
	// answer: records may then stand in the log twice. Without it such a call
	// fails with an error of class RetryUnknown.
	AtLeastOnce bool
}

func (o ProduceOptions) safety() safety {
	if o.AtLeastOnce {
		return harmless
	}
	return whenRefused
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
	if o.ExpectedOffset != nil {
		q.Set("expected_offset", strconv.FormatInt(*o.ExpectedOffset, 10))
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
		body: rec.Value, contentType: "application/octet-stream", header: http.Header{}, safety: o.safety(),
	}
	if rec.Key != nil {
		r.query.Set("key", string(rec.Key))
	}
	for _, h := range rec.Headers {
		name := textproto.CanonicalMIMEHeaderKey("Tidemark-Header-" + h.Name)
		r.header[name] = append(r.header[name], string(h.Value))
	}
	var out Receipt
	err := c.exchange(ctx, &r, func(res *http.Response) (err error) {
		out, err = receiptOf(ctx, res, topic, &r)
		return err
	})
	return out, err
}

func receiptOf(ctx context.Context, res *http.Response, topic string, r *request) (Receipt, error) {
	if res.StatusCode != http.StatusAccepted {
		var out Receipt
		return out, decodeBody(ctx, res, &out, r)
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

const mediaFrames = "application/vnd.tidemark.frames"

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

// frameKey splits the key off a frame that AppendFrame made.
func frameKey(b []byte) (key, rest []byte) {
	n := binary.BigEndian.Uint32(b)
	if b = b[4:]; n == noKey {
		return nil, b
	}
	return b[:n:n], b[n:]
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
	return c.batch(ctx, request{body: body, contentType: mediaFrames, path: batchPath(topic), query: o.query(), safety: o.safety()})
}

// ProduceNDJSON appends one record for each line of body that holds a JSON
// value, all or none. body is read once, so nothing is tried again.
func (c *Client) ProduceNDJSON(ctx context.Context, topic string, body io.Reader, o ProduceOptions) (BatchReceipt, error) {
	return c.batch(ctx, request{stream: body, contentType: "application/x-ndjson", path: batchPath(topic), query: o.query()})
}

func batchPath(topic string) string { return path("v1", "topics", topic, "produce", "batch") }

func (c *Client) batch(ctx context.Context, r request) (BatchReceipt, error) {
	r.method = http.MethodPost
	var out BatchReceipt
	_, err := c.call(ctx, r, &out)
	for _, p := range out.Partitions {
		out.Accepted += p.Count
	}
	return out, err
}
