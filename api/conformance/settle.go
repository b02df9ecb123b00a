package conformance

// settleCases: leases are acked, extended and given back.
func settleCases() []Case {
	lease := get("/v1/topics/{t}/consume").is(200).save("h", "receipt_handle")
	settle := func(query string) Request { return post("/v1/topics/{t}/ack?receipt_handle={h}"+query, "") }
	return []Case{
		{
			Rule: "an action settles, extends or gives back",
			Steps: steps(
				produce("x"), lease,
				settle("&action=extend").is(204),
				settle("&action=extend&for=1m").is(204),
				settle("&action=nack").is(204),
				settle("&action=ack").fails(410, "gone"),
				get("/v1/topics/{t}/consume?wait=10s").is(200).field("delivery_count", "2").save("h", "receipt_handle"),
				settle("&action=nack&delay=1h").is(204),
				get("/v1/topics/{t}/consume").is(204),
				produce("y"), lease, settle("&action=ack").is(204),
				settle("&action=extend").fails(410, "gone"),
			),
		},
		{
			Rule: "the older form extends and gives back", Reports: nil,
			Steps: steps(
				produce("x"), lease,
				settle("&extend=true").is(204),
				settle("&extend=1").is(204),
				settle("&extend=0").is(204),
				get("/v1/topics/{t}/consume?wait=10s").is(200).field("delivery_count", "2").save("h", "receipt_handle"),
				settle("&extend=false").fails(400, "invalid_argument"),
				settle("&extend=").fails(400, "invalid_argument"),
				settle("&extend=1&action=extend").fails(400, "invalid_argument"),
				settle("").is(204),
			),
		},
		{
			Rule: "times belong to their action",
			Steps: steps(
				produce("x"), lease,
				settle("&for=1s").fails(400, "invalid_argument"),
				settle("&action=nack&for=1s").fails(400, "invalid_argument"),
				settle("&delay=1s").fails(400, "invalid_argument"),
				settle("&action=extend&delay=1s").fails(400, "invalid_argument"),
				settle("&action=extend&for=0s").fails(400, "invalid_argument"),
				settle("&action=extend&for=-1s").fails(400, "invalid_argument"),
				settle("&action=drop").fails(400, "invalid_argument"),
				settle("&action=").fails(400, "invalid_argument"),
				settle("&extend=1&for=1s").is(204),
				settle("").is(204),
			),
		},
		{
			Rule: "what never was a handle is 400, what is one no more 410", Differs: "opaque-handles",
			Steps: steps(
				produce("x"), lease,
				post("/v1/topics/{t}/ack?receipt_handle=nonsense", "").fails(400, "invalid_argument"),
				post("/v1/topics/{t}/ack?receipt_handle=0:0:1", "").fails(400, "invalid_argument"),
				post("/v1/topics/{t}/ack?receipt_handle={h}A", "").fails(400, "invalid_argument"),
				post("/v1/topics/{t}/ack?receipt_handle=", "").fails(400, "invalid_argument"),
				post("/v1/topics/{t}/ack", "").fails(400, "invalid_argument"),
				post("/v1/topics/{t}/ack", "{}").fails(400, "invalid_argument"),
				postJSON("/v1/topics", `{"name":"{t}-b"}`).is(201),
				post("/v1/topics/{t}-b/ack?receipt_handle={h}", "").fails(410, "gone"),
				settle("").is(204),
				settle("").fails(410, "gone"),
			),
		},
		{
			Rule: "a list has one result for each handle, in their order",
			Steps: steps(
				produce("1"), produce("2"),
				get("/v1/topics/{t}/consume?max=2").is(200).save("a", "messages.0.receipt_handle").save("b", "messages.1.receipt_handle"),
				postJSON("/v1/topics/{t}/ack", `{"receipt_handles":["{b}","nonsense","{a}","{b}"]}`).is(200).
					field("results.0", `{"status":204}`).field("results.1.status", "400").field("results.1.code", `"invalid_argument"`).field("results.1.retry", `"never"`).
					field("results.2", `{"status":204}`).field("results.3.status", "410").field("results.4", absent),
				postJSON("/v1/topics/{t}/ack?action=nack", `{"receipt_handles":["{a}"]}`).is(200).field("results.0.status", "410"),
			),
		},
		{
			Rule: "a list that is malformed settles nothing",
			Steps: join(steps(produce("x"), lease), each([]string{
				"x", "[]", "{", `{"receipt_handles":{}}`, `{"receipt_handles":["{h}"]}x`, `{"receipt_handles":[1]}`, `{"receipt_handles":[""]}`, `{"receipt_handles":[]}`, `{"handles":["{h}"]}`,
				`{"receipt_handles":["{h}"],"receipt_handles":["{h}"]}`, `{"receipt_handles":["{h}"],"x":1}`, `{"receipt_handles":["{h}",]}`, "{\"receipt_handles\":[\"\xc3\x28\"]}",
			}, func(body string) Step { return postJSON("/v1/topics/{t}/ack", body).fails(400, "invalid_argument") }), steps(
				postJSON("/v1/topics/{t}/ack?receipt_handle={h}", `{"receipt_handles":["{h}"]}`).fails(400, "invalid_argument"),
				settle("").is(204), // it was still leased
			)),
		},
	}
}
