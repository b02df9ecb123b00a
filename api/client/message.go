package client

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

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
