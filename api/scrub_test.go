package api

import (
	"slices"
	"strings"
	"testing"
)

// The report of the scrubber is read without effect, also by HEAD; a round is
// started by a POST that programs alone can send, for a topic that exists or for
// everything, and is accepted, not done.
func TestScrubRoutes(t *testing.T) {
	s := start(t)
	s.f.topic("logs", 1)
	s.f.scrub = ScrubReport{IntervalMS: 7}
	if a := s.want(s.do("GET", "/v1/archive/scrub", ""), 200, ""); !strings.Contains(a.body, `"interval_ms":7`) {
		t.Errorf("answer %s", a.body)
	}
	s.want(s.do("HEAD", "/v1/archive/scrub", ""), 200, "")
	s.want(s.do("POST", "/v1/archive/scrub", "", "Content-Type: text/plain"), 415, "unsupported_type")
	s.want(s.post("/v1/archive/scrub", `{"topic":"logs"}`), 400, "invalid_argument")
	s.want(s.post("/v1/archive/scrub?topic=", ""), 400, "invalid_argument")
	s.want(s.post("/v1/archive/scrub?topics=logs", ""), 400, "invalid_argument")
	s.want(s.post("/v1/archive/scrub?topic=other", ""), 404, "not_found")
	s.want(s.do("DELETE", "/v1/archive/scrub", ""), 405, "method_not_allowed")
	if len(s.f.scrubbed) != 0 {
		t.Fatalf("%q were started by looking and by what is refused", s.f.scrubbed)
	}
	s.want(s.post("/v1/archive/scrub?topic=logs", ""), 202, "")
	s.want(s.post("/v1/archive/scrub", "{}"), 202, "")
	if !slices.Equal(s.f.scrubbed, []string{"logs", ""}) {
		t.Fatalf("started %q", s.f.scrubbed)
	}
}
