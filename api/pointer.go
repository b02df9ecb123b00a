package api

import (
	"errors"
	"strings"
)

// pointer is a parsed JSON pointer (RFC 6901).
type pointer struct {
	set   bool
	text  string
	steps []string
}

// maxPointerSteps is more than any record of sense nests.
const maxPointerSteps = 32

func parsePointer(text string) (pointer, error) {
	p := pointer{set: true, text: text}
	if text == "" {
		return p, nil
	}
	if text[0] != '/' {
		return p, errors.New("a JSON pointer begins with a slash, as in /user/id")
	}
	p.steps = strings.Split(text[1:], "/")
	if len(p.steps) > maxPointerSteps {
		return p, errors.New("the JSON pointer has more than 32 steps")
	}
	for i, step := range p.steps {
		for j := range len(step) {
			if step[j] == '~' && (j+1 == len(step) || step[j+1] != '0' && step[j+1] != '1') {
				return p, errors.New("a tilde in a JSON pointer is written ~0, a slash ~1")
			}
		}
		p.steps[i] = strings.ReplaceAll(strings.ReplaceAll(step, "~1", "/"), "~0", "~")
	}
	return p, nil
}

// find returns the value that p points at in the checked value v, nil when
// there is none. Of members with the same name the last counts, as for most
// parsers.
func (p *pointer) find(v []byte) []byte {
	for _, step := range p.steps {
		switch v[0] {
		case '{':
			v = memberOf(v, step)
		case '[':
			v = elementOf(v, step)
		default:
			return nil
		}
		if v == nil {
			return nil
		}
	}
	return v
}

func memberOf(v []byte, name string) (found []byte) {
	it := objectIter{b: v}
	for it.next() {
		if isName(it.name, name) {
			found = it.value
		}
	}
	return found
}

// isName compares a quoted member name with its text.
func isName(raw []byte, name string) bool {
	if string(raw[1:len(raw)-1]) == name {
		return strings.IndexByte(name, '\\') < 0
	}
	for _, c := range raw {
		if c == '\\' {
			text, _, ok := unquote(nil, raw)
			return ok && string(text) == name
		}
	}
	return false
}

func elementOf(v []byte, step string) []byte {
	if len(step) > 1 && step[0] == '0' {
		return nil // array positions have no leading zeros
	}
	want, err := parseWhole(step)
	if err != nil {
		return nil
	}
	it := arrayIter{b: v}
	for at := int64(0); it.next(); at++ {
		if at == want {
			return it.value
		}
	}
	return nil
}
