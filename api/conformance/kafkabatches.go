package conformance

import (
	"encoding/base64"
	"strings"
)

// kafkaBatch is a batch as a Kafka client sent it: franz-go 1.22 to a broker of
// Kafka 2.3, without idempotence. Each holds the three records of kafkaRecords.
type kafkaBatch struct{ codec, base64 string }

var kafkaBatches = []kafkaBatch{
	{"none", "AAAAAAAAAAAAAAEB/////wL2LX2vAAAAAAACAAABi8/laAAAAAGLz+VoBf////////////8AAAAAAAAAA8gBAAAABHUxtgF7ImNvZGVjIjoibm9uZSIsICJwYWQiOiAieHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4" +
		"eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eCJ9AI4BAAoCAYABAP8A/wD/AP8A/wD/AP8A/wD/AP8A/wD/AP8A/wD/AP8A/wD/AP8A/wD/AP8A/wD/AP8A/wD/AP8A/wD/AP8A/wBAAAYEBHUyCHRleHQEClRyYWNlCDdmM2EKYnl0ZXMEAP8="},
	{"gzip", "AAAAAAAAAAAAAACc/////wJK0uz8AAEAAAACAAABi8/laAAAAAGLz+VoBf////////////8AAAAAAAAAAx+LCAAACW6IAP86wcjAwMBSariNsVopOT8lNVnJSim9KrNASUdBqSAxRclKQamCQqBUy9DHyMDF" +
		"xNjAyPCfQujAwMbCUmrEUZJaUcLCFVKUmJzKYZ5mnMiVVFmSWszC8B8wAHNOPE3QAAAA"},
	{"snappy", "AAAAAAAAAAAAAACQ/////wKiXrMRAAIAAAACAAABi8/laAAAAAGLz+VoBf////////////8AAAAAAAAAA9IBlMwBAAAABHUxugF7ImNvZGVjIjoic25hcHB5IiwgInBhZCI6ICJ4+gEAMCJ9AI4BAAoCAYABAP/6" +
		"AgCAQAAGBAR1Mgh0ZXh0BApUcmFjZQg3ZjNhCmJ5dGVzBAD/"},
	{"lz4", "AAAAAAAAAAAAAACh/////wLlaCyXAAMAAAACAAABi8/laAAAAAGLz+VoBf////////////8AAAAAAAAAAwQiTRhkcLldAAAA/xXGAQAAAAR1MbQBeyJjb2RlYyI6Imx6NCIsICJwYWQiOiAieHgCACvfIn0AjgEA" +
		"CgIBgAEA/wIALPASQAAGBAR1Mgh0ZXh0BApUcmFjZQg3ZjNhCmJ5dGVzBAD/AAAAAJcSyzA="},
	{"zstd", "AAAAAAAAAAAAAACa/////wJYjZ/8AAQAAAACAAABi8/laAAAAAGLz+VoBf////////////8AAAAAAAAAAyi1L/0EAOUCACQFyAEAAAAEdTG2AXsiY29kZWMiOiJ6c3RkIiwgInBhZCI6ICJ4In0AjgEACgIBgAEA" +
		"/0AABgQEdTIIdGV4dAQKVHJhY2UIN2YzYQpieXRlcwQA/wIUAifskzwBnGjA1A=="},
}

// bytes is the body.
func (b kafkaBatch) bytes() string {
	// A constant that is no base64 would fail every case that sends it.
	text, _ := base64.StdEncoding.DecodeString(b.base64)
	return string(text)
}

// damaged is the body with its last byte changed.
func (b kafkaBatch) damaged() string {
	text := b.bytes()
	return text[:len(text)-1] + string([]byte{text[len(text)-1] ^ 1})
}

// kafkaRecords are the records of a batch: a JSON value with a key, bytes without
// one, a text with headers; their times are 0, 5 and 3 ms after kafkaTime.
const kafkaTime = "1700000000000"

func (b kafkaBatch) json() string {
	return `{"codec":"` + b.codec + `", "pad": "` + strings.Repeat("x", 64) + `"}`
}

var (
	kafkaBytes   = strings.Repeat("\x00\xff", 32)
	kafkaBase64  = `"` + base64.StdEncoding.EncodeToString([]byte(kafkaBytes)) + `"`
	kafkaHeaders = `[{"name":"Trace","value":"7f3a"},{"name":"bytes","value":"AP8=","value_encoding":"base64"}]`
)

// shows expects the records of the batch in a list of the answer's body, the first
// with this offset.
func (b kafkaBatch) shows(q Request, list string, offsets ...string) Request {
	return q.is(200).
		field(list+".0.offset", offsets[0]).field(list+".0.payload", b.json()).field(list+".0.payload_encoding", absent).field(list+".0.key", `"u1"`).
		field(list+".0.timestamp_ms", kafkaTime).field(list+".0.headers", absent).
		field(list+".1.offset", offsets[1]).field(list+".1.payload", kafkaBase64).field(list+".1.payload_encoding", `"base64"`).field(list+".1.key", absent).
		field(list+".1.timestamp_ms", "1700000000005").
		field(list+".2.offset", offsets[2]).field(list+".2.payload", `"text"`).field(list+".2.key", `"u2"`).field(list+".2.timestamp_ms", "1700000000003").
		field(list+".2.headers", kafkaHeaders).field(list+".3", absent)
}

