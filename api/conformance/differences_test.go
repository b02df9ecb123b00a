package conformance

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tidemark-mq/tidemark/api"
)

const (
	module        = "../.."
	compatibility = module + "/docs/compatibility.md"
)

// small are bounds that a test can reach.
func small() api.Limits {
	l := api.DefaultLimits()
	l.HeaderBytes, l.Connections, l.Waiting = 8<<10, 200, 50
	l.KeyBytes, l.RecordHeaders, l.SmallBody = 1<<10, 5, 32<<10
	l.BatchBytes, l.BatchRecords, l.LargeBodyBytes = 4<<20, 50, 48<<20
	l.ConsumeRecords, l.ConsumeBytes, l.AckHandles = 20, 64<<10, 9
	l.PageRecords, l.PageBytes = 20, 32<<10
	return l
}

// allCases are those of a target that can show everything.
func allCases() (all []Case) {
	for _, f := range families(&Target{Limits: small()}) {
		all = append(all, f.cases...)
	}
	return all
}

var testNamed = regexp.MustCompile("^`(Test[A-Za-z0-9]+)` in `([a-z0-9/]+)`$")

// docs/compatibility.md and the suite name the same differences: each line is
// shown by a case, or by a test that exists, and no case shows one that is not
// written down.
func TestDifferencesAreWrittenDown(t *testing.T) {
	page, err := os.ReadFile(compatibility)
	if err != nil {
		t.Fatal(err)
	}
	list, err := parseDifferences(string(page))
	if err != nil || len(list) < 10 {
		t.Fatalf("%d differences, %v", len(list), err)
	}
	shown := map[string]bool{}
	for _, c := range allCases() {
		if c.Differs != "" {
			shown[c.Differs] = true
		}
	}
	for _, d := range list {
		m := testNamed.FindStringSubmatch(d.shownBy)
		switch {
		case d.shownBy == "suite" && !shown[d.id]:
			t.Errorf("no case shows %s", d.id)
		case d.shownBy != "suite" && shown[d.id]:
			t.Errorf("a case shows %s, the page says %s", d.id, d.shownBy)
		case d.shownBy != "suite" && (m == nil || !hasTest(t, m[2], m[1])):
			t.Errorf("%s is shown by %q, which is no test", d.id, d.shownBy)
		}
		delete(shown, d.id)
	}
	for id := range shown {
		t.Errorf("a case shows the difference %q, which %s does not have", id, compatibility)
	}
	if _, err := parseDifferences("| `a` | b | c | d | suite |\n| `a` | b | c | d | suite |\n"); err == nil {
		t.Error("an id that is there twice was taken")
	}
}

func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(module, dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "\nfunc "+name+"(") {
			return true
		}
	}
	return false
}

// Rules are told apart by their words, have steps, and name field reports by
// their ids.
func TestCasesAreWellFormed(t *testing.T) {
	id := regexp.MustCompile(`^B[0-9]{2,3}$`)
	for _, f := range families(&Target{Limits: small()}) {
		seen := map[string]bool{}
		for _, c := range f.cases {
			if c.Rule == "" || seen[c.Rule] || len(c.Steps) == 0 || strings.ContainsAny(c.Rule, "/{") {
				t.Errorf("%s: the rule %q is there twice, empty, or no words", f.name, c.Rule)
			}
			seen[c.Rule] = true
			for _, report := range c.Reports {
				if !id.MatchString(report) {
					t.Errorf("%s: %q is no field report", c.Rule, report)
				}
			}
		}
	}
}
