package api

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// A single produce keeps bytes, key and headers; names are lower-cased and in
// order, and an empty body is an empty record.
func TestProduceKeepsWhatWasSent(t *testing.T) {
	s := start(t)
	body := string([]byte{0, 255, '\n', '{'})
	s.want(s.post("/v1/topics/orders/produce?partition=2&key=%00%FF", body, "Tidemark-Header-Trace: abc", "Tidemark-Header-App: x", "Tidemark-Header-App: y"), 202, "")
	s.want(s.post("/v1/topics/orders/produce?partition=2&key", ""), 202, "")
	s.want(s.post("/v1/topics/orders/produce?partition=2", ""), 202, "")
	got := s.f.stored("orders", 2)
	if string(got[0].Value) != body || string(got[0].Key) != "\x00\xff" || fmt.Sprintf("%s", got[0].Headers) != "[{app x} {app y} {trace abc}]" {
		t.Errorf("first: %+v", got[0])
	}
	if got[1].Key == nil || len(got[1].Key) != 0 || len(got[1].Value) != 0 {
		t.Errorf("an empty key is a key: %+v", got[1])
	}
	if got[2].Key != nil || got[2].Value == nil {
		t.Errorf("no key: %+v", got[2])
	}
	s.want(s.post("/v1/topics/orders/produce", "x", "Tidemark-Header-Tm-Origin: x"), 400, "invalid_argument")
	s.want(s.post("/v1/topics/none/produce", "x"), 404, "not_found")
}

// The answer follows the level that the broker gave.
func TestProduceAnswers(t *testing.T) {
	s := start(t)
	for _, ack := range []Ack{AckAccepted, AckCommitted, AckArchived} {
		single := s.post("/v1/topics/orders/produce?partition=0&ack="+string(ack), "x")
		many := s.post("/v1/topics/orders/produce/batch?partition=0&ack="+string(ack), `{"messages":[{"payload":"a"},{"payload":"b"}]}`, "Content-Type: application/json")
		if ack == AckAccepted {
			s.want(single, 202, "")
			s.want(many, 202, "")
			if many.body != "{\"accepted\":2}\n" {
				t.Errorf("batch: %s", many.body)
			}
			continue
		}
		s.want(single, 200, "")
		s.want(many, 200, "")
		if archived := ack == AckArchived; strings.Contains(single.body, `"archived":true`) != archived || strings.Contains(many.body, `"archived":true`) != archived {
			t.Errorf("%s: %s %s", ack, single.body, many.body)
		}
		if !strings.Contains(many.body, `"count":2`) {
			t.Errorf("%s: %s", ack, many.body)
		}
	}
}

// ndjson posts lines.
func (s *site) ndjson(query, body string) answer {
	s.t.Helper()
	return s.do("POST", "/v1/topics/orders/produce/batch?partition=0&"+query, body, "Content-Type: application/x-ndjson")
}

// jsonBatch posts a JSON batch.
func (s *site) jsonBatch(body string) answer {
	s.t.Helper()
	return s.do("POST", "/v1/topics/orders/produce/batch?partition=0", body, "Content-Type: application/json")
}

func (s *site) frames(body string) answer {
	s.t.Helper()
	return s.do("POST", "/v1/topics/orders/produce/batch?partition=0", body, "Content-Type: application/vnd.tidemark.frames")
}

// values are the stored values of partition 0 of orders.
func (s *site) values() (list []string) {
	for _, r := range s.f.stored("orders", 0) {
		list = append(list, string(r.Value))
	}
	return list
}

func (s *site) keys() (list []string) {
	for _, r := range s.f.stored("orders", 0) {
		if r.Key == nil {
			list = append(list, "-")
			continue
		}
		list = append(list, string(r.Key))
	}
	return list
}

