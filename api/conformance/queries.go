package conformance

// queryCases: queries are strict.
func queryCases() []Case {
	bad := func(build func(path string) Request) func(string) Step {
		return func(path string) Step { return build(path).fails(400, "invalid_argument") }
	}
	posted := func(path string) Request { return post(path, "x") }
	gotten := func(path string) Request { return get(path) }
	under := func(prefix string, queries ...string) (paths []string) {
		for _, q := range queries {
			paths = append(paths, prefix+"?"+q)
		}
		return paths
	}
	return []Case{
		{
			Rule: "a query that another reader could take differently is refused", Reports: []string{"B14"}, Differs: "strict-queries",
			Steps: join(each(under("/v1/topics/{t}/produce",
				"key=a;b", "key=a;partition=0", "partition=0;x", "key=%zz", "key=%", "%gg=1", "key=a&key=b", "key=a&key=a", "Key=a", "unknown=1", "=", "offset=1", "key_field=/a",
			), bad(posted)), each(under("/v1/topics/{t}/consume", "partition=0;x", "from=1", "key=a", "max=1&max=1"), bad(gotten)), each(under("/v1/topics", "x", "limit=1&limit=2"), bad(gotten)), each([]string{
				"/healthz?x=1", "/readyz?x", "/metrics?x=1", "/v1/topics/{t}?force", "/v1/topics/{t}/partitions/0/offset?at=0&from=1", "/v1/archive/garbage?x", "/v1/archive/scrub?topic={t}",
			}, bad(gotten)), steps(
				get("/v1/topics/{t}/consume").is(204), // nothing was stored
				post("/v1/topics/{t}/produce?&key=a%3Bb%26+c&&partition=0&&ack=committed&", "x").is(200),
				get("/v1/topics/{t}/consume?&").is(200).field("key", `"a;b& c"`),
			)),
		},
		{
			Rule: "numbers are decimal digits", Reports: []string{"B127"},
			Steps: join(each(under("/v1/topics/{t}/produce", "partition=", "partition=-1", "partition=3", "partition=1e0", "partition=+1", "partition=%201", "partition=0x1", "partition=99999999999999999999"), bad(posted)),
				each(under("/v1/topics/{t}/consume", "max=0", "max=a", "max=-1", "max=", "partition=7", "partition=0&offset=-1", "partition=0&offset=abc", "partition=0&offset=1e3", "partition=0&offset=9223372036854775808"), bad(gotten)),
				each(under("/v1/topics", "limit=0", "limit=-1", "limit=a"), bad(gotten)),
				each(under("/v1/topics/{t}/partitions/0/records", "from=-1", "from=abc", "from=1e3", "to=-1", "max=0", "max_bytes=0", "from=9223372036854775808"), bad(gotten))),
		},
		{
			Rule: "lengths of time have a unit and are not negative",
			Steps: join(each(under("/v1/topics/{t}/produce", "wait=5", "wait=-1s", "wait=1e3", "wait=s", "wait="), bad(posted)),
				each(under("/v1/topics/{t}/consume", "wait=x", "wait=-1ms", "wait=10"), bad(gotten)),
				steps(post("/v1/topics/{t}/produce?wait=1m30s&ack=accepted", "x").fails(400, "invalid_argument").says("longest"),
					post("/v1/topics/{t}/produce?wait=1.5s", "x").is(202), post("/v1/topics/{t}/produce?wait=0s", "x").is(202))),
		},
		{
			Rule: "points in time are RFC 3339 or milliseconds",
			Steps: join(each(under("/v1/topics/{t}/partitions/0/offset", "at=", "at=yesterday", "at=-1", "at=2026-11-29", "at=2026-11-29T08:30:00+01:00", "x=1"), bad(gotten)),
				each(under("/v1/topics/{t}/partitions/0/offset", "at=0", "at=1764405000123", "at=2026-11-29T08:30:00Z", "at=2026-11-29T08:30:00.123Z", "at=2026-11-29T08:30:00%2B01:00", "at=9223372036854775807"), func(path string) Step {
					return get(path).is(200).exactly(`{"topic":"{t}","partition":0,"offset":0}` + "\n")
				})),
		},
		{
			Rule: "a flag is true when it is named, and takes true, false, 1 and 0",
			Steps: join(each(under("/v1/topics/{t}", "force=maybe", "force=TRUE", "force=2"), bad(func(path string) Request { return send("DELETE", path, "") })),
				steps(produce("x"), send("DELETE", "/v1/topics/{t}?force=false", "").fails(409, "conflict"), send("DELETE", "/v1/topics/{t}?force=0", "").fails(409, "conflict"),
					send("DELETE", "/v1/topics/{t}", "").fails(409, "conflict"), send("DELETE", "/v1/topics/{t}?force=1", "").is(204), get("/v1/topics/{t}").fails(404, "not_found"))),
		},
	}
}
