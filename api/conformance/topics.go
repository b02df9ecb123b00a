package conformance

import "fmt"

// setting tries a setting of new topics at both ends of what it may be.
func setting(name string, least, most int64) []Step {
	create := func(v int64) Request {
		return postJSON("/v1/topics", fmt.Sprintf(`{"name":"{t}-%s-%d","partitions":1,"%s":%d}`, name, v, name, v))
	}
	return steps(create(least).is(201), create(most).is(201), create(least-1).fails(400, "invalid_argument").says(name), create(most+1).fails(400, "invalid_argument").says(name))
}

// patch changes the case's topic.
func patch(body string) Request { return send("PATCH", "/v1/topics/{t}", body, client) }

// topicCases: topics are created, listed, described and deleted.
func topicCases() []Case {
	return []Case{
		{
			Rule: "a topic has the settings that it was created with, and defaults",
			Steps: steps(
				postJSON("/v1/topics", `{"name":"{t}-d"}`).is(201).head("Location: /v1/topics/{t}-d", "Content-Type: application/json").
					field("name", `"{t}-d"`).field("partitions", "3").field("retention_ms", "604800000").field("visibility_timeout_ms", "30000").
					field("default_ack", `"accepted"`).field("failover", `"wait"`).field("compression", `"zstd"`),
				// What loses nothing by it fails over by itself.
				postJSON("/v1/topics", `{"name":"{t}-f","default_ack":"archived"}`).is(201).field("failover", `"automatic"`),
				postJSON("/v1/topics", `{"name":"{t}-s","partitions":1,"retention_ms":0,"retention_bytes":1048576,"local_retention_ms":60000,"local_retention_bytes":65536,"visibility_timeout_ms":1000,`+
					`"max_in_flight_per_partition":7,"max_record_bytes":4096,"default_ack":"committed","failover":"wait","compression":"none"}`).is(201),
				get("/v1/topics/{t}-s").is(200).field("partitions", "1").field("retention_ms", "0").field("retention_bytes", "1048576").field("local_retention_ms", "60000").
					field("local_retention_bytes", "65536").field("visibility_timeout_ms", "1000").field("max_in_flight_per_partition", "7").field("max_record_bytes", "4096").
					field("default_ack", `"committed"`).field("failover", `"wait"`).field("compression", `"none"`),
			),
		},
		{
			Rule: "a topic has 1 to 1024 partitions", Differs: "partitions",
			Steps: steps(
				postJSON("/v1/topics", `{"name":"{t}-0","partitions":0}`).fails(400, "invalid_argument").says("partitions"),
				postJSON("/v1/topics", `{"name":"{t}-1","partitions":1}`).is(201),
				postJSON("/v1/topics", `{"name":"{t}-2","partitions":2}`).is(201),
				postJSON("/v1/topics", `{"name":"{t}-3","partitions":1025}`).fails(400, "invalid_argument").says("partitions"),
				postJSON("/v1/topics", `{"name":"{t}-4","partitions":-1}`).fails(400, "invalid_argument").says("partitions"),
				get("/v1/topics/{t}-3").fails(404, "not_found"),
			),
		},
		{
			Rule: "settings have bounds, and every one that is out of them is named",
			Steps: join(
				setting("retention_ms", 0, 100*366*24*3600*1000), setting("retention_bytes", 0, 1<<62), setting("local_retention_ms", 0, 100*366*24*3600*1000), setting("local_retention_bytes", 0, 1<<62),
				setting("visibility_timeout_ms", 1000, 12*3600*1000), setting("max_in_flight_per_partition", 0, 1000000), setting("max_record_bytes", 1, 16<<20),
				steps(postJSON("/v1/topics", `{"name":"{t}-n","partitions":2000,"visibility_timeout_ms":1}`).fails(400, "invalid_argument").says("partitions", "visibility_timeout_ms")),
			),
		},
		{
			Rule: "a name that exists is taken, in any letter case", Reports: []string{"B230"},
			Steps: steps(
				postJSON("/v1/topics", `{"name":"{t}"}`).fails(409, "exists"),
				postJSON("/v1/topics", `{"name":"CONF-Case-{t}"}`).is(201),
				postJSON("/v1/topics", `{"name":"conf-cASE-{t}"}`).fails(409, "exists"),
				get("/v1/topics/conf-cASE-{t}").fails(404, "not_found"),
			),
		},
		{
			Rule: "a body is one JSON object with known fields, each once", Reports: []string{"B08"},
			Steps: join(each([]string{
				"", " ", "[]", `"x"`, "{", "null", `{"name":"{t}x"}{}`, `{"name":"{t}x"} x`, `{"name":"{t}x","name":"{t}y"}`, `{"Name":"{t}x"}`, `{"name":"{t}x","nope":1}`, `{"name":"{t}x",}`,
				`{"name":"{t}x","partitions":"3"}`, `{"name":"{t}x","partitions":1e999999999}`, `{"name":"{t}x","partitions":1.5}`, `{"name":1}`, `{}`, "{\"name\":\"\xc3\x28\"}",
				`{"name":"{t}x","retention_ms":-1}`, `{"name":"{t}x","visibility_timeout_ms":0}`, `{"name":"{t}x","default_ack":"durable"}`, `{"name":"{t}x","failover":"no"}`, `{"name":"{t}x","compression":"gzip"}`,
			}, func(body string) Step { return postJSON("/v1/topics", body).fails(400, "invalid_argument") }),
				steps(get("/v1/topics/{t}x").fails(404, "not_found"))),
		},
		{
			Rule: "the list has pages", Topic: `"partitions":1`,
			Steps: steps(
				postJSON("/v1/topics", `{"name":"{t}-1","partitions":1}`).is(201),
				get("/v1/topics?limit=1").is(200).save("next", "next_page_token"),
				get("/v1/topics?limit=1&page_token={next}").is(200).field("topics.1", absent),
				get("/v1/topics?limit=1&page_token=").is(200),
				get("/v1/topics?page_token=!").fails(400, "invalid_argument"),
				get("/v1/topics?limit=1000").is(200).says(`"name":"{t}"`, `"name":"{t}-1"`),
				get("/v1/topics?limit=1001").fails(400, "invalid_argument"),
			),
		},
		{
			Rule: "a description has the state of all partitions, or of one",
			Steps: steps(
				produce("x"),
				get("/v1/topics/{t}").is(200).field("partition_stats.0.index", "0").field("partition_stats.0.next_offset", "1").field("partition_stats.0.high_watermark", "1").
					field("partition_stats.0.oldest_offset", "0").field("partition_stats.0.status", `"serving"`).field("partition_stats.2.high_watermark", "0").field("partition_stats.3", absent),
				get("/v1/topics/{t}?partition=1").is(200).field("partition_stats.0.index", "1").field("partition_stats.1", absent),
				get("/v1/topics/{t}?partition=3").fails(400, "invalid_argument"),
				get("/v1/topics/{t}-none").fails(404, "not_found"),
			),
		},
		{
			Rule: "a change of a topic takes all settings that it names, or none", Differs: "patch-atomic",
			Steps: steps(
				patch(`{"retention_ms":60000,"visibility_timeout_ms":5000}`).is(200).field("retention_ms", "60000").field("visibility_timeout_ms", "5000").field("partitions", "3"),
				patch(`{"retention_ms":120000,"visibility_timeout_ms":1}`).fails(400, "invalid_argument").says("visibility_timeout_ms"),
				get("/v1/topics/{t}").is(200).field("retention_ms", "60000").field("visibility_timeout_ms", "5000"),
				patch(`{"default_ack":"committed"}`).is(200).field("default_ack", `"committed"`).field("failover", `"wait"`),
				post("/v1/topics/{t}/produce?partition=0", "x").is(200), // it holds at once
				patch(`{"max_record_bytes":3}`).is(200),
				post("/v1/topics/{t}/produce?partition=0", "xxxx").fails(413, "too_large").field("limit", "3"),
				send("PATCH", "/v1/topics/{t}-none", `{"retention_ms":0}`, client).fails(404, "not_found"),
				send("PATCH", "/v1/topics/{t}", `{"retention_ms":0}`, "Content-Type: text/plain").fails(415, "unsupported_type"),
			),
		},
		{
			Rule: "a change that is malformed changes nothing",
			Steps: join(each([]string{"", "{", "[]", `{"retention_ms":1,"retention_ms":2}`, `{"retention_ms":null}`, `{"partitions":4}`, `{"name":"x"}`, `{"nope":1}`, `{"retention_ms":"1"}`, `{"retention_ms":-1}`, `{"retention_ms":1}x`}, func(body string) Step {
				return patch(body).fails(400, "invalid_argument")
			}), steps(get("/v1/topics/{t}").is(200).field("retention_ms", "604800000").field("partitions", "3"))),
		},
		{
			Rule: "a deleted topic is gone, and its name is free with an empty log",
			Steps: steps(
				send("DELETE", "/v1/topics/{t}-none", "").fails(404, "not_found"),
				produce("x"),
				send("DELETE", "/v1/topics/{t}", "").fails(409, "conflict"),
				get("/v1/topics/{t}/consume?partition=0").is(200).save("h", "receipt_handle"),
				post("/v1/topics/{t}/ack?receipt_handle={h}", "").is(204),
				send("DELETE", "/v1/topics/{t}", "").is(204),
				get("/v1/topics/{t}").fails(404, "not_found"),
				post("/v1/topics/{t}/produce", "x").fails(404, "not_found"),
				get("/v1/topics/{t}/consume").fails(404, "not_found"),
				get("/v1/topics/{t}/partitions/0/records").fails(404, "not_found"),
				post("/v1/topics/{t}/ack?receipt_handle={h}", "").fails(404, "not_found"),
				postJSON("/v1/topics", `{"name":"{t}","partitions":1}`).is(201),
				get("/v1/topics/{t}/partitions/0/records").is(200).field("high_watermark", "0"),
				post("/v1/topics/{t}/ack?receipt_handle={h}", "").fails(410, "gone"),
			),
		},
	}
}