// B08: broken bodies are 400, name their fault, store nothing and log nothing.
func TestB08BrokenBatches(t *testing.T) {
	s := start(t)
	for _, body := range []string{
		"", " ", "{", "{}{}", "[1,", "{}", `{"messages":[]}`, `{"messages":[1]}`, `{"messages":[{}]}`, `{"messages":{}}`, `{"messages":null}`, `{"messages"`, `{"messages":`,
		`{"messages":[{"payload":1}]}{}`, `{"messages":[{"payload":1}]} x`, `{"messages":[{"payload":1}],"messages":[]}`, `{"messages":[{"payload":1}],"more":1}`,
		`{"messages":[{"payload":1,"payload":2}]}`, `{"messages":[{"payload":1,"what":2}]}`, `{"messages":[{"payload":1},]}`, `{"messages":[{"payload":1},`, `{"messages":[{"payload":1}`,
		`{"messages":[{"payload":1,"payload_encoding":"base64"}]}`, `{"messages":[{"payload":"!","payload_encoding":"base64"}]}`, `{"messages":[{"payload":"eA==","payload_encoding":"gzip"}]}`,
		`{"messages":[{"payload":1,"key":1}]}`, `{"messages":[{"payload":1,"key_encoding":"base64"}]}`, `{"messages":[{"payload":1,"key":"\ud800"}]}`, `{"messages":[{"payload":"\ud800x"}]}`,
		`{"messages":[{"payload":1,"partition":3}]}`, `{"messages":[{"payload":1,"partition":-1}]}`, `{"messages":[{"payload":1,"partition":"1"}]}`, `{"messages":[{"payload":1,"partition":1e0}]}`,
		`{"messages":[{"payload":1,"headers":{}}]}`, `{"messages":[{"payload":1,"headers":[{"name":"a"}]}]}`, `{"messages":[{"payload":1,"headers":[{"name":"tm-a","value":""}]}]}`, `{"messages":[{"payload":1,"headers":[{"name":"","value":""}]}]}`,
		`{"messages":[{"payload":` + strings.Repeat("[", 600) + strings.Repeat("]", 600) + `}]}`,
		"{\"messages\":[{\"payload\":\"\xc3\x28\"}]}",
	} {
		s.want(s.jsonBatch(body), 400, "invalid_argument")
	}
	for _, body := range []string{"", "\n\n", " \r\n", "{", "{}{}\n", "1 2", "nul", "01", "1.", "1e", "-", "+1", "\"\x01\"", `"\x"`, `"\u12g4"`, "\xef\xbb\xbf1", "[1,]", `{"a":1,}`, `{1:2}`, "\xc3\x28", "\"\xc3\x28\""} {
		s.want(s.ndjson("", body), 400, "invalid_argument")
	}
	for _, body := range []string{"", "\x00", "\xff\xff\xff\xff", "\xff\xff\xff\xff\x00\x00\x00", "\x00\x00\x00\x01", "\xff\xff\xff\xff\x7f\xff\xff\xffx", "\xff\xff\xff\xfe\x00\x00\x00\x00", "\x00\x00\x00\x00\x00\x00\x00\x02x"} {
		s.want(s.frames(body), 400, "invalid_argument")
	}
	s.want(s.do("POST", "/v1/topics/orders/produce/batch", "{}", "X-Tidemark-Client: t"), 415, "unsupported_type")
	if s.f.produces != 0 || s.log.String() != "" {
		t.Fatalf("%d produces, log %q", s.f.produces, s.log)
	}
	a := s.want(s.jsonBatch(`{"messages":[{"payload":1},{"payload":2,"x":1}]}`), 400, "")
	if !strings.Contains(a.body, `"error":"message 1: `) || !strings.Contains(a.body, `"message":1`) {
		t.Errorf("which message: %s", a.body)
	}
	a = s.want(s.ndjson("", "1\n\n2\n{"), 400, "")
	if !strings.Contains(a.body, `"error":"message 2: line 4 `) {
		t.Errorf("which line: %s", a.body)
	}
	a = s.want(s.frames("\xff\xff\xff\xff\x00\x00\x00\x00\x00"), 400, "")
	if !strings.Contains(a.body, `"error":"message 1: `) {
		t.Errorf("which frame: %s", a.body)
	}
}

