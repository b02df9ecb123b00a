package conformance

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tidemark-mq/tidemark/api"
)

// around makes a case of a bound: one below it, at it, and one above it.
func around(bound int64, step func(n int64, above bool) Step) []Step {
	return steps(step(bound-1, false), step(bound, false), step(bound+1, true))
}

// within is a request that passes up to a bound, and fails with a status above.
func within(q Request, above bool, passes, fails int, code string) Request {
	if above {
		return q.fails(fails, code)
	}
	return q.is(passes)
}

// boundCases: every bound, below, at and above it.
func boundCases(l api.Limits) []Case {
	cases := append(recordBounds(l), batchBounds(l)...)
	cases = append(cases, answerBounds(l)...)
	return append(cases, nodeBounds(l)...)
}

// recordBounds: of one record and of requests without records.
func recordBounds(l api.Limits) []Case {
	record := func(path string) func(n int64, above bool) Step {
		return func(n int64, above bool) Step {
			return Beside{
				within(post(path, fill(n)), above, 202, 413, "too_large"),
				within(post(path, fill(n)).inChunks(), above, 202, 413, "too_large"),
				within(post(path+"/batch", frame("", fill(n)), "Content-Type: application/vnd.tidemark.frames"), above, 202, 413, "too_large"),
			}
		}
	}
	return []Case{
		{Rule: "a record has the node's most bytes", Steps: around(l.RecordBytes, record("/v1/topics/{t}/produce"))},
		{Rule: "a record has the topic's most bytes", Topic: `"partitions":1,"max_record_bytes":10`, Steps: around(10, record("/v1/topics/{t}/produce"))},
		{Rule: "a topic may allow more than the node's default, up to 16 MiB", Topic: fmt.Sprintf(`"partitions":1,"max_record_bytes":%d`, l.RecordBytes+4096), Steps: join(
			steps(post("/v1/topics/{t}/produce", fill(l.RecordBytes+4096)).is(202), post("/v1/topics/{t}/produce", fill(l.RecordBytes+4097)).fails(413, "too_large")),
			around(16<<20, func(n int64, above bool) Step {
				return within(postJSON("/v1/topics", fmt.Sprintf(`{"name":"{t}-%d","partitions":1,"max_record_bytes":%d}`, n, n)), above, 201, 400, "invalid_argument")
			}),
		)},
		{Rule: "a request has the most bytes of line and headers", Steps: around(int64(l.HeaderBytes), func(n int64, above bool) Step {
			head := "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Fill: "
			like := ok(200)
			if above {
				like = refused(431, "header_too_large")
			}
			return Talk{writes(head + fill(n-int64(len(head))-4) + "\r\n\r\n"), answers("GET", like), ends()}
		})},
		{Rule: "a body without records has the most bytes", Steps: join(around(l.SmallBody, func(n int64, above bool) Step {
			return within(postJSON("/v1/topics/{t}/ack", `{"receipt_handles":["h"]}`+strings.Repeat(" ", int(n)-25)), above, 200, 413, "too_large")
		}), around(l.SmallBody, func(n int64, above bool) Step {
			// Refused by its name or by its size; long texts keep no names of a case.
			return within(postJSON("/v1/topics", `{"name":".."}`+strings.Repeat(" ", int(n)-13)), above, 400, 413, "too_large")
		}), around(l.SmallBody, func(n int64, above bool) Step {
			return within(send("GET", "/v1/topics", "{}"+strings.Repeat(" ", int(n)-2)), above, 200, 413, "too_large")
		}))},
		{Rule: "a produce waits at most so long", Steps: around(int64(l.ProduceWait/time.Millisecond), func(n int64, above bool) Step {
			return within(post(fmt.Sprintf("/v1/topics/{t}/produce?wait=%dms", n), "x"), above, 202, 400, "invalid_argument")
		})},
		{Rule: "a record has the most headers", Steps: around(int64(l.RecordHeaders), func(n int64, above bool) Step {
			var header []string
			for i := range n {
				header = append(header, fmt.Sprintf("Tidemark-Header-%d: x", i))
			}
			return within(post("/v1/topics/{t}/produce", "x", header...), above, 202, 400, "invalid_argument")
		})},
	}
}

