package api

import (
	"encoding/json"
	"strings"
	"testing"
)

// The report of garbage is read without effect, also by HEAD; a turn is a POST
// that programs alone can send, without a body, and it answers the same report.
func TestGarbageRoutes(t *testing.T) {
	s := start(t)
	s.f.garbage = GarbageReport{Paused: "no leader", GraceMS: 5}
	says := func(a answer, text string) {
		t.Helper()
		if a = s.want(a, 200, ""); !strings.Contains(a.body, text) {
			t.Errorf("%q is not in %s", text, a.body)
		}
	}
	says(s.do("GET", "/v1/archive/garbage", ""), `"paused":"no leader"`)
	s.want(s.do("HEAD", "/v1/archive/garbage", ""), 200, "")
	s.want(s.do("POST", "/v1/archive/garbage", "", "Content-Type: text/plain"), 415, "unsupported_type")
	s.want(s.post("/v1/archive/garbage", `{"all":true}`), 400, "invalid_argument")
	s.want(s.do("DELETE", "/v1/archive/garbage", ""), 405, "method_not_allowed")
	if s.f.turns != 0 {
		t.Fatalf("%d turns were taken by looking and by what is refused", s.f.turns)
	}
	says(s.post("/v1/archive/garbage", ""), `"grace_ms":5`)
	says(s.post("/v1/archive/garbage", "{}"), `"grace_ms":5`)
	if s.f.turns != 2 {
		t.Fatalf("%d turns, want 2", s.f.turns)
	}
}

// The archive's status comes with a page of topics or one of them, is read without
// effect, and its pages join.
func TestArchiveStatusRoute(t *testing.T) {
	s := start(t)
	s.f.topic("a", 1).topic("z", 1)
	s.f.archive = ArchiveStatus{RPOSeconds: 0.5}
	ask := func(query string) (st ArchiveStatus, names string) {
		t.Helper()
		a := s.want(s.do("GET", "/v1/archive"+query, ""), 200, "")
		if err := json.Unmarshal([]byte(a.body), &st); err != nil || st.RPOSeconds != 0.5 {
			t.Fatalf("%v: %s", err, a.body)
		}
		for _, topic := range st.Topics {
			names += " " + topic.Topic
		}
		return st, names
	}
	if st, names := ask(""); names != " a orders z" || st.NextPageToken != "" || s.f.asked.Limit != 100 {
		t.Errorf("all: %s, %+v, asked %+v", names, st, s.f.asked)
	}
	st, names := ask("?limit=2")
	if names != " a orders" || st.NextPageToken == "" {
		t.Fatalf("the first page: %s, %+v", names, st)
	}
	if st, names := ask("?limit=2&page_token=" + st.NextPageToken); names != " z" || st.NextPageToken != "" {
		t.Errorf("the second page: %s, %+v", names, st)
	}
	if _, names := ask("?topic=orders"); names != " orders" {
		t.Errorf("one topic: %s", names)
	}
	s.want(s.do("HEAD", "/v1/archive", ""), 200, "")
	s.want(s.do("GET", "/v1/archive?topic=none", ""), 404, "not_found")
	for _, query := range []string{"limit=0", "limit=1001", "page_token=..", "topic=", "topic=a/b", "topic=a&limit=1", "topic=a&page_token=YQ", "partition=0"} {
		s.want(s.do("GET", "/v1/archive?"+query, ""), 400, "invalid_argument")
	}
	s.want(s.post("/v1/archive", ""), 405, "method_not_allowed")
	for limit := range map[string]bool{"1": true, "1000": true} {
		ask("?limit=" + limit)
	}
}