// B111: no client says when a record was produced, in whatever unit: a time as a
// parameter or as a field of a message is refused and nothing is stored, one as a
// header or inside a payload means nothing. Age and lookups by time go by the
// broker's clock alone.
func TestB111TimesOfClientsCountForNothing(t *testing.T) {
	s := start(t)
	for _, ms := range []string{"1700000000", "1700000000000", "1700000000000000"} {
		for _, name := range []string{"timestamp", "timestamp_ms"} {
			s.want(s.do("POST", "/v1/topics/orders/produce?partition=0&"+name+"="+ms, "x", "X-Tidemark-Client: t"), 400, "invalid_argument")
			s.want(s.ndjson(name+"="+ms, "1\n"), 400, "invalid_argument")
			s.want(s.jsonBatch(`{"messages":[{"payload":1,"`+name+`":`+ms+`}]}`), 400, "invalid_argument")
		}
	}
	if s.f.produces != 0 {
		t.Fatalf("%d produces", s.f.produces)
	}
	s.want(s.do("POST", "/v1/topics/orders/produce?partition=0", "x", "X-Tidemark-Client: t", "Tidemark-Timestamp-Ms: 1"), 202, "")
	s.want(s.ndjson("", `{"timestamp_ms":1}`+"\n"), 202, "")
	for i, r := range s.f.stored("orders", 0) {
		if want := int64(1_700_000_000_000 + i); r.Timestamp != want || len(r.Headers) != 0 {
			t.Errorf("record %d has time %d, want the broker's %d; headers %v", i, r.Timestamp, want, r.Headers)
		}
	}
}

// B09: a thousand bad bodies are counted and leave the log alone.
func TestB09BadInputIsCountedNotLogged(t *testing.T) {
	s := start(t)
	for range 1000 {
		s.want(s.jsonBatch("{\"messages\":[{\"payload\":\"\xc3\x28\"}]}"), 400, "invalid_argument")
	}
	if got := s.metric(`tidemark_http_refusals_total{area="produce",cause="invalid_argument"}`); got != "1000" {
		t.Errorf("counted %s", got)
	}
	if s.log.String() != "" {
		t.Errorf("logged: %.200s", s.log)
	}
}

// B10: a giant exponent is digits, on every path in and out.
func TestB10GiantExponents(t *testing.T) {
	s := start(t)
	const value = `{"a":1e999999999,"b":-1E-999999999,"c":` + "123456789012345678901234567890" + `}`
	begun := time.Now()
	s.want(s.post("/v1/topics/orders/produce?partition=0", value), 202, "")
	s.want(s.ndjson("key_field=/a", value), 202, "")
	s.want(s.jsonBatch(`{"messages":[{"payload":`+value+`}]}`), 202, "")
	for _, v := range s.values() {
		if v != value {
			t.Errorf("stored %s", v)
		}
	}
	if k := s.keys(); k[1] != "1e999999999" {
		t.Errorf("keys %q", k)
	}
	for range 3 {
		if a := s.want(s.do("GET", "/v1/topics/orders/consume", ""), 200, ""); !strings.Contains(a.body, `"payload":`+value) {
			t.Errorf("consumed %s", a.body)
		}
	}
	if took := time.Since(begun); took > 2*time.Second {
		t.Errorf("took %v", took)
	}
}

// B16: blank lines are no records, and an empty payload is one where it is said.
func TestB16EmptyElements(t *testing.T) {
	s := start(t)
	s.want(s.ndjson("", "\n 1 \r\n\r\n\t\n{\"a\" : 2}\n\"\"\n"), 202, "")
	s.want(s.jsonBatch(`{"messages":[{"payload":""},{"payload":null},{"payload":"","payload_encoding":"base64"}]}`), 202, "")
	s.want(s.frames("\xff\xff\xff\xff\x00\x00\x00\x00"+"\x00\x00\x00\x00\x00\x00\x00\x00"), 202, "")
	s.want(s.post("/v1/topics/orders/produce?partition=0", ""), 202, "")
	if got := fmt.Sprintf("%q", s.values()); got != `["1" "{\"a\" : 2}" "\"\"" "" "null" "" "" "" ""]` {
		t.Errorf("values %s", got)
	}
	if got := fmt.Sprintf("%q", s.keys()); got != `["-" "-" "-" "-" "-" "-" "-" "" "-"]` {
		t.Errorf("keys %s", got)
	}
}

