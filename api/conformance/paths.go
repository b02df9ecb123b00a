package conformance

// pathCases: what of a path is looked at, and what is not.
func pathCases() []Case {
	return []Case{
		{
			Rule: "an encoded slash stays in its segment", Reports: []string{"B01"},
			Steps: join(each([]string{
				"/v1/topics/{t}%2Fb/produce", "/v1/topics/{t}%2fconsume/produce", "/v1/topics/..%2F{t}/produce", "/v1/topics/{t}%252Fb/produce",
				"/v1/topics/{t}%2Fproduce/produce",
			}, func(path string) Step { return post(path, "stored?").fails(400, "invalid_argument") }), steps(
				get("/v1/topics/{t}%2Fconsume").fails(400, "invalid_argument"),
				get("/v1/topics/{t}/partitions/0%2Frecords").fails(404, "not_found"),
				get("/v1/topics/{t}/partitions/0%2Foffset?at=0").fails(404, "not_found"),
				get("/v1%2Ftopics").fails(404, "not_found"),
				get("/v1/topics/{t}/consume").is(204), // nothing was stored
			)),
		},
		{
			Rule: "a segment is unescaped once",
			Steps: steps(
				postJSON("/v1/topics", `{"name":"{t}-%61"}`).fails(400, "invalid_argument"),
				postJSON("/v1/topics", `{"name":"{t}-a"}`).is(201).head("Location: /v1/topics/{t}-a"),
				post("/v1/topics/{t}-%61/produce?ack=committed", "x").is(200).field("topic", `"{t}-a"`),
				post("/v1/topics/{t}-%2561/produce", "x").fails(400, "invalid_argument"),
				get("/v1/topics/{t}/partitions/%30/records").is(200),
			),
		},
		{
			Rule: "names have 1 to 200 of their alphabet",
			Steps: join(each([]string{"%20", "a%20b", "a%00", "%C3%28", "%C3%A9", "a:b", "a@b", "%2e%2e", "%2e", "..", ".", ""}, func(name string) Step {
				return post("/v1/topics/"+name+"/produce", "x").fails(400, "invalid_argument")
			}), each([]string{"a b", "a/b", "é", "", ".", "..", "a:b"}, func(name string) Step {
				return postJSON("/v1/topics", `{"name":"`+name+`"}`).fails(400, "invalid_argument")
			})),
		},
		{
			Rule: "the longest name is 200 bytes",
			Steps: join(each([]string{fill(174), fill(175)}, func(more string) Step {
				// {t} has 17 bytes, and 8 are before it.
				return postJSON("/v1/topics", `{"name":"A.z_09-a`+`{t}`+more+`"}`).is(201)
			}), steps(
				postJSON("/v1/topics", `{"name":"A.z_09-a{t}`+fill(176)+`"}`).fails(400, "invalid_argument"),
				get("/v1/topics/A.z_09-a{t}"+fill(175)).is(200),
				get("/v1/topics/A.z_09-a{t}"+fill(176)).fails(400, "invalid_argument"),
			)),
		},
		{
			Rule: "one slash at the end is ignored, nothing is redirected", Reports: []string{"B03", "B05"},
			Steps: join(steps(
				post("/v1/topics/{t}/produce/?ack=committed&partition=0", "x").is(200).field("offset", "0"),
				get("/v1/topics/").is(200),
				get("/healthz/").is(200),
				send("OPTIONS", "/v1/topics/{t}/produce/", "", "Origin: https://evil.example", "Access-Control-Request-Method: POST").is(204).head("Allow: POST, OPTIONS"),
			), each([]string{
				"/v1/topics/{t}/produce//", "/V1/topics/{t}/produce", "/v1/Topics/{t}/produce", "/v1/topics/{t}/./produce", "/v1/topics/{t}/x/../produce", "/v1//topics", "/",
			}, func(path string) Step { return post(path, "x").fails(404, "not_found") }), steps(
				Talk{writes(head1("POST", "//v1/topics/{t}/produce", "Content-Length: 1") + "x"), answers("POST", refused(404, "not_found"))},
				post("/v1/topics//produce", "x").fails(400, "invalid_argument"),
				get("/v1/topics//consume").fails(400, "invalid_argument"),
				get("/v1/topics/{t}/partitions/0/records").is(200).field("high_watermark", "1"),
			)),
		},
		{
			Rule: "a path that is no route is an error in JSON that says where to go", Reports: []string{"B255"}, Differs: "errors-json",
			Steps: steps(
				get("/nowhere").fails(404, "not_found").says("/v1/topics/TOPIC/produce"),
				get("/topics").fails(404, "not_found").says("use /v1/topics"),
				post("/v2/topics", "{}").fails(404, "not_found"),
				send("BREW", "/coffee", "").fails(404, "not_found"),
				send("OPTIONS", "/nowhere", "").fails(404, "not_found"),
				get("/"+fill(4000)).fails(404, "not_found"),
			),
		},
		{
			Rule: "a partition of the path is a number that the topic has",
			Steps: steps(
				get("/v1/topics/{t}/partitions/2/records").is(200),
				get("/v1/topics/{t}/partitions/3/records").fails(404, "not_found"),
				get("/v1/topics/{t}/partitions/-1/records").fails(400, "invalid_argument"),
				get("/v1/topics/{t}/partitions/1e0/records").fails(400, "invalid_argument"),
				get("/v1/topics/{t}/partitions/99999999999999999999/offset?at=0").fails(400, "invalid_argument"),
				postJSON("/v1/topics/{t}/partitions/3/trim", `{"before":0}`).fails(404, "not_found"),
			),
		},
	}
}
