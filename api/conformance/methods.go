package conformance

// methodCases: which methods a path has, and what the others are answered.
func methodCases() []Case {
	allow := func(method, path, list string) Step {
		return send(method, path, "", client).fails(405, "method_not_allowed").head("Allow: " + list)
	}
	options := func(path, list string) Step {
		return send("OPTIONS", path, "").is(204).head("Allow: "+list, "Access-Control-Allow-Origin:", "Access-Control-Allow-Methods:")
	}
	return []Case{
		{
			Rule: "a wrong method is 405 with the right ones", Reports: []string{"B06"}, Differs: "errors-json",
			Steps: steps(
				allow("GET", "/v1/topics/{t}/produce", "POST, OPTIONS"),
				allow("HEAD", "/v1/topics/{t}/consume", "GET, POST, OPTIONS"),
				allow("PUT", "/v1/topics", "GET, HEAD, POST, OPTIONS"),
				allow("DELETE", "/healthz", "GET, HEAD, OPTIONS"),
				allow("POST", "/v1/topics/{t}/partitions/0/records", "GET, HEAD, OPTIONS"),
				allow("GET", "/v1/topics/{t}/partitions/0/trim", "POST, OPTIONS"),
				allow("BREW", "/v1/topics/{t}/ack", "POST, OPTIONS"),
				allow("DELETE", "/v1/archive/scrub", "GET, HEAD, POST, OPTIONS"),
			),
		},
		{
			Rule: "OPTIONS is answered without approving another origin", Reports: []string{"B05"},
			Steps: steps(
				options("/v1/topics", "GET, HEAD, POST, OPTIONS"),
				options("/v1/topics/{t}/consume", "GET, POST, OPTIONS"),
				options("/v1/archive/garbage", "GET, HEAD, POST, OPTIONS"),
				options("/metrics", "GET, HEAD, OPTIONS"),
				Talk{writes("OPTIONS * HTTP/1.1\r\nHost: {host}\r\n{auth}\r\n"), answers("OPTIONS", ok(204))},
			),
		},
		{
			Rule: "HEAD is served where GET changes nothing, without a body",
			Steps: each([]string{
				"/v1/topics", "/v1/topics/{t}", "/v1/topics/{t}/partitions/0/records", "/v1/topics/{t}/partitions/0/offset?at=0", "/healthz", "/readyz", "/metrics", "/v1/archive/scrub",
			}, func(path string) Step { return send("HEAD", path, "", client).is(200) }),
		},
		{
			Rule: "HEAD of a stream does not read it",
			Steps: steps(
				produce("x"),
				send("HEAD", "/v1/topics/{t}/partitions/0/records", "", "Accept: application/x-ndjson").is(200).head("Content-Type: application/x-ndjson"),
				send("HEAD", "/v1/topics/{t}/partitions/0/records?follow", "", "Accept: application/x-ndjson").is(200),
				send("HEAD", "/v1/topics/nothing-here", "").is(404),
			),
		},
		{
			Rule: "a body where none belongs is empty or an empty object",
			Steps: steps(
				send("GET", "/v1/topics", "{}").is(200),
				send("GET", "/v1/topics", " { } ").is(200),
				send("GET", "/v1/topics", "x").fails(400, "invalid_argument"),
				send("GET", "/v1/topics", `{"a":1}`).fails(400, "invalid_argument"),
				post("/v1/topics/{t}/consume", "{}").is(204),
				post("/v1/topics/{t}/consume", `{"max":3}`).fails(400, "invalid_argument").says("max"),
				post("/v1/topics/{t}/consume", "[]").fails(400, "invalid_argument"),
				send("DELETE", "/v1/topics/{t}", `{"force":true}`).fails(400, "invalid_argument"),
				get("/v1/topics/{t}").is(200),
			),
		},
	}
}