// JSON batches: strings are their text, other values are their JSON, escapes
// and base64 are undone, headers keep order and case.
func TestJSONBatch(t *testing.T) {
	s := start(t)
	s.want(s.jsonBatch(`{"m\u0065ssages" : [ {"payload":"a\n\u00e9\ud83d\ude00\/\"","key":"k\t1"}, {"payload": {"x": [1, "\n"]} ,"key":null},
		{"payload":"AP8=","payload_encoding":"base64","key":"/w==","key_encoding":"base64","headers":[{"name":"B","value":"1"},{"name":"a","value":"AP8=","value_encoding":"base64"},{"name":"B","value":"2"}]},
		{"payload":true,"partition":1,"payload_encoding":null,"key_encoding":null,"headers":null} ] } `), 202, "")
	if got := fmt.Sprintf("%q", s.values()); got != `["a\né😀/\"" "{\"x\": [1, \"\\n\"]}" "\x00\xff"]` {
		t.Errorf("values %s", got)
	}
	if got := fmt.Sprintf("%q", s.keys()); got != `["k\t1" "-" "\xff"]` {
		t.Errorf("keys %s", got)
	}
	if got := fmt.Sprintf("%q", s.f.stored("orders", 0)[2].Headers); got != `[{"B" "1"} {"a" "\x00\xff"} {"B" "2"}]` {
		t.Errorf("headers %s", got)
	}
	if got := s.f.stored("orders", 1); len(got) != 1 || string(got[0].Value) != "true" {
		t.Errorf("partition 1: %v", got)
	}
}

// NDJSON: pointers find keys and values at any depth; a line without its key
// is refused rather than stored without order.
func TestNDJSONFields(t *testing.T) {
	s := start(t)
	s.want(s.ndjson("key_field=/user/id&value_field=/v", `{"user":{"id":"a\u0062"},"v":{"x": 1}}`+"\n"+`{"v":[1, 2],"user":{"id":1,"id":17}}`+"\n"+`{"user":{"id":true},"v":"s"}`), 202, "")
	s.want(s.ndjson("key_field=/1/a~1b~0", `[0,{"a\/b~":"deep"}]`), 202, "")
	s.want(s.ndjson("key_field=", `"whole"`), 202, "")
	if got := fmt.Sprintf("%q", s.keys()); got != `["ab" "17" "true" "deep" "whole"]` {
		t.Errorf("keys %s", got)
	}
	if got := fmt.Sprintf("%q", s.values()); got != `["{\"x\": 1}" "[1, 2]" "\"s\"" "[0,{\"a\\/b~\":\"deep\"}]" "\"whole\""]` {
		t.Errorf("values %s", got)
	}
	before := s.f.produces
	for _, c := range []struct{ query, body, says string }{
		{"key_field=/id", "{\"id\":1}\n{}", "message 1: line 2 has nothing at key_field"},
		{"key_field=/id", `{"id":null}`, "no string, number or boolean"},
		{"key_field=/id", `{"id":{}}`, "no string, number or boolean"},
		{"key_field=/id", `{"id":"\udc00"}`, "surrogate"},
		{"key_field=/id", `7`, "nothing at key_field"},
		{"key_field=/01", `[1,2]`, "nothing at key_field"},
		{"key_field=/-1", `[1,2]`, "nothing at key_field"},
		{"value_field=/v", `{"w":1}`, "nothing at value_field"},
		{"key_field=id", `{"id":1}`, "begins with a slash"},
		{"key_field=/a~2", `{"id":1}`, "tilde"},
		{"key_field=" + strings.Repeat("/a", 33), `{"id":1}`, "32 steps"},
	} {
		if a := s.want(s.ndjson(c.query, c.body), 400, "invalid_argument"); !strings.Contains(a.body, c.says) {
			t.Errorf("%s %s: %s", c.query, c.body, a.body)
		}
	}
	s.want(s.do("POST", "/v1/topics/orders/produce/batch?key_field=/a", "{}", "Content-Type: application/json"), 400, "invalid_argument")
	if s.f.produces != before {
		t.Error("something was stored")
	}
}

// frame encodes one record of a frames body; key "-" means none.
func frame(key, value string) string {
	var b []byte
	if key == "-" {
		b = binary.BigEndian.AppendUint32(b, noKey)
	} else {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(key))), key...)
	}
	return string(append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...))
}

// Frames keep every byte.
func TestFrames(t *testing.T) {
	s := start(t)
	s.want(s.frames(frame("-", "a\x00\xff")+frame("k\xfe", "")+frame("", "z")), 202, "")
	if got := fmt.Sprintf("%q %q", s.keys(), s.values()); got != `["-" "k\xfe" ""] ["a\x00\xff" "" "z"]` {
		t.Error(got)
	}
}

