package api

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

var updateErrors = flag.Bool("update-errors", false, "write docs/errors.md from the table of codes")

const errorsPage = "../docs/errors.md"

// docs/errors.md says of every code what errcode and statusOf say: a client
// that was written from the page meets nothing else.
func TestErrorsPageIsTheTable(t *testing.T) {
	want := errorsMarkdown(t)
	if *updateErrors {
		if err := os.WriteFile(errorsPage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(errorsPage)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) == want {
		return
	}
	is, should := strings.Split(string(got), "\n"), strings.Split(want, "\n")
	for i := range max(len(is), len(should)) {
		if i >= len(is) || i >= len(should) || is[i] != should[i] {
			t.Fatalf("%s differs from the code from line %d on; write it with `go test ./api -run TestErrorsPageIsTheTable -update-errors`", errorsPage, i+1)
		}
	}
}

// The table of statuses in docs/http-api.md, which people read first, names
// every code in a row of its status.
func TestHTTPPageHasEveryStatus(t *testing.T) {
	page, err := os.ReadFile("../docs/http-api.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{} // code -> first cell of its row
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) != 4 {
			continue
		}
		first, _, _ := strings.Cut(strings.TrimSpace(cells[1]), ",")
		if _, err := strconv.Atoi(first); err != nil {
			continue // a row of another table
		}
		for i, word := range strings.Split(cells[2], "`") {
			if i%2 == 1 {
				rows[word] = cells[1]
			}
		}
	}
	for _, c := range allCodes(t) {
		if status := strconv.Itoa(statusOf(c)); !strings.Contains(rows[c.String()], status) {
			t.Errorf("docs/http-api.md has %s in the row %q, the answer is %s", c, strings.TrimSpace(rows[c.String()]), status)
		}
	}
}

// allCodes returns every code, found by the name that an unknown one has.
func allCodes(t *testing.T) (codes []errcode.Code) {
	t.Helper()
	for c := errcode.Code(0); !strings.HasPrefix(c.String(), "code_"); c++ {
		codes = append(codes, c)
	}
	if len(codes) < 20 {
		t.Fatalf("only %d codes were found", len(codes))
	}
	return codes
}

// meanings returns the comment behind each constant of type Code, in order.
func meanings(t *testing.T) (texts []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../internal/errcode/errcode.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		group, ok := d.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		first, ok := group.Specs[0].(*ast.ValueSpec)
		if typ, isName := first.Type.(*ast.Ident); !ok || !isName || typ.Name != "Code" {
			continue
		}
		for _, s := range group.Specs {
			if c := s.(*ast.ValueSpec).Comment; c != nil {
				texts = append(texts, strings.TrimSpace(c.Text()))
			}
		}
	}
	return texts
}

const errorsHead = `# Error codes

Written by ` + "`go test ./api -run TestErrorsPageIsTheTable -update-errors`" + ` from ` + "`internal/errcode`" + ` and the status mapping of
` + "`api`" + `; a test fails when they differ.

Every refusal carries one of these codes: in the field ` + "`code`" + ` of an HTTP answer, in the log, and as the label
` + "`cause`, `code` or `result`" + ` of metrics. Codes are only ever added; one that is given keeps its number, name and meaning.
Programs decide by the code and by ` + "`retry`" + `, people read ` + "`error`" + `.

| retry | what to do |
|---|---|
| never | The request cannot succeed as it is: change it, or the thing that it names. |
| after | It was not applied. Send the same request again, after ` + "`Retry-After`" + ` seconds where that is given. |
| redirect | Another node has to be asked. |
| unknown | It may have been applied. Look before you repeat it, or repeat what does no harm twice. |

| code | number | HTTP status | retry | meaning |
|---|---|---|---|---|
`

func errorsMarkdown(t *testing.T) string {
	t.Helper()
	codes, texts := allCodes(t), meanings(t)
	if len(codes) != len(texts) {
		t.Fatalf("errcode has %d codes and %d comments on them: each needs one", len(codes), len(texts))
	}
	var b strings.Builder
	b.WriteString(errorsHead)
	for i, c := range codes {
		status := statusOf(c)
		fmt.Fprintf(&b, "| `%s` | %d | %d %s | %s | %s |\n", c, i, status, http.StatusText(status), c.Retry(), texts[i])
	}
	return b.String()
}
