package api

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// B255: who calls a path that is not one, or was one elsewhere, is told in the
// body where to go.
func TestB255NoRouteSaysWhichThereAre(t *testing.T) {
	s := start(t)
	for path, says := range map[string]string{
		"/topics":                "use /v1/topics",
		"/topics/orders/produce": "use /v1/topics/orders/produce",
		"/put":                   "POST /v1/topics/TOPIC/produce",
		"/v1/put":                "POST /v1/topics/TOPIC/produce",
		"/v2/topics":             "POST /v1/topics/TOPIC/produce",
		"/":                      "/healthz",
	} {
		a := s.want(s.post(path, "x"), 404, "not_found")
		if !strings.Contains(a.body, says) {
			t.Errorf("%s is answered %s, want %q in it", path, a.body, says)
		}
	}
	// However long a path is, the answer is short.
	if a := s.want(s.post("/"+strings.Repeat("x", 4000), "x"), 404, "not_found"); len(a.body) > 600 {
		t.Errorf("an answer of %d bytes", len(a.body))
	}
}

var documentedPath = regexp.MustCompile(`/v1/[A-Za-z0-9_/{}-]*`)

// B255: every path that README and docs name is a route, so no document keeps one
// that was renamed, and every route below /v1 is named in the HTTP API's document.
func TestB255DocumentedPathsAreRoutes(t *testing.T) {
	s := start(t)
	files, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, "../README.md", "../CHANGELOG.md")
	named := map[string]bool{} // templates
	fill := strings.NewReplacer("{topic}", "t", "{partition}", "0")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range documentedPath.FindAllString(string(text), -1) {
			if strings.HasSuffix(path, "/") {
				continue // the beginning of several
			}
			if s.s.allowed(fill.Replace(path)) == "" {
				t.Errorf("%s names %s, which is no route", file, path)
			}
			if strings.HasSuffix(file, "http-api.md") {
				named[strings.NewReplacer("{topic}", ":topic", "{partition}", ":partition").Replace(path)] = true
			}
		}
	}
	for _, r := range s.s.routes() {
		if strings.HasPrefix(r.template, "/v1/") && !named[r.template] {
			t.Errorf("docs/http-api.md does not name %s %s", r.method, r.template)
		}
	}
}