// B18, B19: keys and values of any bytes come back as they were: as text where
// they are text, else flagged as base64, and no record spoils the others.
func TestB18B19AnyBytesComeBack(t *testing.T) {
	s := start(t)
	things := []string{"\x00", "\xff", "😀", "\u2028", `"`, `\`, strings.Repeat("鍵", 341), "", "plain", "\x1f\x7f", "\xc3\x28", "\xed\xa0\x80", `{"a":1}`, "[1,\n2]", "\"\xff\"", "nul", "1e5", " \t", strings.Repeat("[", 600)}
	var body strings.Builder
	for _, k := range things {
		body.WriteString(frame(k, k))
	}
	s.want(s.frames(body.String()), 202, "")
	check := func(where string, list []map[string]json.RawMessage) {
		t.Helper()
		if len(list) != len(things) {
			t.Fatalf("%s: %d records, want %d", where, len(list), len(things))
		}
		for i, m := range list {
			for _, name := range []string{"key", "payload"} {
				var text string
				if err := json.Unmarshal(m[name], &text); err != nil || name == "payload" && validJSON([]byte(things[i])) {
					text = string(m[name]) // a JSON value, as it is
				}
				if string(m[name+"_encoding"]) == `"base64"` {
					b, err := base64.StdEncoding.DecodeString(text)
					if err != nil {
						t.Errorf("%s: %s of %q: %v", where, name, things[i], err)
					}
					text = string(b)
				}
				want := things[i]
				if where == "stream" && name == "payload" && validJSON([]byte(want)) {
					want = strings.ReplaceAll(want, "\n", " ")
				}
				if text != want {
					t.Errorf("%s: %s is %q, want %q", where, name, text, want)
				}
			}
		}
	}
	var page struct{ Records, Messages []map[string]json.RawMessage }
	a := s.want(s.do("GET", "/v1/topics/orders/partitions/0/records", ""), 200, "")
	if err := json.Unmarshal([]byte(a.body), &page); err != nil {
		t.Fatal(err)
	}
	check("page", page.Records)
	a = s.want(s.do("GET", "/v1/topics/orders/partitions/0/records", "", "Accept: application/x-ndjson"), 200, "")
	lines := strings.Split(strings.TrimSuffix(a.body, "\n"), "\n")
	var list []map[string]json.RawMessage
	for _, line := range lines[:len(lines)-1] {
		var m map[string]json.RawMessage
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		list = append(list, m)
	}
	check("stream", list)
	a = s.want(s.post("/v1/topics/orders/consume?max=100", ""), 200, "")
	if err := json.Unmarshal([]byte(a.body), &page); err != nil {
		t.Fatal(err)
	}
	check("consume", page.Messages)
}

// expected_offset: appended where it says or not at all, with the end of the log in
// the refusal; it needs a partition, and is an offset in digits.
func TestExpectedOffset(t *testing.T) {
	s := start(t)
	s.want(s.post("/v1/topics/orders/produce?partition=1&expected_offset=0", "a"), 202, "")
	for _, at := range []string{"0", "2", "9223372036854775807"} {
		a := s.want(s.post("/v1/topics/orders/produce?partition=1&expected_offset="+at, "b"), 412, "precondition_failed")
		if !strings.Contains(a.body, `"retry":"never","next_offset":1}`) {
			t.Errorf("at %s: %s", at, a.body)
		}
	}
	s.want(s.post("/v1/topics/orders/produce?partition=1&expected_offset=1&ack=committed", "b"), 200, "")
	before := s.f.produces
	a := s.want(s.post("/v1/topics/orders/produce?expected_offset=2", "c"), 400, "invalid_argument")
	if !strings.Contains(a.body, "needs the parameter partition") {
		t.Error(a.body)
	}
	s.want(s.post("/v1/topics/orders/produce?expected_offset=2&key=k", "c"), 400, "invalid_argument")
	for _, at := range []string{"", "-1", "1.0", "1e3", "+1", "9223372036854775808", "abc"} {
		s.want(s.post("/v1/topics/orders/produce?partition=1&expected_offset="+at, "c"), 400, "invalid_argument")
	}
	if n := s.f.count("orders"); n != 2 || s.f.produces != before {
		t.Errorf("%d records are stored, %d produces reached the broker", n, s.f.produces-before)
	}
}

// The same for batches of every type: one value for all of a batch, whose records
// all have to name one partition, by the query or, in JSON, themselves.
func TestExpectedOffsetOfBatches(t *testing.T) {
	s := start(t)
	batch := func(kind, query, body string) answer {
		t.Helper()
		return s.do("POST", "/v1/topics/orders/produce/batch?"+query, body, "Content-Type: "+kind)
	}
	kafka := strings.Repeat("\x00", 57) + "\x00\x00\x00\x02" + "two records"
	bodies := map[string]string{mediaJSON: `{"messages":[{"payload":1},{"payload":2}]}`, mediaNDJSON: "1\n2\n", mediaFrames: strings.Repeat("\xff\xff\xff\xff\x00\x00\x00\x01x", 2), mediaBatch: kafka}
	next := 0
	for kind, body := range bodies {
		for _, at := range []int{next + 1, next + 2, max(0, next-1)} {
			if at == next {
				continue
			}
			a := s.want(batch(kind, fmt.Sprintf("partition=1&expected_offset=%d", at), body), 412, "precondition_failed")
			if !strings.Contains(a.body, fmt.Sprintf(`"next_offset":%d}`, next)) {
				t.Errorf("%s at %d: %s", kind, at, a.body)
			}
		}
		a := s.want(batch(kind, fmt.Sprintf("partition=1&ack=committed&expected_offset=%d", next), body), 200, "")
		if !strings.Contains(a.body, fmt.Sprintf(`"first_offset":%d,"last_offset":%d,"count":2`, next, next+1)) {
			t.Errorf("%s: %s", kind, a.body)
		}
		next += 2
		// Without a partition, and with what is no offset.
		a = s.want(batch(kind, fmt.Sprintf("expected_offset=%d", next), body), 400, "invalid_argument")
		if !strings.Contains(a.body, "partition") {
			t.Error(a.body)
		}
		s.want(batch(kind, "partition=1&expected_offset=-1", body), 400, "invalid_argument")
	}
	// Messages that name their partition themselves.
	s.want(batch(mediaJSON, "expected_offset=0", `{"messages":[{"payload":1,"partition":2},{"payload":2,"partition":2}]}`), 202, "")
	for body, says := range map[string]string{
		`{"messages":[{"payload":1,"partition":2},{"payload":2,"partition":1}]}`: `"message":1`,
		`{"messages":[{"payload":1,"partition":2},{"payload":2,"key":"k"}]}`:     `"message":1`,
		`{"messages":[{"payload":1,"key":"k"},{"payload":2,"partition":2}]}`:     `"message":0`,
	} {
		a := s.want(batch(mediaJSON, "expected_offset=2", body), 400, "invalid_argument")
		if !strings.Contains(a.body, says) || !strings.Contains(a.body, `"error":"message `) {
			t.Errorf("%s: %s", body, a.body)
		}
	}
	a := s.want(batch(mediaJSON, "partition=1&expected_offset=2", `{"messages":[{"payload":1},{"payload":2,"partition":2}]}`), 400, "invalid_argument")
	if !strings.Contains(a.body, `"message":1`) {
		t.Error(a.body)
	}
	if n := s.f.count("orders"); n != next+2 {
		t.Errorf("%d records are stored", n)
	}
}

// wait: 10 s where nothing is said, up to 30 s, and nothing is the shortest wait, not
// the default; beyond, and what is no length of time, is 400.
func TestProduceWait(t *testing.T) {
	s := start(t)
	var got time.Duration
	s.f.produceHook = func(_ context.Context, req ProduceRequest) { got = req.Wait }
	for wait, want := range map[string]time.Duration{
		"": 10 * time.Second, "&wait=0s": time.Millisecond, "&wait=1ns": time.Millisecond, "&wait=1ms": time.Millisecond,
		"&wait=1m": 0, "&wait=30s": 30 * time.Second, "&wait=30001ms": 0, "&wait=-1s": 0, "&wait=5": 0, "&wait=": 0,
	} {
		for _, path := range []string{"/v1/topics/orders/produce?partition=0", "/v1/topics/orders/produce/batch?partition=0"} {
			got = 0
			a := s.post(path+"&ack=committed"+wait, "1", "Content-Type: application/x-ndjson")
			if ok := a.StatusCode == 200; ok != (want > 0) || got != want {
				t.Errorf("%s%s: %d, the broker waits %v, want %v", path, wait, a.StatusCode, got, want)
			}
		}
	}
}