// kafkaCases: what a Kafka client encodes goes in as it is, in each compression,
// and comes out in every form in which records are read.
func kafkaCases() (all []Case) {
	const (
		kafka = "application/vnd.kafka.record-batch"
		log   = "/v1/topics/{t}/partitions/0/records"
	)
	for _, b := range kafkaBatches {
		body := b.bytes()
		send0 := func(body string, header ...string) Request {
			return send("POST", "/v1/topics/{t}/produce/batch?partition=0&ack=committed", body, append([]string{"Content-Type: " + kafka}, header...)...)
		}
		stored := get(log+"?from=1&to=4", "Accept: "+kafka).is(200).head("Content-Type: " + kafka)
		if b.codec == "none" {
			stored = stored.says(b.json(), kafkaBytes) // it may stand in one batch with its neighbours
		} else {
			stored = stored.says(body[17:]) // all behind base offset, length, leader epoch and magic
		}
		all = append(all, Case{
			Rule: "a batch of a Kafka client is read in every form: compression " + b.codec, Reports: []string{"B19"},
			Steps: steps(
				produce("before"),
				send0(b.damaged()).fails(400, "invalid_argument"),
				send0(body[:len(body)-1]).fails(400, "invalid_argument"),
				send0(body+"x").fails(400, "invalid_argument"),
				send0(body).is(200).field("partitions", `[{"partition":0,"first_offset":1,"last_offset":3,"count":3}]`),
				b.shows(get(log+"?from=1"), "records", "1", "2", "3"),
				get(log+"?from=2&to=3").is(200).field("records.0.payload", kafkaBase64).field("records.1", absent).field("resume_offset", "3"),
				get(log+"?from=1", "Accept: application/x-ndjson").is(200).says(`"payload":`+b.json(), `"payload":`+kafkaBase64, `"headers":`+kafkaHeaders, "\n"+`{"end":true,"resume_offset":4}`+"\n"),
				get(log+"?from=1&to=4", "Accept: text/event-stream").is(200).says("id: 1\ndata: {", `"payload":`+b.json(), "id: 3\ndata: {", `"headers":`+kafkaHeaders),
				get(log+"?from=1", "Accept: application/vnd.tidemark.frames").is(200).says("\x00\x00\x00\x40"+kafkaBytes, "\x00\x00\x00\x04text", b.json()),
				stored,
				get("/v1/topics/{t}/consume?partition=0&offset=2", "Accept: application/octet-stream").is(200).exactly(kafkaBytes).head("Tidemark-Timestamp-Ms: 1700000000005", "Tidemark-Key:"),
				get("/v1/topics/{t}/consume?partition=0&offset=3").is(200).field("payload", `"text"`).field("headers", kafkaHeaders),
				// By time: the create times of the client.
				get("/v1/topics/{t}/partitions/0/offset?at=1700000000004").is(200).field("offset", "0"), // the record before is of now
				get("/v1/topics/{t}/consume").is(200).field("payload", `"before"`),
				b.shows(get("/v1/topics/{t}/consume?max=10"), "messages", "1", "2", "3").field("messages.1.delivery_count", "1"),
				// Once more, in an encoding of the body around it.
				send0(zipped(body), "Content-Encoding: gzip").is(200).field("partitions.0.first_offset", "4"),
				get("/v1/topics/{t}/consume?max=10", "Accept: application/vnd.tidemark.frames").is(200).says(`"offset":4,`, `"headers":`+kafkaHeaders, "\x00\x00\x00\x40"+kafkaBytes),
			),
		})
	}
	return append(all, Case{
		Rule: "records of a Kafka client are found by the time that the client gave them",
		Steps: steps(
			send("POST", "/v1/topics/{t}/produce/batch?partition=0", kafkaBatches[4].bytes(), "Content-Type: "+kafka).is(202).exactly("{\"accepted\":3}\n"),
			get("/v1/topics/{t}/partitions/0/offset?at="+kafkaTime).is(200).field("offset", "0"),
			get("/v1/topics/{t}/partitions/0/offset?at=1700000000004").is(200).field("offset", "1"),
			get(log+"?at=1700000000006").is(200).field("records", "[]"),
			send("POST", "/v1/topics/{t}/produce/batch?partition=3", kafkaBatches[4].bytes(), "Content-Type: "+kafka).fails(400, "invalid_argument"),
			post("/v1/topics/{t}/produce?partition=1&ack=committed", kafkaBatches[4].bytes(), "Content-Type: "+kafka).is(200), // one record, whose value it is
			get("/v1/topics/{t}/consume?partition=1", "Accept: application/octet-stream").is(200).exactly(kafkaBatches[4].bytes()).head("Tidemark-Header-content-type: "+kafka),
		),
	})
}
