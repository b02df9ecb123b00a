package conformance

// recordCases: the log is read without leases, and trimmed.
func recordCases() []Case {
	const path = "/v1/topics/{t}/partitions/0/records"
	stream := "Accept: application/x-ndjson"
	three := steps(produce(`{"n":0}`), produce("text"), produce("\xff"))
	return []Case{
		{
			Rule: "a page has records and where to go on", Reports: []string{"B130"},
			Steps: join(three, steps(
				get(path).is(200).field("records.0.offset", "0").field("records.0.payload", `{"n":0}`).field("records.1.payload", `"text"`).field("records.2.payload_encoding", `"base64"`).
					field("records.3", absent).field("resume_offset", "3").field("high_watermark", "3").field("oldest_offset", "0"),
				get(path+"?max=2").is(200).field("records.1.offset", "1").field("records.2", absent).field("resume_offset", "2"),
				get(path+"?from=2").is(200).field("records.0.offset", "2").field("resume_offset", "3"),
				get(path+"?from=1&to=2").is(200).field("records.0.offset", "1").field("records.1", absent).field("resume_offset", "2"),
				get(path+"?from=1&to=1").is(200).field("records", "[]"),
				get(path+"?from=2&to=1").fails(400, "invalid_argument"),
				get(path+"?max_bytes=1").is(200).field("records.0.offset", "0").field("records.1", absent).field("resume_offset", "1"),
				get(path+"?from=0&at=0").fails(400, "invalid_argument"),
				get("/v1/topics/{t}/consume").is(200).field("delivery_count", "1"),
			)),
		},
		{
			Rule: "the ends of the log have codes and bounds", Reports: []string{"B127", "B128"}, Differs: "log-bounds",
			Steps: join(three, steps(
				postJSON("/v1/topics/{t}/partitions/0/trim", `{"before":1}`).is(200),
				get(path+"?from=0").fails(410, "gone").field("oldest_offset", "1").field("high_watermark", "3"),
				get(path+"?from=1").is(200).field("records.0.offset", "1"),
				get(path+"?from=2").is(200).field("records.0.offset", "2"),
				get(path+"?from=3").is(200).field("records", "[]").field("resume_offset", "3"),
				get(path+"?from=4").fails(416, "out_of_range").field("oldest_offset", "1").field("high_watermark", "3"),
				get(path+"?from=9223372036854775807").fails(416, "out_of_range"),
				get(path).is(200).field("records.0.offset", "1").field("oldest_offset", "1"),
				get(path+"?from=4", stream).fails(416, "out_of_range"),
			)),
		},
		{
			Rule: "a stream has one record a line and ends with its marker",
			Steps: join(three, steps(
				produce("{\"a\":\r\n[1,\n2]}"),
				get(path+"?from=3", stream).is(200).head("Content-Type: application/x-ndjson").says(`"payload":{"a":  [1, 2]}`, "\n"+`{"end":true,"resume_offset":4}`+"\n"),
				get(path+"?max=2", stream).is(200).says(`{"end":true,"resume_offset":2}`).hides(`"offset":2`),
				get(path+"?from=4", stream).is(200).exactly(`{"end":true,"resume_offset":4}`+"\n"),
				get(path+"?to=1", stream).is(200).says(`{"end":true,"resume_offset":1}`).hides(`"offset":1`),
			)),
		},
		{
			Rule: "the log comes as frames, as stored batches and as events",
			Steps: steps(
				post("/v1/topics/{t}/produce?partition=0&ack=committed&key=k", "v").is(200),
				get(path, "Accept: application/vnd.tidemark.frames").is(200).head("Content-Type: application/vnd.tidemark.frames").says(`{"offset":0,`, `"key":"k"`, "\x00\x00\x00\x01v").hides("payload"),
				get(path, "Accept: application/vnd.kafka.record-batch").is(200).head("Content-Type: application/vnd.kafka.record-batch").says("\x00\x00\x00\x00\x00\x00\x00\x00"),
				get(path+"?from=0&to=1", "Accept: text/event-stream").is(200).head("Content-Type: text/event-stream").says("id: 0\ndata: {", `"payload":"v"`, "event: end\ndata: "+`{"end":true,"resume_offset":1}`+"\n\n"),
				get("/v1/topics/{t}/consume", "Accept: application/vnd.tidemark.frames").is(200).says(`"receipt_handle":`, "\x00\x00\x00\x01v"),
				get(path+"?from=9", "Accept: text/event-stream").fails(416, "out_of_range"),
			),
		},
		{
			Rule: "follow goes on at the end of the log",
			Steps: steps(
				get(path+"?follow").fails(400, "invalid_argument"),
				get(path+"?follow&wait=1s", stream).fails(400, "invalid_argument"),
				get(path+"?follow=maybe", stream).fails(400, "invalid_argument"),
				Beside{
					get(path+"?follow&to=2", stream).is(200).says(`"payload":"one"`, `"payload":"two"`, `{"end":true,"resume_offset":2}`),
					produce("one"),
					produce("two"),
				},
			),
		},
		{
			Rule: "a wait ends with the first record",
			Steps: steps(
				Beside{get(path+"?wait=10s").is(200).field("records.0.payload", `"late"`).field("resume_offset", "1"), produce("late")},
				get(path+"?from=1&wait=1ms").is(200).field("records", "[]").field("resume_offset", "1"),
			),
		},
		{
			Rule: "an offset is found by its time", Reports: []string{"B119", "B120", "B123", "B125"},
			Steps: steps(
				post("/v1/topics/{t}/produce?partition=0&ack=committed", "x").is(200).save("ms", "timestamp_ms"),
				get("/v1/topics/{t}/partitions/0/offset?at=0").is(200).field("topic", `"{t}"`).field("partition", "0").field("offset", "0"),
				get("/v1/topics/{t}/partitions/0/offset?at={ms}").is(200).field("offset", "0"),
				get("/v1/topics/{t}/partitions/0/offset?at=9000000000000").is(200).field("offset", "1"),
				get("/v1/topics/{t}/partitions/0/offset?at=2999-01-01T00:00:00Z").is(200).field("offset", "1"),
				get("/v1/topics/{t}/partitions/0/offset").fails(400, "invalid_argument"),
				get(path+"?at={ms}").is(200).field("records.0.offset", "0"),
				get(path+"?at=9000000000000").is(200).field("records", "[]").field("resume_offset", "1"),
				postJSON("/v1/topics/{t}/partitions/0/trim", `{"before":1}`).is(200),
				get("/v1/topics/{t}/partitions/0/offset?at=0").is(200).field("offset", "1"), // never below the start
				get("/v1/topics/{t}-none/partitions/0/offset?at=0").fails(404, "not_found"),
			),
		},
		{
			Rule: "a trim takes every offset from 0 to the end", Reports: []string{"B107"},
			Steps: join(three, each([]string{"", "{}", `{"before":-1}`, `{"before":4}`, `{"before":1.5}`, `{"before":"1"}`, `{"before":1,"before":2}`, `{"before":1,"x":1}`, `{"before":1}x`, `{"before":null}`, `{"before":9223372036854775808}`}, func(body string) Step {
				return postJSON("/v1/topics/{t}/partitions/0/trim", body).fails(400, "invalid_argument")
			}), steps(
				postJSON("/v1/topics/{t}/partitions/0/trim", `{"before":0}`).is(200).exactly(`{"oldest_offset":0}`+"\n"),
				postJSON("/v1/topics/{t}/partitions/0/trim", `{"before":2}`).is(200).exactly(`{"oldest_offset":2}`+"\n"),
				postJSON("/v1/topics/{t}/partitions/0/trim", `{"before":1}`).is(200).exactly(`{"oldest_offset":2}`+"\n"),
				get("/v1/topics/{t}/consume").is(200).field("offset", "2"),
				postJSON("/v1/topics/{t}/partitions/0/trim", `{"before":3}`).is(200).exactly(`{"oldest_offset":3}`+"\n"),
				get(path).is(200).field("records", "[]").field("oldest_offset", "3"),
				produce("x").field("offset", "3"),
			)),
		},
		{
			Rule: "answers about records are not to be stored", Reports: nil,
			Steps: steps(
				produce("x"),
				get(path).is(200).head("Cache-Control: no-store"),
				get(path, stream).is(200).head("Cache-Control: no-store"),
				get("/v1/topics/{t}/consume?partition=0&offset=0").is(200).head("Cache-Control: no-store"),
			),
		},
	}
}
