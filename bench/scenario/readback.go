package scenario

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/tidemark-mq/tidemark/bench/rawhttp"
	"github.com/tidemark-mq/tidemark/bench/records"
)

// readBack reads the whole log of the trial's topic and counts what is there.
func (t *trial) readBack(ctx context.Context) error {
	accepted, _ := t.ledger.Counts()
	for p := range t.b.Partitions {
		err := t.readPartition(ctx, p, func(value []byte) {
			_, _ = t.ledger.Seen(value) // errors are in the verdict
			if _, seen := t.ledger.Counts(); seen%4096 == 0 {
				t.b.Progress("reading back "+t.topic, int64(seen), int64(accepted))
			}
		})
		if err != nil {
			return err
		}
	}
	t.b.Progress("reading back "+t.topic, int64(accepted), int64(accepted))
	return nil
}

// readPartition hands out the values of a partition, which are valid until take
// returns. It ends without an error only at the line that ends a stream.
func (t *trial) readPartition(ctx context.Context, partition int, take func(value []byte)) error {
	c, err := t.b.Target.Dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	r := rawhttp.Request{Method: http.MethodGet, Path: topicPath(t.topic, fmt.Sprintf("/partitions/%d/records", partition)), Accept: "application/x-ndjson"}
	res, err := c.Stream(r)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }() // how it ended is known by then
	if res.StatusCode != http.StatusOK {
		return refused(r, res)
	}
	err = t.lines(res.Body, func(value []byte) error {
		take(value)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read partition %d of %s back: %w", partition, t.topic, err)
	}
	return nil
}

// payload finds the value in the JSON form of a record. A record of text is JSON
// and stands there as it is; where it is not found so, it was changed, and what
// stands there is returned.
func payload(line []byte, size int, kind records.Kind) ([]byte, error) {
	if kind == records.Text {
		at := bytes.Index(line, []byte(`"payload":`+records.Prefix))
		if at >= 0 {
			at += len(`"payload":`)
			if end := at + size; end < len(line) && line[end-1] == '}' && (line[end] == ',' || line[end] == '}') {
				return line[at:end], nil
			}
		}
	}
	var m struct {
		Payload  json.RawMessage `json:"payload"`
		Encoding string          `json:"payload_encoding"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return nil, fmt.Errorf("%.100q is no record: %w", line, err)
	}
	if m.Encoding != "base64" {
		return m.Payload, nil
	}
	var text string
	if err := json.Unmarshal(m.Payload, &text); err != nil {
		return nil, fmt.Errorf("%.100q is no record: %w", line, err)
	}
	return base64.StdEncoding.DecodeString(text)
}
