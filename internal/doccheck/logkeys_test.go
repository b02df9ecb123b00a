package doccheck

import (
	"go/ast"
	"maps"
	"slices"
	"strings"
	"testing"
)

const operations = "docs/operations.md"

// logKeys returns the keys that the node's programs log with, and where: the
// names of attributes (slog.String and the like), and every second argument of
// a call of a logger's Debug, Info, Warn, Error or With.
func logKeys(t *testing.T) map[string][]string {
	t.Helper()
	keys := map[string][]string{}
	for _, file := range programs(t) {
		if strings.HasPrefix(file, "internal/") && !strings.HasPrefix(file, "internal/steady/") {
			continue // no node runs them
		}
		if file == "raftmeta/logger.go" {
			continue // it passes on what the Raft library says under its own keys
		}
		ast.Inspect(parse(t, file), func(n ast.Node) bool {
			if list, ok := n.(*ast.CompositeLit); ok {
				if array, ok := list.Type.(*ast.ArrayType); ok && selector(array.Elt) == "any" && len(list.Elts)%2 == 0 {
					for i := 0; i < len(list.Elts); i += 2 { // for a call with args...
						if key, ok := constant(list.Elts[i]); ok {
							keys[key] = append(keys[key], file)
						}
					}
				}
				return true
			}
			call, ok := n.(*ast.CallExpr)
			if !ok || call.Ellipsis.IsValid() {
				return true
			}
			fun := selector(call.Fun)
			at := strings.LastIndexByte(fun, '.')
			if at < 0 {
				return true
			}
			receiver, method := fun[:at], fun[at+1:]
			var from int
			switch {
			case receiver == "slog" && slices.Contains([]string{"String", "Int", "Int64", "Uint64", "Float64", "Bool", "Time", "Duration", "Any", "Group"}, method):
				from = 0
			case !isLogger(receiver):
				return true
			case slices.Contains([]string{"Debug", "Info", "Warn", "Error"}, method):
				from = 1
			case method == "With":
				from = 0
			default:
				return true
			}
			for i := from; i < len(call.Args); i++ {
				key, ok := constant(call.Args[i])
				if !ok {
					if _, isAttr := call.Args[i].(*ast.CallExpr); isAttr {
						continue // an attribute, which is looked at by itself
					}
					t.Errorf("%s: argument %d of %s is no constant key", file, i+1, fun)
					break
				}
				keys[key] = append(keys[key], file)
				i++ // its value
				if receiver == "slog" {
					break
				}
			}
			return true
		})
	}
	return keys
}

// isLogger says by its name that something is a logger.
func isLogger(receiver string) bool {
	last := strings.ToLower(receiver[strings.LastIndexByte(receiver, '.')+1:])
	return last == "log" || last == "logger"
}

// The log's keys are a closed list, which the page for operators has: whoever
// searches logs for a partition or an error finds all of them under one name.
// Nothing is logged under another key, and none of the list is unused.
func TestLogKeysAreListed(t *testing.T) {
	var listed []string
	for _, cell := range entries(t, read(t, operations), "Logs") {
		listed = append(listed, codes(cell)...)
	}
	used := logKeys(t)
	for _, key := range slices.Sorted(maps.Keys(used)) {
		if !slices.Contains(listed, key) {
			t.Errorf("%s logs under the key %q, which %s does not list", used[key][0], key, operations)
		}
	}
	for _, key := range listed {
		if key != "time" && key != "level" && key != "msg" && used[key] == nil {
			t.Errorf("%s lists the key %q, which nothing logs", operations, key)
		}
	}
	if len(used) < 15 {
		t.Errorf("only %d keys were found: the search is broken", len(used))
	}
}
