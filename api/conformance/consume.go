package conformance

// consumeCases: records are leased, and shown again without a lease.
func consumeCases() []Case {
	return []Case{
		{
			Rule: "a record is leased, and hidden until it is settled",
			Steps: steps(
				produce(`{"total": 12.50}`, "Tidemark-Header-Trace: 7f3a"),
				get("/v1/topics/{t}/consume").is(200).head("Content-Type: application/json", "Cache-Control: no-store").
					field("topic", `"{t}"`).field("partition", "0").field("offset", "0").field("payload", `{"total": 12.50}`).field("key", absent).field("delivery_count", "1").
					field("headers.0", `{"name":"trace","value":"7f3a"}`).save("h", "receipt_handle"),
				get("/v1/topics/{t}/consume").is(204).exactly(""),
				post("/v1/topics/{t}/consume", "").is(204),
				post("/v1/topics/{t}/ack?receipt_handle={h}", "").is(204).exactly(""),
				post("/v1/topics/{t}/ack?receipt_handle={h}", "").fails(410, "gone"),
			),
		},
		{
			Rule: "with max the answer is a list, in the order of offsets",
			Steps: steps(
				produce("1"), produce("2"), produce("3"),
				get("/v1/topics/{t}/consume?max=2").is(200).field("messages.0.payload", "1").field("messages.1.payload", "2").field("messages.2", absent),
				post("/v1/topics/{t}/consume?max=10&partition=0", "").is(200).field("messages.0.payload", "3").field("messages.1", absent),
				get("/v1/topics/{t}/consume?max=1").is(204),
			),
		},
		{
			Rule: "partition and group limit what is leased",
			Steps: steps(
				produce("x"),
				get("/v1/topics/{t}/consume?partition=1").is(204),
				get("/v1/topics/{t}/consume?partition=3").fails(400, "invalid_argument"),
				get("/v1/topics/{t}/consume?partition=0&group=default").is(200),
			),
		},
		{
			Rule: "a wait ends with the first record",
			Steps: steps(
				Beside{
					get("/v1/topics/{t}/consume?wait=10s").is(200).field("payload", `"late"`),
					produce("late"),
				},
				get("/v1/topics/{t}/consume?wait=1ms").is(204).head("Tidemark-Wait-Clamped:", "X-Narad-Wait-Clamped:"),
			),
		},
		{
			Rule: "a lease that nobody settles ends, and is counted", Topic: `"partitions":1,"visibility_timeout_ms":1000`,
			Steps: steps(
				produce("x"),
				get("/v1/topics/{t}/consume").is(200).field("delivery_count", "1").save("h", "receipt_handle"),
				get("/v1/topics/{t}/consume?wait=10s").is(200).field("offset", "0").field("delivery_count", "2"),
				post("/v1/topics/{t}/ack?receipt_handle={h}", "").fails(410, "gone"),
			),
		},
		{
			Rule: "text and binary records come beside each other", Reports: []string{"B19"},
			Steps: steps(
				produce(`{"n":1}`), produce("\x00\x01\xff"), produce("text"), produce(`"text"`), produce("\xef\xbb\xbf{}"), produce(" 1 "),
				get("/v1/topics/{t}/consume?max=10").is(200).field("messages.0.payload", `{"n":1}`).field("messages.1.payload", `"AAH/"`).field("messages.1.payload_encoding", `"base64"`).
					field("messages.2.payload", `"text"`).field("messages.3.payload", `"text"`).field("messages.4.payload_encoding", absent).field("messages.5.payload", "1").field("messages.6", absent),
			),
		},
		{
			Rule: "a client that accepts bytes gets the value, and headers say the rest",
			Steps: steps(
				post("/v1/topics/{t}/produce?partition=0&ack=committed&key=u17", "\xff\x00", "Tidemark-Header-Trace: 7f3a").is(200),
				post("/v1/topics/{t}/produce?partition=0&ack=committed&key=%C3%A9", "x").is(200),
				send("POST", "/v1/topics/{t}/produce/batch?partition=0&ack=committed", `{"messages":[{"payload":1,"headers":[{"name":"Upper","value":"x"}]}]}`, "Content-Type: application/json").is(200),
				get("/v1/topics/{t}/consume", "Accept: application/octet-stream").is(200).exactly("\xff\x00").
					head("Tidemark-Topic: {t}", "Tidemark-Partition: 0", "Tidemark-Offset: 0", "Tidemark-Key: u17", "Tidemark-Key-Encoding:", "Tidemark-Header-Trace: 7f3a", "Tidemark-Delivery-Count: 1").
					save("h", "header Tidemark-Receipt-Handle").save("ms", "header Tidemark-Timestamp-Ms"),
				get("/v1/topics/{t}/consume", "Accept: application/octet-stream").is(200).head("Tidemark-Key: w6k=", "Tidemark-Key-Encoding: base64"),
				get("/v1/topics/{t}/consume", "Accept: text/html, application/octet-stream;q=0.5").is(200).exactly("1").head("Tidemark-Headers: W3sibmFtZSI6IlVwcGVyIiwidmFsdWUiOiJ4In1d", "Tidemark-Header-Upper:"),
				post("/v1/topics/{t}/ack?receipt_handle={h}", "").is(204),
				get("/v1/topics/{t}/consume?partition=0&offset=0", "Accept: application/octet-stream").is(200).exactly("\xff\x00").head("Tidemark-Receipt-Handle:", "Tidemark-Delivery-Count:"),
			),
		},
		{
			Rule: "one record is shown again by its offset, without a lease", Reports: []string{"B127", "B128"},
			Steps: steps(
				produce(`{"n":1}`), produce(`{"n":2}`),
				get("/v1/topics/{t}/consume?partition=0&offset=0").is(200).field("payload", `{"n":1}`).field("offset", "0").field("receipt_handle", absent).field("delivery_count", absent),
				get("/v1/topics/{t}/consume?partition=0&offset=1").is(200).field("payload", `{"n":2}`),
				get("/v1/topics/{t}/consume?partition=0&offset=2").fails(416, "out_of_range").field("oldest_offset", "0").field("high_watermark", "2"),
				get("/v1/topics/{t}/consume?partition=0&offset=3").fails(416, "out_of_range").field("high_watermark", "2"),
				get("/v1/topics/{t}/consume?partition=0&offset=9223372036854775807").fails(416, "out_of_range"),
				postJSON("/v1/topics/{t}/partitions/0/trim", `{"before":1}`).is(200),
				get("/v1/topics/{t}/consume?partition=0&offset=0").fails(410, "gone").field("oldest_offset", "1").field("high_watermark", "2"),
				get("/v1/topics/{t}/consume?partition=0&offset=1").is(200).field("payload", `{"n":2}`),
				get("/v1/topics/{t}/consume?offset=1").fails(400, "invalid_argument"),
				get("/v1/topics/{t}/consume?partition=0&offset=1&max=1").fails(400, "invalid_argument"),
				get("/v1/topics/{t}/consume?partition=0&offset=1&wait=1s").fails(400, "invalid_argument"),
				get("/v1/topics/{t}/consume?partition=0&offset=1&group=default").fails(400, "invalid_argument"),
				post("/v1/topics/{t}/consume?partition=0&offset=1", "").fails(400, "invalid_argument"),
				get("/v1/topics/{t}/consume").is(200).field("delivery_count", "1"), // nothing was leased before
			),
		},
	}
}