// batchBounds: of batches.
func batchBounds(l api.Limits) []Case {
	batch := func(body, kind string) Request {
		return send("POST", "/v1/topics/{t}/produce/batch", body, "Content-Type: application/"+kind)
	}
	const lines, frames, list = "x-ndjson", "vnd.tidemark.frames", "json"
	refusal := func(q Request, above bool) Step { return within(q, above, 202, 413, "too_large") }
	return []Case{
		{Rule: "a batch has the most records", Differs: "batch-records", Steps: join(around(int64(l.BatchRecords), func(n int64, above bool) Step {
			return Beside{
				refusal(batch(strings.Repeat("1\n", int(n)), lines), above), refusal(batch(strings.Repeat(frame("", "x"), int(n)), frames), above),
				refusal(batch(`{"messages":[`+strings.Repeat(`{"payload":1},`, int(n)-1)+`{"payload":1}]}`, list), above),
			}
		}), steps(
			// The first one beyond the bound ends the work.
			batch(`{"messages":[`+strings.Repeat(`{"payload":1},`, l.BatchRecords)+"this is no JSON", list).fails(413, "too_large").field("limit", strconv.Itoa(l.BatchRecords)),
			batch(`{"messages":[`+strings.Repeat(`{"payload":1},`, l.BatchRecords-1)+"this is no JSON", list).fails(400, "invalid_argument"),
		))},
		{Rule: "a batch has the most bytes", Steps: around(l.BatchBytes, func(n int64, above bool) Step {
			return refusal(batch(linesOf(n, l.RecordBytes/2), lines), above)
		})},
		{Rule: "a key of a batch has the most bytes", Steps: around(l.KeyBytes, func(n int64, above bool) Step {
			key := fill(n)
			return Beside{
				refusal(batch(frame(key, "x"), frames), above), refusal(batch(`{"messages":[{"payload":1,"key":"`+key+`"}]}`, list), above),
				refusal(send("POST", "/v1/topics/{t}/produce/batch?key_field=", `"`+key+`"`, "Content-Type: application/x-ndjson"), above),
			}
		})},
		{Rule: "a record of a batch has the most headers, in number and in bytes", Steps: join(around(int64(l.RecordHeaders), func(n int64, above bool) Step {
			one := `{"name":"a","value":"b"}`
			return within(batch(`{"messages":[{"payload":1,"headers":[`+strings.Repeat(one+",", int(n)-1)+one+`]}]}`, list), above, 202, 400, "invalid_argument")
		}), around(int64(l.HeaderBytes), func(n int64, above bool) Step {
			return refusal(batch(`{"messages":[{"payload":1,"headers":[{"name":"a","value":"`+fill(n-1)+`"}]}]}`, list), above)
		}))},
		{Rule: "a pointer into lines has 32 steps", Steps: around(32, func(n int64, above bool) Step {
			q := send("POST", "/v1/topics/{t}/produce/batch?value_field="+strings.Repeat("/0", int(n)), nested(31), "Content-Type: application/x-ndjson")
			if above {
				return q.fails(400, "invalid_argument").says("32 steps")
			}
			return q.fails(400, "invalid_argument").says("nothing at value_field")
		})},
	}
}

