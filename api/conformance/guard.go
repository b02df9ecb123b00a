package conformance

// guardCases: what a page of another site cannot do.
func guardCases() []Case {
	return []Case{
		{
			Rule: "a POST needs a type that forms cannot send, or a program's header", Reports: []string{"B11", "B12"}, Differs: "guard-types",
			Steps: join(each([]string{
				"Content-Type: application/json", "Content-Type: application/json; charset=UTF-8", "Content-Type: APPLICATION/JSON", "Content-Type: application/octet-stream",
				"Content-Type: application/x-ndjson", "Content-Type: application/vnd.tidemark.frames", "Content-Type: application/vnd.kafka.record-batch", "X-Tidemark-Client: curl", "X-Narad-Client: curl", "X-Tidemark-Client:",
			}, func(header string) Step { return send("POST", "/v1/topics/{t}/produce", "x", header).is(202) }), each([]string{
				"Content-Type: text/plain", "Content-Type: application/x-www-form-urlencoded", "Content-Type: multipart/form-data; boundary=x", "Content-Type: application/jsonp",
				"Content-Type:", "X-Client: curl", "Accept: application/json",
			}, func(header string) Step {
				return send("POST", "/v1/topics/{t}/produce", "x", header).fails(415, "unsupported_type").says("X-Tidemark-Client")
			}), steps(
				send("POST", "/v1/topics/{t}/produce", "x").fails(415, "unsupported_type"),
				send("POST", "/v1/topics/{t}/consume", "").fails(415, "unsupported_type"),
				send("POST", "/v1/topics/{t}/ack?receipt_handle=x", "").fails(415, "unsupported_type"),
				send("POST", "/v1/topics", `{"name":"x"}`, "Content-Type: text/plain").fails(415, "unsupported_type"),
				send("POST", "/v1/archive/scrub", "", "Content-Type: text/plain").fails(415, "unsupported_type"),
				send("POST", "/v1/topics/{t}/partitions/0/trim", `{"before":0}`).fails(415, "unsupported_type"),
				send("POST", "/v1/topics/{t}/produce", "x", "Content-Type: text/plain", "Content-Type: application/json").fails(400, "invalid_argument"),
			)),
		},
		{
			Rule: "a DELETE is exempt, which no page can send unasked",
			Steps: steps(
				send("DELETE", "/v1/topics/{t}", "").is(204),
			),
		},
		{
			Rule: "a GET that leases several records needs the header",
			Steps: steps(
				produce("x"),
				send("GET", "/v1/topics/{t}/consume?max=1", "").fails(400, "invalid_argument"),
				send("GET", "/v1/topics/{t}/consume?max=1", "", "Content-Type: application/json").fails(400, "invalid_argument"),
				send("GET", "/v1/topics/{t}/consume?max=1", "", "X-Narad-Client: go").is(200).field("messages.0.delivery_count", "1"),
			),
		},
		{
			Rule: "a page of another site does not consume",
			Steps: steps(
				produce("x"),
				send("GET", "/v1/topics/{t}/consume", "", "Sec-Fetch-Site: cross-site").fails(403, "denied"),
				send("GET", "/v1/topics/{t}/consume?max=1", "", "Sec-Fetch-Site: cross-site", client).fails(403, "denied"),
				send("GET", "/v1/topics/{t}/consume", "", "Sec-Fetch-Site: same-origin").is(200).field("delivery_count", "1"),
			),
		},
		{
			Rule: "a form is never parsed", Reports: []string{"B12"},
			Steps: steps(
				produce("key=value&x=%41", "Content-Type: application/x-www-form-urlencoded").field("offset", "0"),
				get("/v1/topics/{t}/consume", "Accept: application/octet-stream").is(200).exactly("key=value&x=%41").
					head("Tidemark-Header-Content-Type: application/x-www-form-urlencoded", "Tidemark-Key:", "X-Content-Type-Options: nosniff"),
			),
		},
	}
}

// credentialCases: a node that asks for credentials asks first.
func credentialCases() []Case {
	return []Case{
		{
			Rule: "without credentials every path is 401, before anything is looked at", Reports: []string{"B237", "B238"}, Secured: true,
			Steps: join(each([]string{"/v1/topics", "/v1/topics/{t}/produce", "/v1/topics/{t}/produce/batch", "/v1/topics/{t}%2Fb/produce", "/nowhere", "/metrics", "/v1/topics?broken;"}, func(path string) Step {
				return post(path, "x").withoutCredentials().fails(401, "unauthorized")
			}), steps(
				send("OPTIONS", "/v1/topics", "").withoutCredentials().fails(401, "unauthorized"),
				send("POST", "/v1/topics/{t}/produce", "x", "Content-Type: text/plain").withoutCredentials().fails(401, "unauthorized"),
				get("/v1/topics", "Authorization: Basic !!").withoutCredentials().fails(401, "unauthorized"),
				get("/v1/topics", "Authorization: Bearer x").withoutCredentials().fails(401, "unauthorized"),
				get("/v1/topics", "Authorization: Basic YWRtaW46").withoutCredentials().fails(401, "unauthorized"),
				send("POST", "/v1/topics/{t}/produce", "x", "Content-Type: text/plain").fails(415, "unsupported_type"),
				get("/v1/topics/{t}/consume").is(204),
			)),
		},
		{
			Rule: "the two probes are open", Secured: true,
			Steps: steps(
				get("/healthz").withoutCredentials().is(200),
				get("/readyz").withoutCredentials().is(200),
			),
		},
	}
}
