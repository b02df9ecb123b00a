package api

import (
	"encoding/base64"
	"strconv"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// writeBare answers with the value of one record as it is stored; everything
// else stands in headers.
func (x *exchange) writeBare(m *Message, lease bool) error {
	h := x.Header()
	set := func(name, value string) { h[name] = []string{value} }
	set("Tidemark-Topic", x.topic)
	set("Tidemark-Partition", strconv.FormatUint(uint64(m.Partition), 10))
	set("Tidemark-Offset", strconv.FormatInt(m.Offset, 10))
	set("Tidemark-Timestamp-Ms", strconv.FormatInt(m.Timestamp, 10))
	if lease {
		set("Tidemark-Delivery-Count", strconv.FormatUint(uint64(m.Attempt), 10))
		set("Tidemark-Receipt-Handle", m.Handle)
	}
	if m.Key != nil {
		if plainHeaderValue(m.Key) {
			set("Tidemark-Key", string(m.Key))
		} else {
			set("Tidemark-Key", base64.StdEncoding.EncodeToString(m.Key))
			set("Tidemark-Key-Encoding", "base64")
		}
	}
	x.bareHeaders(m.Headers)
	// The bytes are whatever a producer sent: no browser may guess their type.
	h["X-Content-Type-Options"] = noSniff
	return x.send(typeBytes, m.Value)
}

// bareHeaders shows record headers as headers of the answer. When one of them
// cannot be shown so, all of them stand, as base64 of their JSON list, in
// Tidemark-Headers instead, and nothing is lost.
func (x *exchange) bareHeaders(headers []broker.Header) {
	h := x.Header()
	for _, rh := range headers {
		if !headerToken(rh.Name) || !plainHeaderValue(rh.Value) {
			h["Tidemark-Headers"] = []string{base64.StdEncoding.EncodeToString(appendHeaderList(nil, headers))}
			return
		}
	}
	for _, rh := range headers {
		h.Add(headerPrefix+rh.Name, string(rh.Value))
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
