package doccheck

import (
	"go/ast"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// messageSections are the parts of the page whose tables begin with messages.
var messageSections = []string{"Configuration", "Startup", "Readiness", "Repair", "Restore"}

// Every message that the page explains is one that a program still writes: a
// reader who searches for what he sees must find it.
func TestExplainedMessagesExist(t *testing.T) {
	known := texts(t, programs(t))
	page := read(t, troubleshooting)
	for _, s := range messageSections {
		for _, cell := range entries(t, page, s) {
			for _, message := range codes(cell) {
				if !slices.ContainsFunc(known, func(k string) bool { return strings.Contains(k, message) }) {
					t.Errorf("%s explains %q in %q, which no program writes", troubleshooting, message, s)
				}
			}
		}
	}
}

// Whatever makes a start or a restore refuse has an entry: what is found that
// belongs to somebody else, is damaged, or was written by another build.
func TestEveryRefusalIsExplained(t *testing.T) {
	for _, c := range []struct {
		section string
		files   []string
		codes   []string
	}{
		{
			"Startup",
			[]string{"node/node.go", "node/storage.go", "node/datadir/identity.go", "node/ship/register.go", "node/state/state.go", "raftmeta/raft.go", "wal/recover.go"},
			[]string{"Conflict", "Corrupt", "Fenced", "UnsupportedVersion"},
		},
		{
			"Restore",
			[]string{"node/restore/restore.go", "node/restore/survey.go", "node/restore/replay.go"},
			[]string{"Conflict", "Corrupt", "Fenced", "UnsupportedVersion", "NotFound", "InvalidArgument"},
		},
	} {
		var explained []string
		for _, cell := range entries(t, read(t, troubleshooting), c.section) {
			explained = append(explained, codes(cell)...)
		}
		found := 0
		for _, file := range c.files {
			for _, message := range refusals(t, file, c.codes...) {
				found++
				if strings.Trim(message, "… :,") == "" || strings.HasPrefix(message, "it ") {
					continue // it passes on what another place says, or is a detail of the refusal around it
				}
				if !slices.ContainsFunc(explained, func(e string) bool { return strings.Contains(message, e) }) {
					t.Errorf("%s refuses with %q: %q of %s does not explain it", file, message, c.section, troubleshooting)
				}
			}
		}
		if found < len(c.files) {
			t.Errorf("only %d refusals were found in %d files: the search is broken", found, len(c.files))
		}
	}
}

// /readyz takes its reasons from the places below and from no other, and the
// page explains a message of each.
func TestEveryReadinessReasonIsExplained(t *testing.T) {
	reasons := map[string]string{
		"n.refusal":          "the node is shutting down",
		"n.log.Err":          "wal: fsync of … in … failed",
		"n.disk.accept":      "are kept in reserve",
		"n.db.Err":           "cannot be written, it waits for the disk",
		"n.meta.Err":         "the metadata log failed on disk",
		"n.refusedReason":    "is out of service",
		"n.sweeper.Paused":   "retention is paused: ",
		"n.shipper.Status":   "archive: ",
		"n.collector.Paused": "garbage: ",
		"n.scrubber.Trouble": "damaged copies of segments could not be repaired, the newest: ",
		"n.uploader.Trouble": "segments of … partitions wait, the last upload of one failed",
	}
	var explained []string
	for _, cell := range entries(t, read(t, troubleshooting), "Readiness") {
		explained = append(explained, codes(cell)...)
	}
	asked := map[string]bool{}
	for _, d := range parse(t, "node/readiness.go").Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == "Readiness" {
			ast.Inspect(f, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if name := selector(call.Fun); strings.Contains(name, ".") && name != "n.engine.All" && name != "err.Error" && name != "r.Degrade" && name != "n.fenced.Load" {
						asked[name] = true
					}
				}
				return true
			})
		}
	}
	for name := range asked {
		message, ok := reasons[name]
		if !ok {
			t.Errorf("Readiness asks %s: explain its reasons in %s, and add one to this test", name, troubleshooting)
			continue
		}
		if !slices.ContainsFunc(explained, func(e string) bool { return strings.Contains(e, message) }) {
			t.Errorf("%s does not explain %q, a reason of %s", troubleshooting, message, name)
		}
	}
	for name := range reasons {
		if !asked[name] {
			t.Errorf("Readiness does not ask %s any more: take its reasons out of %s and of this test", name, troubleshooting)
		}
	}
}

var (
	flagName = regexp.MustCompile("`[^`]*?--([a-z][a-z-]+)")
	pages    = []string{troubleshooting, "CHANGELOG.md", "docs/adr/"}
)

// Flags that the pages tell people to use exist.
func TestNamedFlagsExist(t *testing.T) {
	var defined []string
	for _, name := range filesOf(t, ".go") {
		if strings.HasPrefix(name, "cmd/tidemark/") && !strings.HasSuffix(name, "_test.go") {
			defined = append(defined, texts(t, []string{name})...)
		}
	}
	for _, page := range filesOf(t, ".md") {
		if !slices.ContainsFunc(pages, func(p string) bool { return strings.HasPrefix(page, p) }) {
			continue
		}
		for _, m := range flagName.FindAllStringSubmatch(read(t, page), -1) {
			if !slices.Contains(defined, m[1]) {
				t.Errorf("%s names the flag --%s, which no command has", page, m[1])
			}
		}
	}
}

var commandName = regexp.MustCompile("`tidemark ([a-z]+)")

// Commands that documents and messages tell people to run exist.
func TestNamedCommandsExist(t *testing.T) {
	defined := map[string]bool{"help": true, "completion": true} // cobra makes these
	for _, name := range programs(t) {
		if strings.HasPrefix(name, "cmd/tidemark/") {
			for _, use := range usesOf(parse(t, name)) {
				word, _, _ := strings.Cut(use, " ")
				defined[word] = true
			}
		}
	}
	check := func(where, text string) {
		for _, m := range commandName.FindAllStringSubmatch(text, -1) {
			if !defined[m[1]] && !slices.Contains(owed, "tidemark "+m[1]) {
				t.Errorf("%s names the command `tidemark %s`, which there is not", where, m[1])
			}
		}
	}
	for _, page := range filesOf(t, ".md") {
		check(page, read(t, page))
	}
	for _, name := range programs(t) {
		for _, text := range texts(t, []string{name}) {
			check(name, text)
		}
	}
	for _, o := range owed {
		if command, ok := strings.CutPrefix(o, "tidemark "); ok && defined[command] {
			t.Errorf("the command %q is there now: take it from the list of what is owed", o)
		}
	}
}

// usesOf returns the names that a file gives to commands: the field Use of a
// literal, or the first argument of family.
func usesOf(file *ast.File) (uses []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		var e ast.Expr
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if selector(n.Key) == "Use" {
				e = n.Value
			}
		case *ast.CallExpr:
			if selector(n.Fun) == "family" && len(n.Args) > 0 {
				e = n.Args[0]
			}
		}
		if e != nil {
			if s, ok := constant(e); ok {
				uses = append(uses, s)
			}
		}
		return true
	})
	return uses
}
