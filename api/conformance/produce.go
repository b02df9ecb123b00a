package conformance

// produceCases: one record by its body.
func produceCases() []Case {
	raw := "Accept: application/octet-stream"
	return []Case{
		{
			Rule: "each level of ack has its answer", Differs: "produce-place",
			Steps: steps(
				post("/v1/topics/{t}/produce?partition=1&ack=accepted", "x").is(202).exactly("").head("Tidemark-Partition: 1"),
				post("/v1/topics/{t}/produce?partition=1", "x").is(202).exactly("").head("Tidemark-Partition: 1"),
				post("/v1/topics/{t}/produce?partition=1&ack=committed", "x").is(200).field("topic", `"{t}"`).field("partition", "1").field("offset", "2").field("archived", absent),
				post("/v1/topics/{t}/produce?ack=durable", "x").fails(400, "invalid_argument"),
				post("/v1/topics/{t}/produce?ack=", "x").fails(400, "invalid_argument"),
				post("/v1/topics/{t}-none/produce", "x").fails(404, "not_found"),
			),
		},
		{
			Rule: "archived answers when the bucket has the record", Archive: true,
			Steps: steps(
				post("/v1/topics/{t}/produce?partition=0&ack=archived&wait=30s", "x").is(200).field("offset", "0").field("archived", "true"),
				post("/v1/topics/{t}/produce/batch?partition=1&ack=archived&wait=30s", "1\n2\n", "Content-Type: application/x-ndjson").is(200).
					field("partitions.0.partition", "1").field("partitions.0.first_offset", "0").field("partitions.0.last_offset", "1").field("partitions.0.count", "2"),
			),
		},
		{
			Rule: "the topic's level holds where the request names none", Topic: `"partitions":1,"default_ack":"committed"`,
			Steps: steps(
				post("/v1/topics/{t}/produce", "x").is(200).field("offset", "0"),
				post("/v1/topics/{t}/produce?ack=accepted", "x").is(202),
			),
		},
		{
			Rule: "a wait that is over is unknown", Archive: true,
			Steps: steps(
				post("/v1/topics/{t}/produce?partition=0&ack=archived&wait=1ms", "x").fails(504, "not_confirmed").field("partition", "0").field("offset", "0").field("retry", `"unknown"`),
				get("/v1/topics/{t}/consume?wait=10s").is(200).field("offset", "0"),
			),
		},
		{
			Rule: "an empty body is an empty record, on every path", Reports: []string{"B16"}, Differs: "empty-record",
			Steps: steps(
				produce("").field("offset", "0"),
				produce("").inChunks().field("offset", "1"),
				post("/v1/topics/{t}/produce/batch?partition=0", `{"messages":[{"payload":""}]}`, "Content-Type: application/json").is(202),
				post("/v1/topics/{t}/produce/batch?partition=0", "\xff\xff\xff\xff\x00\x00\x00\x00", "Content-Type: application/vnd.tidemark.frames").is(202),
				get("/v1/topics/{t}/consume?max=10&wait=10s").is(200).field("messages.0.payload", `""`).field("messages.3.payload", `""`).field("messages.4", absent),
			),
		},
		{
			Rule: "a value comes back byte for byte", Reports: []string{"B10", "B19"},
			Steps: steps(
				produce("\x00\xff\xfe\r\n\x80"),
				get("/v1/topics/{t}/consume", raw).is(200).exactly("\x00\xff\xfe\r\n\x80").head("Content-Type: application/octet-stream", "Content-Length: 6", "Tidemark-Offset: 0", "Tidemark-Delivery-Count: 1", "Tidemark-Topic: {t}", "Tidemark-Partition: 0"),
				produce(`{"a":1e999999999, "b" : 12345678901234567890.10}`),
				get("/v1/topics/{t}/consume").is(200).field("payload", `{"a":1e999999999, "b" : 12345678901234567890.10}`).field("payload_encoding", absent),
				produce("naïve ☃"),
				get("/v1/topics/{t}/consume").is(200).field("payload", `"naïve ☃"`).field("payload_encoding", absent),
				produce("\x00\xff"),
				get("/v1/topics/{t}/consume").is(200).field("payload", `"AP8="`).field("payload_encoding", `"base64"`),
				produce("{\"a\":\xc3\x28}"),
				get("/v1/topics/{t}/consume").is(200).field("payload_encoding", `"base64"`),
				produce("{} {}"),
				get("/v1/topics/{t}/consume").is(200).field("payload", `"{} {}"`),
			),
		},
		{
			Rule: "an expected offset holds, or nothing is stored",
			Steps: steps(
				produce("x"),
				post("/v1/topics/{t}/produce?partition=0&expected_offset=0&ack=committed", "y").fails(412, "precondition_failed").field("next_offset", "1").field("retry", `"never"`),
				post("/v1/topics/{t}/produce?partition=0&expected_offset=2&ack=committed", "y").fails(412, "precondition_failed").field("next_offset", "1"),
				post("/v1/topics/{t}/produce?partition=0&expected_offset=1&ack=committed", "y").is(200).field("offset", "1"),
				post("/v1/topics/{t}/produce?partition=1&expected_offset=0", "z").is(202).head("Tidemark-Offset: 0"),
				post("/v1/topics/{t}/produce?expected_offset=0", "y").fails(400, "invalid_argument").says("partition"),
				post("/v1/topics/{t}/produce?partition=0&expected_offset=-1", "y").fails(400, "invalid_argument"),
				post("/v1/topics/{t}/produce?partition=0&expected_offset=", "y").fails(400, "invalid_argument"),
				get("/v1/topics/{t}/partitions/0/records").is(200).field("high_watermark", "2"),
			),
		},
		{
			Rule: "keys survive whatever their bytes are", Reports: []string{"B18"},
			Steps: steps(
				post("/v1/topics/{t}/produce?partition=0&ack=committed&key=u%2F1+2", "x").is(200),
				post("/v1/topics/{t}/produce?partition=0&ack=committed&key=", "x").is(200),
				post("/v1/topics/{t}/produce?partition=0&ack=committed", "x").is(200),
				post("/v1/topics/{t}/produce?partition=0&ack=committed&key=%00%FF", "x").is(200),
				post("/v1/topics/{t}/produce?partition=0&ack=committed&key=%F0%9F%90%98%E2%80%A8%22%5C", "x").is(200),
				get("/v1/topics/{t}/consume?max=10").is(200).field("messages.0.key", `"u/1 2"`).field("messages.1.key", `""`).field("messages.2.key", absent).
					field("messages.3.key", `"AP8="`).field("messages.3.key_encoding", `"base64"`).field("messages.4.key", "\"🐘\u2028\\\"\\\\\"").field("messages.4.key_encoding", absent),
			),
		},
		{
			Rule: "the same key goes to the same partition, by murmur2", Differs: "key-hash",
			Steps: steps(
				// As Kafka's clients place these keys among three partitions.
				post("/v1/topics/{t}/produce?ack=committed&key=u0", "x").is(200).save("p", "partition"),
				post("/v1/topics/{t}/produce?ack=committed&key=u0", "x").is(200).field("partition", "{p}"),
				post("/v1/topics/{t}/produce/batch?ack=committed", `{"messages":[{"key":"u0","payload":1},{"key":"dTA=","key_encoding":"base64","payload":2}]}`, "Content-Type: application/json").is(200).
					field("partitions.0.partition", "{p}").field("partitions.0.count", "2"),
				post("/v1/topics/{t}/produce?ack=committed&key=21", "x").is(200).field("partition", "0"),
				post("/v1/topics/{t}/produce?ack=committed&key=foobar", "x").is(200).field("partition", "0"),
				post("/v1/topics/{t}/produce?ack=committed&key=a-little-bit-long-string", "x").is(200).field("partition", "2"),
				post("/v1/topics/{t}/produce?ack=committed&key=foobar&partition=1", "x").is(200).field("partition", "1"),
			),
		},
		{
			Rule: "headers of the request become headers of the record",
			Steps: steps(
				produce("x", "Tidemark-Header-Trace: 7f3a", "Tidemark-Header-B: 2", "Tidemark-Header-a: 1", "Content-Type: image/png"),
				get("/v1/topics/{t}/consume").is(200).field("headers", `[{"name":"a","value":"1"},{"name":"b","value":"2"},{"name":"content-type","value":"image/png"},{"name":"trace","value":"7f3a"}]`),
				produce("x", "Content-Type: application/json; charset=utf-8"),
				get("/v1/topics/{t}/consume").is(200).field("headers", absent),
				post("/v1/topics/{t}/produce", "x", "Tidemark-Header-tm-x: 1").fails(400, "invalid_argument"),
			),
		},
	}
}
