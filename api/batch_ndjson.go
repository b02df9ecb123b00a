package api

import (
	"bytes"
	"unicode/utf8"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// lines decodes one JSON value a line. The record's value is the line (or the
// part of it that value_field names), byte for byte, without the white space
// around it; lines of white space alone are no records.
type lines struct {
	*batch
	key, value pointer
}

// newLines reads the two JSON pointers of the query.
func newLines(b *batch, q *query) (*lines, error) {
	l := &lines{batch: b}
	for _, p := range []struct {
		name string
		to   *pointer
	}{{"key_field", &l.key}, {"value_field", &l.value}} {
		text, ok := q.get(p.name)
		if !ok {
			continue
		}
		var err error
		if *p.to, err = parsePointer(text); err != nil {
			return nil, errcode.New(errcode.InvalidArgument, "parameter %s: %v", p.name, err)
		}
	}
	return l, nil
}

func (l *lines) decode(body []byte) error {
	valid := utf8.Valid(body)
	for number := 1; len(body) > 0; number++ {
		line := body
		if at := bytes.IndexByte(body, '\n'); at >= 0 {
			line, body = body[:at], body[at+1:]
		} else {
			body = nil
		}
		from := skipSpace(line, 0)
		if from == len(line) {
			continue
		}
		if err := l.room(); err != nil {
			return err
		}
		if !valid && !utf8.Valid(line) {
			return l.bad("line %d is not valid UTF-8", number)
		}
		if err := l.line(line, from, number); err != nil {
			return err
		}
	}
	return nil
}

// line takes the value that starts at from.
func (l *lines) line(line []byte, from, number int) error {
	end := skipValue(line, from, 0)
	if end < 0 {
		return l.bad("line %d is not JSON at byte %d", number, faultAt(end)+1)
	}
	if after := skipSpace(line, end); after != len(line) {
		return l.bad("line %d goes on after its JSON value, at byte %d", number, after+1)
	}
	whole := line[from:end:end]
	value := whole
	if l.value.set {
		if value = l.value.find(whole); value == nil {
			return l.bad("line %d has nothing at value_field %.100q", number, l.value.text)
		}
	}
	key, err := l.keyOf(whole, number)
	if err != nil {
		return err
	}
	return l.add(l.partition, key, value, nil)
}

// keyOf is the text of a string, or the JSON text of a number or boolean, at
// key_field. A line without one is refused: it would lose its order silently.
func (l *lines) keyOf(line []byte, number int) ([]byte, error) {
	if !l.key.set {
		return nil, nil
	}
	raw := l.key.find(line)
	if raw == nil {
		return nil, l.bad("line %d has nothing at key_field %.100q", number, l.key.text)
	}
	switch raw[0] {
	case '"':
		text, arena, ok := unquote(l.arena.b, raw)
		l.arena.b = arena
		if !ok {
			return nil, l.bad("line %d: the string at key_field %.100q has half a surrogate pair", number, l.key.text)
		}
		return text, nil
	case '{', '[', 'n':
		return nil, l.bad("line %d: what stands at key_field %.100q is no string, number or boolean", number, l.key.text)
	default:
		return raw, nil
	}
}
