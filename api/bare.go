package api

import (
	"encoding/base64"
	"net/textproto"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// writeBare answers with the value of one record as it is stored; everything
// else stands in headers.
func (x *exchange) writeBare(m *Message, lease bool) error {
	x.head("Tidemark-Topic", x.topic)
	x.headInt("Tidemark-Partition", int64(m.Partition))
	x.headInt("Tidemark-Offset", m.Offset)
	x.headInt("Tidemark-Timestamp-Ms", m.Timestamp)
	if lease {
		x.headInt("Tidemark-Delivery-Count", int64(m.Attempt))
		x.head("Tidemark-Receipt-Handle", m.Handle)
	}
	if m.Key != nil {
		if plainHeaderValue(m.Key) {
			x.head("Tidemark-Key", string(m.Key))
		} else {
			x.head("Tidemark-Key", base64.StdEncoding.EncodeToString(m.Key))
			x.head("Tidemark-Key-Encoding", "base64")
		}
	}
	x.bareHeaders(m.Headers)
	// The bytes are whatever a producer sent: no browser may guess their type.
	x.head("X-Content-Type-Options", "nosniff")
	return x.send(typeBytes, m.Value)
}

// bareHeaders shows record headers as headers of the answer. When one of them
// cannot be shown so, all of them stand, as base64 of their JSON list, in
// Tidemark-Headers instead, and nothing is lost.
func (x *exchange) bareHeaders(headers []broker.Header) {
	for _, rh := range headers {
		if !headerToken(rh.Name) || !plainHeaderValue(rh.Value) {
			x.head("Tidemark-Headers", base64.StdEncoding.EncodeToString(appendHeaderList(nil, headers)))
			return
		}
	}
	for _, rh := range headers {
		x.head(textproto.CanonicalMIMEHeaderKey(headerPrefix+rh.Name), string(rh.Value))
	}
}

// plainHeaderValue reports whether v survives in a header: visible ASCII, with
// spaces only inside.
func plainHeaderValue(v []byte) bool {
	for i, c := range v {
		if c < ' ' || c > '~' || c == ' ' && (i == 0 || i == len(v)-1) {
			return false
		}
	}
	return true
}

// headerToken reports whether name survives in the name of a header: lower
// case, since headers have no case.
func headerToken(name string) bool {
	for i := range len(name) {
		c := name[i]
		if !(c >= 'a' && c <= 'z' || isDigit(c) || c == '-' || c == '_' || c == '.') {
			return false
		}
	}
	return name != ""
}
