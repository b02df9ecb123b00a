package api

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

// The scanner agrees with the grammar on the corners of it.
func TestScanner(t *testing.T) {
	for text, want := range map[string]bool{
		"": false, " ": false, "0": true, "-0": true, "00": false, "-": false, "1.5e+10": true, "1.e1": false, ".5": false, "1e": false, "1E-0": true, "+1": false,
		"true": true, "tru": false, "truex": false, "null": true, "False": false, `""`: true, `"`: false, `"\"`: false, `"\u00e9"`: true, `"\u00g9"`: false, `"\z"`: false,
		"\"\t\"": false, "\"\x7f\"": true, "[]": true, "[ ]": true, "[1,2 , 3]": true, "[1,]": false, "[,1]": false, "[1 2]": false, "[": false, "]": false,
		"{}": true, `{"a":1}`: true, `{"a":1,"a":2}`: true, `{"a"}`: false, `{"a":}`: false, `{a:1}`: false, `{"a":1,}`: false, `{,}`: false, `{"a" : [ { } ] } `: true,
		"1 1": false, "\xef\xbb\xbf1": false, "\"\xff\"": false, "NaN": false, "'a'": false, "//": false, "[1/**/]": false,
		strings.Repeat("[", 511) + strings.Repeat("]", 511): true, strings.Repeat("[", 512) + strings.Repeat("]", 512): true,
		strings.Repeat("[", 513) + strings.Repeat("]", 513): false, strings.Repeat("[", 1<<20): false, strings.Repeat(`{"a":`, 1<<18): false,
	} {
		if got := validJSON([]byte(text)); got != want {
			t.Errorf("%.60q: %v, want %v", text, got, want)
		}
	}
}

// Texts come out of JSON as encoding/json reads them.
func TestTextRoundTrip(t *testing.T) {
	for _, text := range []string{"", "plain", "\"\\\x00\x1f\x7f\n\r\t", "é😀\u2028", strings.Repeat("鍵", 500)} {
		raw := appendText(nil, text)
		var back string
		if err := json.Unmarshal(raw, &back); err != nil || back != text {
			t.Errorf("%q: %q %v", text, back, err)
		}
		if got, _, ok := unquote(nil, raw); !ok || string(got) != text {
			t.Errorf("%q: unquoted %q", text, got)
		}
	}
	if got := appendText(nil, "a\xffb"); string(got) != "\"a\ufffdb\"" {
		t.Errorf("%q", got)
	}
}

// FuzzScanner: the scanner, the walker and the text reader agree with
// encoding/json on every input, and never panic.
func FuzzScanner(f *testing.F) {
	for _, s := range []string{`{"a":[1,2,{"b":"\u00e9\ud83d\ude00"}],"a":null}`, "1e999999999", `"\ud800"`, "[[[", `{"a~/b":{"":1}}`, "\xff", ` [1 , "x"] `} {
		f.Add([]byte(s), "/a/2/b")
	}
	f.Fuzz(func(t *testing.T, b []byte, path string) {
		valid := validJSON(b)
		if want := json.Valid(b) && utf8.Valid(b); valid && !want || want && !valid && depthOf(b) <= maxJSONDepth {
			t.Fatalf("valid %v, encoding/json says %v", valid, want)
		}
		if !valid {
			return
		}
		from := skipSpace(b, 0)
		v := b[from:skipValue(b, from, 0)]
		if v[0] == '"' {
			var want string
			text, _, ok := unquote(nil, v)
			if err := json.Unmarshal(v, &want); err != nil || ok && string(text) != want || !ok && !strings.Contains(want, "\ufffd") {
				t.Fatalf("text %q, encoding/json says %q %v", text, want, err)
			}
		}
		p, err := parsePointer(path)
		if err != nil {
			return
		}
		if found := p.find(v); found != nil && !json.Valid(found) {
			t.Fatalf("the pointer %q found %q, which is no value", path, found)
		}
	})
}

func depthOf(b []byte) (deepest int) {
	depth, quoted := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == '[' || c == '{'):
			depth++
			deepest = max(deepest, depth)
		case !quoted && (c == ']' || c == '}'):
			depth--
		}
	}
	return deepest
}

// decoder runs one batch decoder over a body, as a request does.
func decoder(body []byte, decode func(*batch, []byte) error) ([]NewRecord, error) {
	l := DefaultLimits()
	l.BatchRecords, l.RecordHeaders = 20, 4
	x := &exchange{s: &Server{limits: l}, info: TopicInfo{Partitions: 3}}
	b := &batch{x: x, partition: -1, valueMax: 1 << 10, keyMax: 64, arena: &buffer{}}
	err := decode(b, body)
	return x.records, err
}

// FuzzFrames: what is taken is what an independent reading of the format says,
// and its encoding gives the body again.
func FuzzFrames(f *testing.F) {
	f.Add([]byte(frame("-", "a") + frame("k", "") + frame("", "v")))
	f.Add([]byte("\xff\xff\xff\xff\x7f\xff\xff\xff"))
	f.Add([]byte("\x00\x00\x00\x01"))
	f.Fuzz(func(t *testing.T, body []byte) {
		recs, err := decoder(body, (*batch).decodeFrames)
		if err != nil {
			return
		}
		var back strings.Builder
		for _, r := range recs {
			key := string(r.Key)
			if r.Key == nil {
				key = "-"
			} else if key == "-" {
				return // the helper's sign for no key
			}
			back.WriteString(frame(key, string(r.Value)))
		}
		if back.String() != string(body) {
			t.Fatalf("%q came back as %q", body, back.String())
		}
	})
}

