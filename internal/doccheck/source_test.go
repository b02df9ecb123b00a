package doccheck

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// root is the repository's top directory, seen from this package.
const root = "../.."

// read returns a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// filesOf returns the files of the repository that end in one of the given
// ways, as slash-separated paths from its top. What git, tools and running
// nodes keep there is left out.
func filesOf(t *testing.T, endings ...string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != root && (name == ".git" || name == ".cache" || name == "bin" || name == "node_modules" || strings.HasPrefix(name, "tidemark-")) {
				return filepath.SkipDir
			}
			return nil
		}
		for _, e := range endings {
			if strings.HasSuffix(name, e) {
				rel, err := filepath.Rel(root, path)
				if err != nil {
					return err
				}
				names = append(names, filepath.ToSlash(rel))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(names) == 0 {
		t.Fatalf("no file ends in %q", endings)
	}
	return names
}

// programs are the files that ship: Go, without tests.
func programs(t *testing.T) (names []string) {
	t.Helper()
	for _, name := range filesOf(t, ".go") {
		if !strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, "internal/testkit/") && !strings.HasPrefix(name, "bench/") {
			names = append(names, name)
		}
	}
	return names
}

func parse(t *testing.T, name string) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// verb is one of fmt's.
var verb = regexp.MustCompile(`%[#+\- 0]*[0-9]*(\.[0-9]+)?[a-zA-Z]`)

// pattern writes a format as the documents do: an ellipsis for every verb.
func pattern(format string) string { return verb.ReplaceAllString(format, "…") }

// constant returns the value of a string literal or of a sum of them.
func constant(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return "", false
		}
		s, err := strconv.Unquote(e.Value)
		return s, err == nil
	case *ast.BinaryExpr:
		if e.Op != token.ADD {
			return "", false
		}
		x, ok := constant(e.X)
		y, also := constant(e.Y)
		// A part that is no literal stands for anything.
		if !ok {
			x = "…"
		}
		if !also {
			y = "…"
		}
		return x + y, ok || also
	}
	return "", false
}

// texts returns the patterns of all string constants in the files.
func texts(t *testing.T, names []string) (all []string) {
	t.Helper()
	for _, name := range names {
		ast.Inspect(parse(t, name), func(n ast.Node) bool {
			e, ok := n.(ast.Expr)
			if !ok {
				return true
			}
			s, ok := constant(e)
			if !ok {
				return true
			}
			all = append(all, pattern(s))
			return false
		})
	}
	return all
}

// refusals returns the patterns of the errors that a file makes with
// errcode.New and one of the codes.
func refusals(t *testing.T, name string, codes ...string) (all []string) {
	t.Helper()
	ast.Inspect(parse(t, name), func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) < 2 || selector(call.Fun) != "errcode.New" {
			return true
		}
		for _, c := range codes {
			if selector(call.Args[0]) != "errcode."+c {
				continue
			}
			if s, ok := constant(call.Args[1]); ok {
				all = append(all, pattern(s))
			}
		}
		return true
	})
	return all
}

// selector writes a.b.c of an expression, "" for anything else.
func selector(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		if x := selector(e.X); x != "" {
			return x + "." + e.Sel.Name
		}
	}
	return ""
}

// codes returns what stands in backticks in a line.
func codes(line string) (out []string) {
	for i, part := range strings.Split(line, "`") {
		if i%2 == 1 {
			out = append(out, part)
		}
	}
	return out
}

// section returns the lines below the heading of level two, up to the next.
func section(t *testing.T, page, heading string) []string {
	t.Helper()
	_, rest, ok := strings.Cut(page, "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("there is no section %q", heading)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	return strings.Split(rest, "\n")
}

// entries returns the first cells of the tables in a section, headings and
// rules left out.
func entries(t *testing.T, page, heading string) (cells []string) {
	t.Helper()
	for _, line := range section(t, page, heading) {
		if strings.HasPrefix(line, "| `") {
			cells = append(cells, strings.Split(line, "|")[1])
		}
	}
	if len(cells) == 0 {
		t.Fatalf("section %q has no table", heading)
	}
	return cells
}
