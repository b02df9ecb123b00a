package api

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Every cause that a refusal is counted under has a line in the page for
// operators, and every line there is such a cause; the same for the areas.
func TestEveryRefusalHasItsLine(t *testing.T) {
	page, err := os.ReadFile("../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(page), "\n## Refusals\n")
	if !ok {
		t.Fatal("the page has no section Refusals")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var rows []string
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, "|"); len(cells) == 4 && strings.HasPrefix(line, "| `") {
			rows = append(rows, strings.Trim(cells[1], " `"))
		}
	}
	want := []string{areaProduce, areaConsume, areaAck, areaRead, areaTopics, areaAdmin, areaConnection, areaOther}
	for _, c := range allCodes(t) {
		want = append(want, c.String())
	}
	for _, name := range want {
		if !slices.Contains(rows, name) {
			t.Errorf("%s is counted in tidemark_http_refusals_total and has no line", name)
		}
	}
	for _, name := range rows {
		if !slices.Contains(want, name) {
			t.Errorf("the line of %s is about nothing that is counted", name)
		}
	}
}

// Every route is in the area that its refusals are looked for, and those that
// nobody sorted are noticed.
func TestAreas(t *testing.T) {
	s := start(t)
	areas := map[string]int{}
	for _, rt := range s.s.routes() {
		areas[areaOf(rt.template)]++
	}
	want := map[string]int{areaProduce: 2, areaConsume: 2, areaAck: 1, areaRead: 2, areaTopics: 5, areaAdmin: 4, areaOther: 3}
	for area, n := range want {
		if areas[area] < n {
			t.Errorf("%d routes are %s, want at least %d", areas[area], area, n)
		}
	}
	s.want(s.post("/v1/topics/nobody/produce", "x"), 404, "not_found")
	s.want(s.post("/v1/topics/nobody/consume", ""), 404, "not_found")
	s.want(s.do("GET", "/nowhere", ""), 404, "not_found")
	_, r := s.raw("NONSENSE\r\n\r\n")
	s.want(s.readAnswer(r, "GET"), 400, "invalid_argument")
	for _, series := range []string{`area="produce",cause="not_found"`, `area="consume",cause="not_found"`, `area="other",cause="not_found"`, `area="connection",cause="invalid_argument"`} {
		if got := s.metric("tidemark_http_refusals_total{" + series + "}"); got != "1" {
			t.Errorf("%s is %q", series, got)
		}
	}
}
