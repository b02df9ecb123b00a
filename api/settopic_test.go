package api

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// patch sends a change of the topic orders.
func (s *site) patch(body string) answer {
	s.t.Helper()
	return s.do("PATCH", "/v1/topics/orders", body, "Content-Type: application/json")
}

// A change is answered with the topic as GET shows it, and the Go client says the
// same thing.
func TestPatchAnswersTheTopic(t *testing.T) {
	s := start(t)
	a := s.want(s.patch(`{"retention_ms":60000,"max_record_bytes":5,"default_ack":"committed"}`), 200, "")
	if got := s.want(s.do("GET", "/v1/topics/orders/", ""), 200, ""); got.body != a.body || !strings.Contains(a.body, `"retention_ms":60000`) || !strings.Contains(a.body, `"partition_stats"`) {
		t.Errorf("PATCH %s\nGET   %s", a.body, got.body)
	}
	s.want(s.post("/v1/topics/orders/produce", "123456"), 413, "too_large")
	s.want(s.post("/v1/topics/orders/produce", "12345"), 200, "")
	if b := s.want(s.patch(`{}`), 200, ""); !strings.Contains(b.body, `"retention_ms":60000`) {
		t.Errorf("nothing to change: %s", b.body)
	}
	s.want(s.do("PATCH", "/v1/topics/none", "{}", "Content-Type: application/json"), 404, "not_found")
	s.want(s.do("PATCH", "/v1/topics/orders", "{}"), 415, "unsupported_type")
	s.want(s.do("PATCH", "/v1/topics/orders?force", "{}", "Content-Type: application/json"), 400, "invalid_argument")

	c, keep := s.dial(), int64(0)
	info, err := c.SetTopic(context.Background(), "orders", broker.TopicSpec{RetentionMS: &keep})
	if err != nil || info.RetentionMS != 0 || info.MaxRecordBytes != 5 || len(info.PartitionStats) != 3 {
		t.Errorf("%+v %v", info, err)
	}
	if _, err := c.SetTopic(context.Background(), "orders", broker.TopicSpec{Name: "x"}); !errcode.Is(err, errcode.InvalidArgument) {
		t.Errorf("a new name: %v", err)
	}
}

// B228, B253: a change, or a new topic, with bad fields is refused whole, and one answer
// names every one of them with what is wrong, whatever kind of wrong it is.
func TestBadTopicFieldsAreAllNamed(t *testing.T) {
	s := start(t)
	const bad = `"retention_ms":-1,"retention_bytes":1.5,"visibility_timeout_ms":"30s","max_in_flight_per_partition":1000001,` +
		`"max_record_bytes":99999999999999999999,"default_ack":"soon","failover":7,"compression":"lz4","local_retention_ms":true,"schema":{},"colour":"red","retention_ms":5`
	names := []string{
		"retention_ms", "retention_bytes", "visibility_timeout_ms", "max_in_flight_per_partition", "max_record_bytes",
		"default_ack", "failover", "compression", "local_retention_ms", "schema", "colour",
	}
	check := func(a answer, names ...string) {
		t.Helper()
		s.want(a, 400, "invalid_argument")
		var got struct {
			Error  string            `json:"error"`
			Fields map[string]string `json:"fields"`
		}
		if err := json.Unmarshal([]byte(a.body), &got); err != nil || len(got.Fields) != len(names) {
			t.Fatalf("%v: %d fields in %s", err, len(got.Fields), a.body)
		}
		for _, name := range names {
			if got.Fields[name] == "" || !strings.Contains(got.Error, name+": ") {
				t.Errorf("%s is not named in %s", name, a.body)
			}
		}
	}
	check(s.patch(`{`+bad+`,"name":"","partitions":3,"local_retention_bytes":null}`), append(names, "name", "partitions", "local_retention_bytes")...)
	check(s.post("/v1/topics", `{`+bad+`,"name":"a/b","partitions":0,"local_retention_bytes":null}`), append(names, "name", "partitions")...)
	if a := s.patch(`{"partitions":4}`); !strings.Contains(a.body, "fixed for ever") {
		t.Errorf("why not: %s", a.body)
	}
	if a := s.patch(`{"name":"invoices"}`); !strings.Contains(a.body, "keeps its name") {
		t.Errorf("why not: %s", a.body)
	}
	for _, body := range []string{"", "[]", "{", `{"retention_ms":1}x`, `{"retention_ms":1}{}`, "{\"default_ack\":\"\xff\"}", `{"retention_ms":1,}`, `{"Retention_ms":1}`, `{"retention_ms":1e3}`} {
		s.want(s.patch(body), 400, "invalid_argument")
	}
	if s.f.sets != 0 {
		t.Errorf("%d changes reached the broker", s.f.sets)
	}
	// A body of nothing but bad fields gets an answer of bounded size.
	many := `{"a0":1` + strings.Repeat(`,"a":1`, 9000) + `}`
	if a := s.want(s.patch(many), 400, "invalid_argument"); len(a.body) > 16<<10 {
		t.Errorf("an answer of %d bytes", len(a.body))
	}
}
