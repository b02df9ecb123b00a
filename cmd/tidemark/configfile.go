package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	toml "github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
	"go.yaml.in/yaml/v3"
)

// maxConfigFile bounds what is read of a configuration file.
const maxConfigFile = 1 << 20

// configFile is a parsed file: one flat mapping of keys to scalars, with the
// line of each key.
type configFile struct {
	path   string
	values layer
	lines  map[string]int
	known  map[string]bool
}

// readConfigFile reads JSON or TOML when the name ends so, and YAML otherwise.
// What it cannot use goes into wrong, with the line. It returns false when
// nothing of the file can be used.
func readConfigFile(path string, wrong *configErrors) (configFile, bool) {
	f := configFile{path: path, values: layer{}, lines: map[string]int{}, known: map[string]bool{}}
	for i := range settings {
		f.known[settings[i].key()] = true
	}
	b, err := readBounded(path, maxConfigFile)
	if err != nil {
		wrong.add("configuration file: %w", err)
		return f, false
	}
	switch strings.ToLower(filepath.Ext(path)) {
	case ".json":
		if line, err := checkJSON(b); err != nil {
			wrong.add("%s:%d: %w", path, line, err)
			return f, false
		}
	case ".toml":
		return f, f.readTOML(b, wrong)
	}
	// JSON is read as YAML, for its lines.
	return f, f.readYAML(b, wrong)
}

func (f *configFile) readYAML(b []byte, wrong *configErrors) bool {
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		wrong.add("%s: %w", f.path, err)
		return false
	}
	if len(doc.Content) == 0 {
		return true // empty, or comments alone
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		wrong.add("%s:%d: a configuration is a list of `key: value` lines", f.path, root.Line)
		return false
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		f.set(key.Value, key.Line, value.Value, value.Kind == yaml.ScalarNode && value.Tag != "!!null", wrong)
	}
	return true
}

func (f *configFile) readTOML(b []byte, wrong *configErrors) bool {
	// The decoder finds what is no TOML, the parser below it knows the lines.
	var whole map[string]any
	if err := toml.Unmarshal(b, &whole); err != nil {
		var at *toml.DecodeError
		if errors.As(err, &at) {
			line, _ := at.Position()
			err = fmt.Errorf("%d: %w", line, err)
		}
		wrong.add("%s:%w", f.path, err)
		return false
	}
	var p unstable.Parser
	p.Reset(b)
	for p.NextExpression() {
		e := p.Expression()
		var words []string
		line := 1
		for it := e.Key(); it.Next(); {
			if n := it.Node(); len(words) == 0 {
				line += bytes.Count(b[:n.Raw.Offset], []byte("\n"))
			}
			words = append(words, string(it.Node().Data))
		}
		key := strings.Join(words, ".")
		if e.Kind != unstable.KeyValue {
			wrong.add("%s:%d: [%s]: a configuration is one flat list of `key = value` lines, without tables", f.path, line, key)
			return false
		}
		value := e.Value()
		f.set(key, line, string(value.Data), value.Kind != unstable.Array && value.Kind != unstable.InlineTable, wrong)
	}
	return true
}

// set takes one key of a file.
func (f *configFile) set(key string, line int, text string, scalar bool, wrong *configErrors) {
	switch {
	case !f.known[key]:
		wrong.add("%s:%d: %q: no such setting%s", f.path, line, key, resembling(key, f.known))
	case f.lines[key] > 0:
		wrong.add("%s:%d: %s stands in line %d too", f.path, line, key, f.lines[key])
	case !scalar:
		wrong.add("%s:%d: %s needs one value", f.path, line, key)
	default:
		f.lines[key], f.values[key] = line, text
	}
}

// checkJSON returns the line of the first error of syntax.
func checkJSON(b []byte) (line int, err error) {
	var v map[string]any
	err = json.Unmarshal(b, &v)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return 1 + bytes.Count(b[:min(int(syntax.Offset), len(b))], []byte("\n")), err
	}
	return 1, err
}