// answerBounds: of what is asked for.
func answerBounds(l api.Limits) []Case {
	const records = "/v1/topics/{t}/partitions/0/records"
	return []Case{
		{Rule: "a consume leases the most records", Steps: join(around(int64(l.ConsumeRecords), func(n int64, above bool) Step {
			return within(get(fmt.Sprintf("/v1/topics/{t}/consume?max=%d", n)), above, 204, 400, "invalid_argument")
		}), steps(
			send("POST", "/v1/topics/{t}/produce/batch?partition=0&ack=committed", strings.Repeat("1\n", l.ConsumeRecords+1), "Content-Type: application/x-ndjson").is(200),
			get(fmt.Sprintf("/v1/topics/{t}/consume?max=%d", l.ConsumeRecords)).is(200).field(fmt.Sprintf("messages.%d.offset", l.ConsumeRecords-1), strconv.Itoa(l.ConsumeRecords-1)).field(fmt.Sprintf("messages.%d", l.ConsumeRecords), absent),
		))},
		{Rule: "an answer of a consume has the most bytes, and what does not fit is not counted", Topic: fmt.Sprintf(`"partitions":1,"max_record_bytes":%d`, l.ConsumeBytes), Steps: steps(
			produce(fill(l.ConsumeBytes-1)), produce("x"), produce("y"),
			get("/v1/topics/{t}/consume?max=3").is(200).field("messages.1.payload", `"x"`).field("messages.2", absent),
			get("/v1/topics/{t}/consume?max=3").is(200).field("messages.0.payload", `"y"`).field("messages.0.delivery_count", "1"),
			produce("z"), produce(fill(l.ConsumeBytes)),
			get("/v1/topics/{t}/consume?max=3").is(200).field("messages.0.payload", `"z"`).field("messages.1", absent),
			get("/v1/topics/{t}/consume?max=3").is(200).field("messages.0.offset", "4").field("messages.0.delivery_count", "1"),
		)},
		{Rule: "a wait of a consume is clamped, and the answer says so in both dialects", Steps: join(steps(
			produce("1"), produce("2"), produce("3"), produce("4"),
			get(fmt.Sprintf("/v1/topics/{t}/consume?wait=%dms", l.ConsumeWait.Milliseconds()-1)).is(200).head("Tidemark-Wait-Clamped:", "X-Narad-Wait-Clamped:"),
			get(fmt.Sprintf("/v1/topics/{t}/consume?wait=%v", l.ConsumeWait)).is(200).head("Tidemark-Wait-Clamped:", "X-Narad-Wait-Clamped:"),
			get(fmt.Sprintf("/v1/topics/{t}/consume?wait=%dms", l.ConsumeWait.Milliseconds()+1)).is(200).head("Tidemark-Wait-Clamped: "+l.ConsumeWait.String(), "X-Narad-Wait-Clamped: "+l.ConsumeWait.String()),
			get("/v1/topics/{t}/consume?wait=1h&max=1").is(200).head("X-Narad-Wait-Clamped: "+l.ConsumeWait.String()),
			get(records+"?wait=1h").is(200).head("Tidemark-Wait-Clamped: "+l.ConsumeWait.String()),
		))},
		{Rule: "an ack has the most handles", Steps: around(int64(l.AckHandles), func(n int64, above bool) Step {
			return within(postJSON("/v1/topics/{t}/ack", `{"receipt_handles":[`+strings.Repeat(`"h",`, int(n)-1)+`"h"]}`), above, 200, 413, "too_large")
		})},
		{Rule: "a lease is extended and a nack delayed for at most so long", Steps: join(steps(produce("x"), get("/v1/topics/{t}/consume").is(200).save("h", "receipt_handle")),
			around(l.LeaseTime.Milliseconds(), func(n int64, above bool) Step {
				q := post(fmt.Sprintf("/v1/topics/{t}/ack?receipt_handle={h}&action=extend&for=%dms", n), "")
				return within(q, above, 204, 400, "invalid_argument")
			}), steps(
				post(fmt.Sprintf("/v1/topics/{t}/ack?receipt_handle={h}&action=nack&delay=%dms", l.LeaseTime.Milliseconds()+1), "").fails(400, "invalid_argument"),
				post(fmt.Sprintf("/v1/topics/{t}/ack?receipt_handle={h}&action=nack&delay=%v", l.LeaseTime), "").is(204),
			))},
		{Rule: "a page has the most records and bytes", Steps: join(around(int64(l.PageRecords), func(n int64, above bool) Step {
			return within(get(fmt.Sprintf(records+"?max=%d", n)), above, 200, 400, "invalid_argument")
		}), around(l.PageBytes, func(n int64, above bool) Step {
			return within(get(fmt.Sprintf(records+"?max_bytes=%d", n)), above, 200, 400, "invalid_argument")
		}), around(int64(l.PageRecords), func(n int64, _ bool) Step {
			return get(fmt.Sprintf(records+"?max=%d", n), "Accept: application/x-ndjson").is(200) // a stream has no such bound
		}))},
		{Rule: "a list of topics has 1 to 1000", Steps: around(1000, func(n int64, above bool) Step {
			return within(get(fmt.Sprintf("/v1/topics?limit=%d", n)), above, 200, 400, "invalid_argument")
		})},
	}
}

// frame is a record of a batch of frames; key "" stands for none.
func frame(key, value string) string {
	u32 := func(n int) string { return string([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}) }
	if key == "" {
		return "\xff\xff\xff\xff" + u32(len(value)) + value
	}
	return u32(len(key)) + key + u32(len(value)) + value
}

// linesOf is NDJSON of n bytes in lines of at most step.
func linesOf(n, step int64) string {
	var b strings.Builder
	for n > 0 {
		size := min(n, step)
		if left := n - size; left > 0 && left < 3 {
			size -= 3 // a line has at least two quotes and its end
		}
		b.WriteString(`"` + fill(size-3) + `"` + "\n")
		n -= size
	}
	return b.String()
}
