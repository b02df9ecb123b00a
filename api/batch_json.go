package api

import (
	"encoding/base64"
	"unicode/utf8"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// decodeJSON reads {"messages":[...]} in one pass: every element is decoded
// where it stands, and the first beyond a bound ends the work.
func (b *batch) decodeJSON(body []byte) error {
	top, err := oneObject(body)
	if err != nil {
		return err
	}
	seen := false
	for top.open() {
		switch {
		case !isName(top.name, "messages"):
			return unknownField(top.name, "messages")
		case seen:
			return errcode.New(errcode.InvalidArgument, `the field "messages" is given twice`)
		case top.at >= len(body) || body[top.at] != '[':
			return errcode.New(errcode.InvalidArgument, `the field "messages" is not a list`)
		}
		seen = true
		if top.at, err = b.messages(body, top.at); err != nil {
			return err
		}
	}
	if err := endOfObject(body, top.at); err != nil {
		return err
	}
	if !seen {
		return errcode.New(errcode.InvalidArgument, `the body has no field "messages"`)
	}
	return nil
}

// messages decodes the list that starts at at and returns its end.
func (b *batch) messages(body []byte, at int) (int, error) {
	list := arrayIter{b: body, at: at, depth: 1}
	for list.open() {
		if err := b.room(); err != nil {
			return 0, err
		}
		if list.at >= len(body) || body[list.at] != '{' {
			return 0, b.bad("it is not an object")
		}
		end, err := b.message(body, list.at)
		if err != nil {
			return 0, err
		}
		list.at = end
	}
	if list.at < 0 {
		return 0, notJSON(list.at)
	}
	return list.at, nil
}

// jsonMessage are the fields of one message, as they stand in the body.
type jsonMessage struct {
	payload, payloadEncoding, key, keyEncoding, partition, headers []byte
}

// field returns where the field of a name is kept, nil when there is none.
func (m *jsonMessage) field(name []byte) *[]byte {
	switch {
	case isName(name, "payload"):
		return &m.payload
	case isName(name, "payload_encoding"):
		return &m.payloadEncoding
	case isName(name, "key"):
		return &m.key
	case isName(name, "key_encoding"):
		return &m.keyEncoding
	case isName(name, "partition"):
		return &m.partition
	case isName(name, "headers"):
		return &m.headers
	default:
		return nil
	}
}

// message decodes the object at at and returns its end.
func (b *batch) message(body []byte, at int) (int, error) {
	var m jsonMessage
	it := objectIter{b: body, at: at, depth: 2}
	for it.next() {
		to := m.field(it.name)
		if to == nil {
			return 0, b.unknown(it.name)
		}
		if *to != nil {
			return 0, b.bad("the field %.60s is given twice", it.name)
		}
		*to = it.value
	}
	if it.at < 0 {
		return 0, b.bad("the body is not JSON at byte %d", faultAt(it.at)+1)
	}
	return it.at, b.take(&m)
}

func (b *batch) unknown(name []byte) error {
	for _, later := range []string{"delay", "deliver_at", "idempotency_key"} {
		if isName(name, later) {
			return b.bad("field %q is not in this build; leave it out", later)
		}
	}
	return b.bad("unknown field %.60s; a message has payload, payload_encoding, key, key_encoding, partition and headers", name)
}

// take turns the fields into a record.
func (b *batch) take(m *jsonMessage) error {
	if m.payload == nil {
		return b.bad("it has no payload")
	}
	value := m.payload
	switch {
	case m.payload[0] == '"':
		var err error
		if value, err = b.decoded("payload", m.payload, m.payloadEncoding); err != nil {
			return err
		}
	case !isNull(m.payloadEncoding):
		return b.bad("payload_encoding goes with a payload that is a string")
	}
	var key []byte
	switch {
	case isNull(m.key):
		if !isNull(m.keyEncoding) {
			return b.bad("key_encoding goes with a key")
		}
	case m.key[0] != '"':
		return b.bad("the key is not a string")
	default:
		var err error
		if key, err = b.decoded("key", m.key, m.keyEncoding); err != nil {
			return err
		}
	}
	partition := b.partition
	if !isNull(m.partition) {
		var err error
		if partition, err = parsePartition(string(m.partition), b.x.info.Partitions); err != nil {
			return b.bad("%v", err)
		}
	}
	headers, err := b.headerList(m.headers)
	if err != nil {
		return err
	}
	return b.add(partition, key, value, headers)
}

// isNull reports that a field is absent or null, which mean the same.
func isNull(raw []byte) bool { return raw == nil || raw[0] == 'n' }

// decoded is the text of a string field, or the bytes that its base64 stands
// for.
func (b *batch) decoded(what string, raw, encoding []byte) ([]byte, error) {
	text, arena, ok := unquote(b.arena.b, raw)
	b.arena.b = arena
	if !ok {
		return nil, b.bad("the %s has half a surrogate pair, which is no text; send its bytes in base64", what)
	}
	if isNull(encoding) {
		if text == nil {
			text = []byte{}
		}
		return text, nil
	}
	if !isName(encoding, "base64") || encoding[0] != '"' {
		return nil, b.bad("%s_encoding is %.40s; it is \"base64\" or left out", what, encoding)
	}
	from := len(b.arena.b)
	out, err := base64.StdEncoding.AppendDecode(b.arena.b, text)
	if err != nil {
		return nil, b.bad("the %s is not base64: %v", what, err)
	}
	b.arena.b = out
	return out[from:len(out):len(out)], nil
}

// headerList decodes [{"name":..,"value":..,"value_encoding":..}].
func (b *batch) headerList(raw []byte) ([]broker.Header, error) {
	if isNull(raw) {
		return nil, nil
	}
	if raw[0] != '[' {
		return nil, b.bad("headers is not a list of {name, value, value_encoding}")
	}
	from := len(b.x.headers)
	it := arrayIter{b: raw}
	for it.next() {
		if len(b.x.headers)-from >= b.x.s.limits.RecordHeaders {
			return nil, b.bad("it has more than %d headers", b.x.s.limits.RecordHeaders)
		}
		h, err := b.header(it.value)
		if err != nil {
			return nil, err
		}
		b.x.headers = append(b.x.headers, h)
	}
	to := len(b.x.headers)
	list := b.x.headers[from:to:to]
	size := 0
	for _, h := range list {
		size += len(h.Name) + len(h.Value)
	}
	if size > b.x.s.limits.HeaderBytes {
		return nil, b.tooLarge("headers", size, int64(b.x.s.limits.HeaderBytes))
	}
	if err := b.x.checkHeaders(list); err != nil {
		return nil, b.bad("%v", err)
	}
	return list, nil
}

func (b *batch) header(raw []byte) (broker.Header, error) {
	var name, value, encoding []byte
	if raw[0] != '{' {
		return broker.Header{}, b.bad("a header is not an object of name, value and value_encoding")
	}
	it := objectIter{b: raw}
	for it.next() {
		var to *[]byte
		switch {
		case isName(it.name, "name"):
			to = &name
		case isName(it.name, "value"):
			to = &value
		case isName(it.name, "value_encoding"):
			to = &encoding
		default:
			return broker.Header{}, b.bad("unknown field %.60s of a header; it has name, value and value_encoding", it.name)
		}
		if *to != nil {
			return broker.Header{}, b.bad("the field %.60s of a header is given twice", it.name)
		}
		*to = it.value
	}
	if name == nil || name[0] != '"' || value == nil || value[0] != '"' {
		return broker.Header{}, b.bad("a header needs a name and a value that are strings")
	}
	text, err := b.decoded("header name", name, nil)
	if err != nil {
		return broker.Header{}, err
	}
	data, err := b.decoded("header value", value, encoding)
	return broker.Header{Name: string(text), Value: data}, err
}

// oneObject begins to read a body that is one JSON object in valid UTF-8.
func oneObject(body []byte) (objectIter, error) {
	at := skipSpace(body, 0)
	switch {
	case at == len(body):
		return objectIter{}, errcode.New(errcode.InvalidArgument, "the body is empty; a JSON object is expected")
	case !utf8.Valid(body):
		return objectIter{}, errcode.New(errcode.InvalidArgument, "the body is not valid UTF-8, so it is not JSON; send other bytes in base64")
	case body[at] != '{':
		return objectIter{}, errcode.New(errcode.InvalidArgument, "the body is not a JSON object")
	}
	return objectIter{b: body, at: at}, nil
}

// endOfObject checks that the object ended well, at the end of the body.
func endOfObject(body []byte, at int) error {
	if at < 0 {
		return notJSON(at)
	}
	if after := skipSpace(body, at); after != len(body) {
		return errcode.New(errcode.InvalidArgument, "the body goes on after its JSON object, at byte %d", after+1)
	}
	return nil
}

func notJSON(at int) error {
	return errcode.New(errcode.InvalidArgument, "the body is not JSON at byte %d", faultAt(at)+1)
}

func unknownField(name []byte, known string) error {
	return errcode.New(errcode.InvalidArgument, "unknown field %.60s; the body has %s", name, known)
}
