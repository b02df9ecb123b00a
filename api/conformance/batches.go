package conformance

import (
	"compress/gzip"
	"io"
	"strings"
)

// batchCases: several records, all or none.
func batchCases() []Case {
	batch := func(kind string) func(query, body string) Request {
		return func(query, body string) Request {
			return send("POST", "/v1/topics/{t}/produce/batch?partition=0&"+query, body, "Content-Type: "+kind)
		}
	}
	list, lines, frames := batch("application/json"), batch("application/x-ndjson"), batch("application/vnd.tidemark.frames")
	empty := get("/v1/topics/{t}/partitions/0/records").is(200).field("high_watermark", "0")
	refuse := func(with func(query, body string) Request, query string, bodies ...string) []Step {
		return join(each(bodies, func(body string) Step { return with(query, body).fails(400, "invalid_argument") }), steps(empty))
	}
	return []Case{
		{
			Rule: "a JSON batch has payloads as JSON, as text or in base64, keys, partitions and headers",
			Steps: steps(
				list("ack=committed", `{"messages":[{"payload":{"n": 1},"key":"u1"},{"payload":"text"},{"payload":"AP8=","payload_encoding":"base64","key":"AP8=","key_encoding":"base64"},`+
					`{"payload":null,"key":null,"headers":null,"partition":null},{"payload":1,"partition":2,"headers":[{"name":"B","value":"1"},{"name":"a","value":"AP8=","value_encoding":"base64"},{"name":"B","value":"2"}]}]}`).is(200).
					field("partitions.0.partition", "0").field("partitions.0.first_offset", "0").field("partitions.0.last_offset", "3").field("partitions.0.count", "4").field("partitions.1.partition", "2"),
				get("/v1/topics/{t}/partitions/0/records").is(200).field("records.0.payload", `{"n": 1}`).field("records.0.key", `"u1"`).field("records.1.payload", `"text"`).
					field("records.2.payload_encoding", `"base64"`).field("records.2.key_encoding", `"base64"`).field("records.3.payload", "null").field("records.3.key", absent),
				get("/v1/topics/{t}/partitions/2/records").is(200).field("records.0.headers", `[{"name":"B","value":"1"},{"name":"a","value":"AP8=","value_encoding":"base64"},{"name":"B","value":"2"}]`),
				list("", `{"messages":[{"payload":1},{"payload":2}]}`).is(202).exactly("{\"accepted\":2}\n"),
			),
		},
		{
			Rule: "a JSON batch that is malformed is refused as a whole", Reports: []string{"B08", "B09", "B16"},
			Steps: refuse(list, "",
				"", "{", "{}", "{}{}", "[1,", "[]", "null", `{"messages":[]}`, `{"messages":{}}`, `{"messages":[{"payload":1}]}x`, `{"messages":[{"payload":1}],"messages":[{"payload":1}]}`, `{"Messages":[{"payload":1}]}`,
				`{"messages":[1]}`, `{"messages":[{}]}`, `{"messages":[{"payload":1},]}`, `{"messages":[{"payload":1,"payload":2}]}`, `{"messages":[{"payload":1,"x":2}]}`, `{"messages":[{"payload":1,"key":1}]}`,
				`{"messages":[{"payload":1,"payload_encoding":"base64"}]}`, `{"messages":[{"payload":"!","payload_encoding":"base64"}]}`, `{"messages":[{"payload":"x","payload_encoding":"hex"}]}`,
				`{"messages":[{"payload":1,"key_encoding":"base64"}]}`, `{"messages":[{"payload":"\ud800"}]}`, "{\"messages\":[{\"payload\":\"\xc3\x28\"}]}", `{"messages":[{"payload":1,"partition":3}]}`,
				`{"messages":[{"payload":1,"partition":-1}]}`, `{"messages":[{"payload":1,"partition":"0"}]}`, `{"messages":[{"payload":1,"headers":[{"name":"","value":"x"}]}]}`, `{"messages":[{"payload":1,"headers":[{"name":"tm-a","value":"x"}]}]}`,
				`{"messages":[{"payload":1,"headers":[{"name":"a"}]}]}`, `{"messages":[{"payload":1,"headers":{}}]}`, `{"messages":[{"payload":01}]}`,
			),
		},
		{
			Rule: "an error of a record names it",
			Steps: steps(
				list("", `{"messages":[{"payload":1},{"payload":2},{"payload":3,"partition":9}]}`).fails(400, "invalid_argument").field("message", "2").says(`"error":"message 2: `),
				lines("", "1\n\n{}\nnope\n").fails(400, "invalid_argument").field("message", "2").says(`"error":"message 2: `),
				frames("", "\xff\xff\xff\xff\x00\x00\x00\x01x\xff\xff\xff\xff\x00\x00\x00\x02x").fails(400, "invalid_argument").field("message", "1").says(`"error":"message 1: `),
				empty,
			),
		},
		{
			Rule: "an NDJSON batch has one value a line, and blank lines are none", Reports: []string{"B16"},
			Steps: steps(
				lines("ack=committed", "{\"a\": 1}\r\n\n  \t\n \"x\"  \n1e999999999").is(200).field("partitions.0.count", "3"),
				get("/v1/topics/{t}/partitions/0/records").is(200).field("records.0.payload", `{"a": 1}`).field("records.1.payload", `"x"`).field("records.2.payload", "1e999999999").field("records.3", absent),
				get("/v1/topics/{t}/consume?partition=0&offset=1", "Accept: application/octet-stream").is(200).exactly(`"x"`),
			),
		},
		{
			Rule: "an NDJSON batch that is malformed is refused as a whole", Reports: []string{"B09"},
			Steps: refuse(lines, "", "", "\n \n", "{", "1 2", "1\nx\n2", "{}{}", "\"\xc3\x28\"", "'x'", "NaN"),
		},
		{
			Rule: "key_field names the key in each line, value_field the value",
			Steps: join(steps(
				lines("key_field=/user/id&ack=committed", `{"user":{"id":"u1"}}`+"\n"+`{"user":{"id":17}}`+"\n"+`{"user":{"id":true}}`+"\n"+`{"user":{"id":"a"},"user":{"id":"b"}}`).is(200),
				lines("key_field=/a~1b&value_field=/v/1&ack=committed", `{"a/b":"k","v":[0,{"n": 2}]}`).is(200),
				get("/v1/topics/{t}/partitions/0/records").is(200).field("records.0.key", `"u1"`).field("records.1.key", `"17"`).field("records.2.key", `"true"`).field("records.3.key", `"b"`).
					field("records.4.key", `"k"`).field("records.4.payload", `{"n": 2}`),
			), each([]string{`{"user":{}}`, `{"user":{"id":null}}`, `{"user":{"id":[]}}`, `{"user":{"id":{}}}`, `1`, `{}`, `{"user":{"id":"\ud800"}}`}, func(line string) Step {
				return lines("key_field=/user/id", line).fails(400, "invalid_argument").field("message", "0")
			}), steps(
				lines("key_field=user", "{}").fails(400, "invalid_argument"),
				lines("key_field=/a~2", "{}").fails(400, "invalid_argument"),
				lines("value_field=/x", "{}").fails(400, "invalid_argument"),
				list("key_field=/x", `{"messages":[{"payload":1}]}`).fails(400, "invalid_argument"),
				frames("value_field=/x", "\xff\xff\xff\xff\x00\x00\x00\x00").fails(400, "invalid_argument"),
			)),
		},
		{
			Rule: "a batch of frames has keys and values as they are",
			Steps: steps(
				frames("ack=committed", "\x00\x00\x00\x02k1\x00\x00\x00\x02v1"+"\x00\x00\x00\x00\x00\x00\x00\x01\xff"+"\xff\xff\xff\xff\x00\x00\x00\x00").is(200).field("partitions.0.count", "3"),
				get("/v1/topics/{t}/partitions/0/records").is(200).field("records.0.key", `"k1"`).field("records.0.payload", `"v1"`).field("records.1.key", `""`).field("records.1.payload", `"/w=="`).field("records.2.key", absent),
			),
		},
		{
			Rule:  "a batch of frames that is cut off is refused as a whole",
			Steps: refuse(frames, "", "", "\x00", "\x00\x00\x00\x05abc", "\xff\xff\xff\xff", "\xff\xff\xff\xff\x00\x00\x00\x02x", "\xff\xff\xff\xfe\x00\x00\x00\x00", "\xff\xff\xff\xff\x00\x00\x00\x00\x00", "\xff\xff\xff\xff\xff\xff\xff\xff"),
		},
		{
			Rule: "a body may be compressed with gzip or zstd, and nothing else", Reports: []string{"B28"}, Differs: "encodings",
			Steps: steps(
				send("POST", "/v1/topics/{t}/produce/batch?partition=0&ack=committed", zipped("1\n2\n"), "Content-Type: application/x-ndjson", "Content-Encoding: gzip").is(200).field("partitions.0.count", "2"),
				send("POST", "/v1/topics/{t}/produce/batch?partition=0&ack=committed", zstdOf12, "Content-Type: application/x-ndjson", "Content-Encoding: zstd").is(200).field("partitions.0.count", "2"),
				send("POST", "/v1/topics/{t}/produce/batch?partition=0&ack=committed", "3\n", "Content-Type: application/x-ndjson", "Content-Encoding: identity").is(200),
				send("POST", "/v1/topics/{t}/produce/batch?partition=0", zipped("1\n")+"x", "Content-Type: application/x-ndjson", "Content-Encoding: gzip").fails(400, "invalid_argument"),
				send("POST", "/v1/topics/{t}/produce/batch?partition=0", zipped("1\n")[:20], "Content-Type: application/x-ndjson", "Content-Encoding: gzip").fails(400, "invalid_argument"),
				send("POST", "/v1/topics/{t}/produce/batch?partition=0", "1\n", "Content-Type: application/x-ndjson", "Content-Encoding: gzip").fails(400, "invalid_argument"),
				send("POST", "/v1/topics/{t}/produce/batch?partition=0", "1\n", "Content-Type: application/x-ndjson", "Content-Encoding: br").fails(415, "unsupported_type"),
				send("POST", "/v1/topics/{t}/produce/batch?partition=0", zipped("1\n"), "Content-Type: application/x-ndjson", "Content-Encoding: gzip, gzip").fails(415, "unsupported_type"),
				post("/v1/topics/{t}/produce?partition=0", zipped("1\n"), "Content-Encoding: gzip").fails(415, "unsupported_type"),
				send("POST", "/v1/topics/{t}/produce/batch?partition=0", zipped(fill(24<<20)), "Content-Type: application/x-ndjson", "Content-Encoding: gzip").fails(413, "too_large"),
				get("/v1/topics/{t}/partitions/0/records").is(200).field("records.3.payload", "2").field("records.4.payload", "3").field("high_watermark", "5"),
			),
		},
		{
			Rule: "an expected offset of a batch is that of its first record",
			Steps: steps(
				list("ack=committed&expected_offset=0", `{"messages":[{"payload":1},{"payload":2,"key":"k"}]}`).is(200).field("partitions.0.first_offset", "0").field("partitions.0.last_offset", "1"),
				list("expected_offset=0", `{"messages":[{"payload":3}]}`).fails(412, "precondition_failed").field("next_offset", "2").field("retry", `"never"`),
				list("expected_offset=3", `{"messages":[{"payload":3}]}`).fails(412, "precondition_failed").field("next_offset", "2"),
				lines("ack=committed&expected_offset=2", "3\n4\n").is(200).field("partitions.0.first_offset", "2"),
				lines("expected_offset=2", "3\n4\n").fails(412, "precondition_failed").field("next_offset", "4"),
				frames("ack=committed&expected_offset=4", "\xff\xff\xff\xff\x00\x00\x00\x015").is(200).field("partitions.0.first_offset", "4"),
				batch("application/vnd.kafka.record-batch")("expected_offset=4", kafkaBatches[0].bytes()).fails(412, "precondition_failed").field("next_offset", "5"),
				batch("application/vnd.kafka.record-batch")("ack=committed&expected_offset=5", kafkaBatches[0].bytes()).is(200).field("partitions.0.first_offset", "5").field("partitions.0.last_offset", "7"),
				send("POST", "/v1/topics/{t}/produce/batch?expected_offset=0&ack=committed", `{"messages":[{"payload":1,"partition":1},{"payload":2,"partition":1}]}`, "Content-Type: application/json").is(200).field("partitions.0.partition", "1"),
				list("expected_offset=8", `{"messages":[{"payload":1},{"payload":2,"partition":1}]}`).fails(400, "invalid_argument").field("message", "1"),
				send("POST", "/v1/topics/{t}/produce/batch?expected_offset=0", `{"messages":[{"payload":1,"key":"k"}]}`, "Content-Type: application/json").fails(400, "invalid_argument").field("message", "0").says("partition"),
				send("POST", "/v1/topics/{t}/produce/batch?expected_offset=0", "1\n", "Content-Type: application/x-ndjson").fails(400, "invalid_argument").says("partition"),
				lines("expected_offset=-1", "1\n").fails(400, "invalid_argument"),
				get("/v1/topics/{t}/partitions/0/records").is(200).field("high_watermark", "8"),
			),
		},
		{
			Rule: "a batch in Kafka's format is stored as it is, when it is one",
			Steps: join(each([]string{"", "x", fill(61), strings.Repeat("\x00", 61)}, func(body string) Step {
				return batch("application/vnd.kafka.record-batch")("", body).fails(400, "invalid_argument")
			}), steps(
				post("/v1/topics/{t}/produce/batch", fill(61), "Content-Type: application/vnd.kafka.record-batch").fails(400, "invalid_argument").says("partition"),
				empty,
			)),
		},
		{
			Rule: "a batch has one of its types",
			Steps: steps(
				post("/v1/topics/{t}/produce/batch", "x").fails(415, "unsupported_type"),
				post("/v1/topics/{t}/produce/batch", "x", "Content-Type: application/octet-stream").fails(415, "unsupported_type"),
				post("/v1/topics/{t}/produce/batch", "x", "Content-Type: text/csv").fails(415, "unsupported_type"),
				post("/v1/topics/{t}-none/produce/batch", "{}", "Content-Type: application/json").fails(404, "not_found"),
			),
		},
		{
			Rule: "JSON nests 512 deep",
			Steps: steps(
				// Three levels are around the payload.
				list("", `{"messages":[{"payload":`+nested(508)+`}]}`).is(202),
				list("", `{"messages":[{"payload":`+nested(509)+`}]}`).is(202),
				list("", `{"messages":[{"payload":`+nested(510)+`}]}`).fails(400, "invalid_argument"),
				lines("", nested(511)).is(202),
				lines("", nested(512)).is(202),
				lines("", nested(513)).fails(400, "invalid_argument"),
				postJSON("/v1/topics", nested(100000)).fails(413, "too_large"),
				postJSON("/v1/topics", `{"x":`+nested(10000)+`}`).fails(400, "invalid_argument"),
				produce(nested(100000)), // a record is bytes
			),
		},
	}
}

// zipped is text in gzip.
func zipped(text string) string {
	var b strings.Builder
	w := gzip.NewWriter(&b)
	// A strings.Builder takes everything.
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return b.String()
}

// zstdOf12 is "1\n2\n" in a frame of zstd, in one raw block.
const zstdOf12 = "\x28\xb5\x2f\xfd\x20\x04\x21\x00\x001\n2\n"

// nested is JSON that is depth lists deep.
func nested(depth int) string {
	b := make([]byte, 2*depth)
	for i := range depth {
		b[i], b[2*depth-1-i] = '[', ']'
	}
	return string(b)
}