// FuzzNDJSON: every record is one JSON value out of the body, in its order.
func FuzzNDJSON(f *testing.F) {
	f.Add([]byte("{\"a\":1}\n\n 2 \r\n\"x\""), "/a", "")
	f.Add([]byte(`{"a":"\u0061"}`), "/a", "/a")
	f.Add([]byte("[1,2]\n[3,4]"), "/0", "/1")
	f.Fuzz(func(t *testing.T, body []byte, key, value string) {
		recs, err := decoder(body, func(b *batch, body []byte) error {
			l := &lines{batch: b}
			var err error
			if key != "" {
				if l.key, err = parsePointer(key); err != nil {
					return err
				}
			}
			if value != "" {
				if l.value, err = parsePointer(value); err != nil {
					return err
				}
			}
			return l.decode(body)
		})
		rest := body
		for _, r := range recs {
			if !json.Valid(r.Value) {
				t.Fatalf("%q is no JSON", r.Value)
			}
			at := bytes.Index(rest, r.Value)
			if at < 0 {
				t.Fatalf("%q is not in the rest of the body", r.Value)
			}
			if value == "" {
				rest = rest[at+len(r.Value):]
			}
			if key != "" && r.Key == nil {
				t.Fatal("a record without the key that was asked for")
			}
		}
		if err == nil && key == "" && value == "" {
			count := 0
			for _, line := range bytes.Split(body, []byte("\n")) {
				if len(bytes.Trim(line, " \t\r")) > 0 {
					count++
				}
			}
			if count != len(recs) {
				t.Fatalf("%d records of %d lines", len(recs), count)
			}
		}
	})
}

// FuzzJSONBatch: what is taken encoding/json takes too, with the same values.
func FuzzJSONBatch(f *testing.F) {
	f.Add([]byte(`{"messages":[{"payload":"a\n","key":"k"},{"payload":{"x":1},"partition":2},{"payload":"AP8=","payload_encoding":"base64","headers":[{"name":"n","value":"v"}]}]}`))
	f.Add([]byte(`{"messages":[]}`))
	f.Add([]byte(`{}{}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		recs, err := decoder(body, (*batch).decodeJSON)
		if err != nil {
			return
		}
		var want struct {
			Messages []struct {
				Payload         json.RawMessage
				PayloadEncoding *string `json:"payload_encoding"`
			}
		}
		if err := json.Unmarshal(body, &want); err != nil || len(want.Messages) != len(recs) {
			t.Fatalf("%d records, encoding/json says %d: %v", len(recs), len(want.Messages), err)
		}
		for i, m := range want.Messages {
			var got any = string(recs[i].Value)
			var expect any = string(m.Payload)
			if m.Payload[0] == '"' {
				var b []byte
				var text string
				if m.PayloadEncoding != nil {
					err = json.Unmarshal(m.Payload, &b)
					text = string(b)
				} else {
					err = json.Unmarshal(m.Payload, &text)
				}
				expect = text
			}
			if err != nil || got != expect {
				t.Fatalf("message %d is %q, encoding/json says %q: %v", i, got, expect, err)
			}
		}
	})
}

// FuzzQuery: what passes has each parameter once, and no reader of queries
// sees another value.
func FuzzQuery(f *testing.F) {
	for _, q := range []string{"a=1&b=2", "a=a;b", "a=%zz", "a=%41&&b", "a&a", "%61=x", "a=+"} {
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		var q query
		if q.parse(raw, []string{"a", "b"}, []string{"later"}) != nil {
			return
		}
		for _, name := range q.names {
			value, ok := q.get(name)
			if !ok && (strings.HasPrefix(raw, name+"=") || strings.Contains(raw, "&"+name+"=")) {
				t.Fatalf("%s was lost", name)
			}
			if ok && value == "" && strings.HasPrefix(raw, name+"=x") {
				t.Fatalf("%s lost its value", name)
			}
		}
		_, _ = q.whole("a", 0, 0, 10)
		_, _ = q.duration("a", 0)
		_, _, _ = q.instant("b")
	})
}

// FuzzPath: whatever the path, the answer is one, and a record is stored only
// in the topic that the path names.
func FuzzPath(f *testing.F) {
	for _, p := range []string{"/v1/topics/orders/produce", "/v1/topics/a%2Fb/produce", "/v1/topics//produce", "//", "/v1/topics/orders/produce/batch/", "/%zz", "/v1/topics/%6frders/produce"} {
		f.Add("POST", p)
	}
	broker := newFakeBroker().topic("orders", 1)
	s, err := New(broker, Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, method, path string) {
		w, r, ok := fuzzRequest(method, path)
		if !ok {
			return
		}
		before := broker.count("orders")
		s.ServeHTTP(w, r)
		if w.Code < 200 || w.Code > 599 {
			t.Fatalf("%s %q: status %d", method, path, w.Code)
		}
		if w.Code >= 400 && method != "HEAD" && !json.Valid(w.Body.Bytes()) {
			t.Fatalf("%s %q: %q", method, path, w.Body)
		}
		stored := broker.count("orders") != before
		if named := strings.TrimSuffix(r.URL.Path, "/") == "/v1/topics/orders/produce"; stored && !named {
			t.Fatalf("%s %q: stored a record", method, path)
		}
	})
}

// plainEnd finds each special byte at each place of a word, with any
// neighbours.
func TestPlainEnd(t *testing.T) {
	for _, fill := range []byte{' ', 'a', 0x7f, 0x80, 0xff, '!', '#', '[', ']'} {
		for size := range 20 {
			for at := range size {
				for c := range 256 {
					b := bytes.Repeat([]byte{fill}, size)
					b[at] = byte(c)
					want := size
					if !plainInString[c] {
						want = at
					}
					if got := plainEnd(b, 0); got != want {
						t.Fatalf("%q: %d, want %d", b, got, want)
					}
				}
			}
		}
	}
}
