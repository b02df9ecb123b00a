package conformance

// operateCases: the routes of operators and probes.
func operateCases() []Case {
	return []Case{
		{
			Rule: "the probes say whether the node lives and serves",
			Steps: steps(
				send("GET", "/healthz", "").is(200).head("Content-Type: application/json").field("status", `"ok"`),
				send("GET", "/readyz", "").is(200).field("ready", "true").field("data", "true").field("control", "true"),
			),
		},
		{
			Rule: "metrics are Prometheus text without labels of a client's choice", Reports: []string{"B242"},
			Steps: steps(
				send("BREW", "/v1/topics/{t}", "", client).fails(405, "method_not_allowed"),
				get("/metrics").is(200).says("# TYPE tidemark_http_requests_total counter", `route="/v1/topics/:topic/produce"`).hides("BREW", `route="/v1/topics/{t}`),
			),
		},
		{
			Rule: "garbage of the archive is shown and collected", Archive: true,
			Steps: steps(
				get("/v1/archive/garbage").is(200).says(`"causes":`, `"grace_ms":`),
				post("/v1/archive/garbage", "").is(200).says(`"causes":`),
				post("/v1/archive/garbage", `{"x":1}`).fails(400, "invalid_argument"),
			),
		},
		{
			Rule: "the archive's state is shown, of all topics or of one", Archive: true,
			Steps: steps(
				get("/v1/archive").is(200).says(`"lag":{"records":`, `"rpo_seconds":`, `"cache":`, `"cost":`, `"topics":[`),
				get("/v1/archive?topic={t}").is(200).field("topics.0.topic", `"{t}"`).field("topics.0.partitions.2.partition", "2").field("topics.1", absent),
				get("/v1/archive?limit=1").is(200).field("topics.1", absent),
				get("/v1/archive?limit=0").fails(400, "invalid_argument"),
				get("/v1/archive?limit=1001").fails(400, "invalid_argument"),
				get("/v1/archive?topic={t}-none").fails(404, "not_found"),
				send("POST", "/v1/archive", "", client).fails(405, "method_not_allowed"),
			),
		},
		{
			Rule: "what is stored can be verified now",
			Steps: steps(
				get("/v1/archive/scrub").is(200).says(`"local":`, `"archive":`, `"asked":`, `"findings":`),
				post("/v1/archive/scrub?topic={t}", "").is(202).says(`"asked":`),
				post("/v1/archive/scrub?topic={t}-none", "").fails(404, "not_found"),
				post("/v1/archive/scrub?topic=", "").fails(400, "invalid_argument"),
				post("/v1/archive/scrub?topic=a%2Fb", "").fails(400, "invalid_argument"),
			),
		},
	}
}

// laterCases: what another build may have is refused by its name. A case goes
// when what it names is built.
func laterCases() []Case {
	named := func(q Request, what string) Step { return q.says("not in this build", what) }
	return []Case{
		{
			Rule: "routes of a later build are 404 by their names", Differs: "no-remotes",
			Steps: steps(
				named(post("/v1/topics/{t}/children", "{}").fails(404, "not_found"), "children"),
				named(get("/v1/topics/{t}/groups").fails(404, "not_found"), "groups"),
				named(get("/v1/topics/{t}/groups/g").fails(404, "not_found"), "groups"),
				named(get("/v1/topics/{t}/schema").fails(404, "not_found"), "schemas"),
				named(get("/v1/users").fails(404, "not_found"), "users"),
				named(get("/v1/cluster/members").fails(404, "not_found"), "cluster"),
				get("/v1/remotes").fails(404, "not_found"),
				post("/v1/topics/{t}/children/c/pause", "").fails(404, "not_found"),
			),
		},
		{
			Rule: "parameters and fields of a later build are 400 by their names",
			Steps: steps(
				named(post("/v1/topics/{t}/produce?delay=3s", "x").fails(400, "invalid_argument"), "delay"),
				named(post("/v1/topics/{t}/produce?deliver_at=2027-01-01T00:00:00Z", "x").fails(400, "invalid_argument"), "deliver_at"),
				named(post("/v1/topics/{t}/produce", "x", "Idempotency-Key: 1").fails(400, "invalid_argument"), "Idempotency-Key"),
				named(post("/v1/topics/{t}/produce/batch", "x", "Idempotency-Key: 1", "Content-Type: application/json").fails(400, "invalid_argument"), "Idempotency-Key"),
				named(postJSON("/v1/topics/{t}/produce/batch", `{"messages":[{"payload":1,"delay":"3s"}]}`).fails(400, "invalid_argument"), "delay"),
				named(get("/v1/topics/{t}/consume?group=billing").fails(400, "invalid_argument"), "billing"),
				named(get("/v1/topics/{t}/consume?start=latest").fails(400, "invalid_argument"), "start"),
				named(post("/v1/topics/{t}/ack?receipt_handle=h&group=billing", "").fails(400, "invalid_argument"), "billing"),
				named(post("/v1/topics/{t}/ack?receipt_handle=h&action=dead_letter", "").fails(400, "invalid_argument"), "dead_letter"),
				named(postJSON("/v1/topics", `{"name":"{t}x","schema":{}}`).fails(400, "invalid_argument"), "schema"),
				named(postJSON("/v1/topics", `{"name":"{t}x","parent":"{t}"}`).fails(400, "invalid_argument"), "parent"),
				named(postJSON("/v1/topics", `{"name":"{t}x","max_deliveries":3}`).fails(400, "invalid_argument"), "max_deliveries"),
				named(postJSON("/v1/topics", `{"name":"{t}x","fanout_delay_ms":3}`).fails(400, "invalid_argument"), "fanout_delay_ms"),
				get("/v1/topics/{t}/consume").is(204),
				get("/v1/topics/{t}/consume?group=..").fails(400, "invalid_argument"),
			),
		},
	}
}
