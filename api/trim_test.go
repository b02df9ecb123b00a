package api

import (
	"strings"
	"testing"
)

// The route of a trim: the answer names where the log begins, bounds are checked
// by the broker and told with both ends (B99), and a body that is not exactly a
// bound trims nothing.
func TestTrimRoute(t *testing.T) {
	s := start(t)
	s.f.topic("logs", 1)
	for range 10 {
		s.f.put("logs", "x")
	}
	path := "/v1/topics/logs/partitions/0/trim"
	for _, body := range []string{"", "{}", `{"before":"5"}`, `{"before":5.0}`, `{"before":5e0}`, `{"before":null}`, `{"before":[5]}`, `{"before":5,"before":6}`, `{"before":5}x`, `{"Before":5}`, `{"before":5,"why":1}`, `{"before":9223372036854775808}`, `[5]`} {
		s.want(s.do("POST", path, body, "Content-Type: application/json"), 400, "invalid_argument")
	}
	for _, body := range []string{`{"before":11}`, `{"before":-1}`, `{"before":9223372036854775807}`} {
		a := s.want(s.do("POST", path, body, "Content-Type: application/json"), 400, "invalid_argument")
		if !strings.Contains(a.body, `"high_watermark":10,"oldest_offset":0`) {
			t.Errorf("%s: bounds: %s", body, a.body)
		}
	}
	for _, c := range [][2]string{{`{"before":0}`, "0"}, {` { "before" : 4 } `, "4"}, {`{"before":2}`, "4"}, {`{"before":10}`, "10"}} {
		a := s.want(s.do("POST", path, c[0], "Content-Type: application/json"), 200, "")
		if a.body != `{"oldest_offset":`+c[1]+"}\n" {
			t.Errorf("%s: %s", c[0], a.body)
		}
	}
	s.want(s.do("POST", "/v1/topics/logs/partitions/1/trim", `{"before":0}`, "Content-Type: application/json"), 404, "not_found")
	s.want(s.do("POST", "/v1/topics/other/partitions/0/trim", `{"before":0}`, "Content-Type: application/json"), 404, "not_found")
	s.want(s.do("POST", path+"?force=true", `{"before":0}`, "Content-Type: application/json"), 400, "invalid_argument")
	s.want(s.do("GET", path, ""), 405, "method_not_allowed")
}
