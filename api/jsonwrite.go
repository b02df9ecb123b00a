package api

import (
	"encoding/base64"
	"strconv"
	"unicode/utf8"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

const hexDigits = "0123456789abcdef"

// appendText appends s as a JSON string. Bytes that are no UTF-8 become U+FFFD;
// where every byte counts, callers choose base64 first.
func appendText[S string | []byte](b []byte, s S) []byte {
	b = append(b, '"')
	begin := len(b)
	b = append(b, s...)
	if plainEnd(b, begin) == len(b) && utf8.Valid(b[begin:]) {
		return append(b, '"') // nearly always
	}
	b = b[:begin]
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if plainInString[c] {
				i++
				continue
			}
			b = append(b, s[from:i]...)
			b = appendEscape(b, c)
			i++
			from = i
			continue
		}
		r, size := utf8.DecodeRuneInString(string(s[i:min(i+utf8.UTFMax, len(s))]))
		if r == utf8.RuneError && size == 1 {
			b = append(b, s[from:i]...)
			b = append(b, "\ufffd"...)
			i++
			from = i
			continue
		}
		i += size
	}
	b = append(b, s[from:]...)
	return append(b, '"')
}

func appendEscape(b []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(b, '\\', c)
	case '\n':
		return append(b, '\\', 'n')
	case '\r':
		return append(b, '\\', 'r')
	case '\t':
		return append(b, '\\', 't')
	default:
		return append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
	}
}

func appendBase64(b, data []byte) []byte {
	b = append(b, '"')
	b = base64.StdEncoding.AppendEncode(b, data)
	return append(b, '"')
}

// appendBytes appends data as a member: a string where it is UTF-8, else
// base64 with a second member that says so.
func appendBytes(b []byte, name string, data []byte) []byte {
	b = append(b, ',', '"')
	b = append(b, name...)
	b = append(b, '"', ':')
	if utf8.Valid(data) {
		return appendText(b, data)
	}
	b = appendBase64(b, data)
	b = append(b, ',', '"')
	b = append(b, name...)
	return append(b, `_encoding":"base64"`...)
}

// appendPayload appends the value of a record as the member payload: a JSON
// value as it is, other UTF-8 as a string, else base64. With oneLine the line
// breaks between the tokens of a JSON value become spaces.
func appendPayload(b, value []byte, oneLine bool) []byte {
	if !looksLikeJSON(value) || !validJSON(value) {
		return appendBytes(b, "payload", value)
	}
	b = append(b, `,"payload":`...)
	from := len(b)
	b = append(b, value...)
	if oneLine {
		// Strings of valid JSON hold no raw line break: each one is space.
		for i, c := range b[from:] {
			if c == '\n' || c == '\r' {
				b[from+i] = ' '
			}
		}
	}
	return b
}

// looksLikeJSON is a cheap first look at what cannot be JSON.
func looksLikeJSON(value []byte) bool {
	i := skipSpace(value, 0)
	if i == len(value) {
		return false
	}
	switch c := value[i]; c {
	case '{', '[', '"', 't', 'f', 'n', '-':
		return true
	default:
		return isDigit(c)
	}
}

func appendInt(b []byte, name string, v int64) []byte {
	b = append(b, ',', '"')
	b = append(b, name...)
	b = append(b, '"', ':')
	return strconv.AppendInt(b, v, 10)
}

// appendHeaders appends the member headers, a list in the record's order:
// names may repeat. A record without headers has no such member.
func appendHeaders(b []byte, headers []broker.Header) []byte {
	if len(headers) == 0 {
		return b
	}
	b = append(b, `,"headers":`...)
	return appendHeaderList(b, headers)
}

func appendHeaderList(b []byte, headers []broker.Header) []byte {
	b = append(b, '[')
	for i, h := range headers {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"name":`...)
		b = appendText(b, h.Name)
		b = appendBytes(b, "value", h.Value)
		b = append(b, '}')
	}
	return append(b, ']')
}

// appendMessage appends a delivered record. Without lease it is a replay: it
// has no receipt handle and no count.
func appendMessage(b []byte, topic string, m *Message, lease bool) []byte {
	b = appendMessageHead(b, topic, m)
	b = appendPayload(b, m.Value, false)
	return appendMessageTail(b, m, lease)
}

// appendMessageHead begins a delivered record: what stands before its payload.
func appendMessageHead(b []byte, topic string, m *Message) []byte {
	b = append(b, `{"topic":`...)
	b = appendText(b, topic)
	b = appendInt(b, "partition", int64(m.Partition))
	b = appendInt(b, "offset", m.Offset)
	if m.Key != nil {
		b = appendBytes(b, "key", m.Key)
	}
	return b
}

// appendMessageTail ends it.
func appendMessageTail(b []byte, m *Message, lease bool) []byte {
	b = appendInt(b, "timestamp", m.Timestamp/1000)
	b = appendInt(b, "timestamp_ms", m.Timestamp)
	b = appendHeaders(b, m.Headers)
	if lease {
		b = appendInt(b, "delivery_count", int64(m.Attempt))
		b = append(b, `,"receipt_handle":`...)
		b = appendText(b, m.Handle)
	}
	return append(b, '}')
}

// appendRecord appends a record of the log.
func appendRecord(b []byte, r *broker.Record, oneLine bool) []byte {
	b = appendRecordHead(b, r)
	b = appendPayload(b, r.Value, oneLine)
	b = appendHeaders(b, r.Headers)
	return append(b, '}')
}

// appendRecordHead begins a record of the log: what stands before its payload.
func appendRecordHead(b []byte, r *broker.Record) []byte {
	b = append(b, `{"offset":`...)
	b = strconv.AppendInt(b, r.Offset, 10)
	b = appendInt(b, "timestamp_ms", r.Timestamp)
	if r.Key != nil {
		b = appendBytes(b, "key", r.Key)
	}
	return b
}

// appendPlacement appends where a produce of one record stands.
func appendPlacement(b []byte, topic string, p *Placement, archived bool) []byte {
	b = append(b, `{"topic":`...)
	b = appendText(b, topic)
	b = appendInt(b, "partition", int64(p.Partition))
	b = appendInt(b, "offset", p.FirstOffset)
	b = appendInt(b, "timestamp_ms", p.TimestampMS)
	b = appendInt(b, "generation", int64(p.Generation))
	if archived {
		b = append(b, `,"archived":true`...)
	}
	return append(b, '}')
}

// appendPlacements appends where the records of a batch stand, by partition.
func appendPlacements(b []byte, places []Placement, archived bool) []byte {
	b = append(b, `{"partitions":[`...)
	for i := range places {
		p := &places[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"partition":`...)
		b = strconv.AppendInt(b, int64(p.Partition), 10)
		b = appendInt(b, "first_offset", p.FirstOffset)
		b = appendInt(b, "last_offset", p.LastOffset)
		b = appendInt(b, "count", int64(p.Count))
		b = append(b, '}')
	}
	b = append(b, ']')
	if archived {
		b = append(b, `,"archived":true`...)
	}
	return append(b, '}')
}
