package doccheck

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// link matches [text](target), also of images.
var link = regexp.MustCompile(`\]\(([^()\s]+)\)`)

// prose returns a page without its fenced blocks and code spans: examples
// there may look like links.
func prose(text string) string {
	var b strings.Builder
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			continue
		}
		if fenced || strings.HasPrefix(line, "    ") {
			continue
		}
		for i, part := range strings.Split(line, "`") {
			if i%2 == 0 {
				b.WriteString(part)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// anchors returns the names that the headings of a page can be linked by.
func anchors(text string) (names []string) {
	drop := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for line := range strings.Lines(text) {
		if heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			name := drop.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
			names = append(names, strings.ReplaceAll(name, " ", "-"))
		}
	}
	return names
}

// Every link between documents leads to a file, or a heading of one, that is
// in the repository.
func TestLinksLeadSomewhere(t *testing.T) {
	seen := 0
	for _, page := range filesOf(t, ".md") {
		for _, m := range link.FindAllStringSubmatch(prose(read(t, page)), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			seen++
			to := page
			if target != "" {
				to = path.Join(path.Dir(page), target)
			}
			info, err := os.Stat(filepath.Join(root, to))
			if err != nil {
				if !slices.Contains(owed, to) {
					t.Errorf("%s links to %s, which is not there", page, m[1])
				}
				continue
			}
			if anchor != "" && (info.IsDir() || !slices.Contains(anchors(read(t, to)), anchor)) {
				t.Errorf("%s links to %s, %s has no such heading", page, m[1], to)
			}
		}
	}
	if seen < 5 {
		t.Errorf("only %d links were found: the search is broken", seen)
	}
}

// owed are documents and commands that are named and not there yet. One that is
// there must leave the list, or its loss would not be seen.
var owed = []string{}

// named matches a document where code or text names it by its path.
var named = regexp.MustCompile(`\bdocs/[a-z0-9/-]+\.(md|yaml)\b`)

// Every document that code, build files or other documents name is there.
func TestNamedDocumentsExist(t *testing.T) {
	seen := map[string]string{} // document -> a file that names it
	for _, name := range filesOf(t, ".go", ".md", ".yml", "Makefile") {
		if strings.HasPrefix(name, "internal/doccheck/") {
			continue
		}
		for _, doc := range named.FindAllString(read(t, name), -1) {
			seen[doc] = name
		}
	}
	for doc, by := range seen {
		_, err := os.Stat(filepath.Join(root, doc))
		switch missing := slices.Contains(owed, doc); {
		case err != nil && !missing:
			t.Errorf("%s names %s, which is not there", by, doc)
		case err == nil && missing:
			t.Errorf("%s is there now: take it from the list of pages that are owed", doc)
		}
	}
	if len(seen) < 5 {
		t.Errorf("only %d documents are named: the search is broken", len(seen))
	}
}

// Decisions are numbered without holes, begin with their number, and have the
// four parts that readers look for.
func TestDecisionsHaveTheirForm(t *testing.T) {
	names, err := filepath.Glob(filepath.Join(root, "docs/adr", "*.md"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no decisions are there: %v", err)
	}
	slices.Sort(names)
	for i, name := range names {
		base := filepath.Base(name)
		text := read(t, "docs/adr/"+base)
		number, _, _ := strings.Cut(base, "-")
		if want := i + 1; number != pad(want) {
			t.Errorf("docs/adr/%s is number %d in order, its name says %s", base, want, number)
		}
		if !strings.HasPrefix(text, "# "+strings.TrimLeft(number, "0")+". ") {
			t.Errorf("docs/adr/%s does not begin with its number", base)
		}
		for _, part := range []string{"Context", "Decision", "Why", "Consequences"} {
			section(t, text, part)
		}
	}
}

func pad(n int) string { return fmt.Sprintf("%04d", n) }
