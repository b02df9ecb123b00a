package api

import (
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
