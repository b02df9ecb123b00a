package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxConfigFile bounds what is read of a configuration file.
const maxConfigFile = 1 << 20

// configFile is a parsed file: one flat mapping of keys to scalars, with the
// line of each key.
type configFile struct {
	values layer
	lines  map[string]int
}

// readConfigFile reads YAML, or JSON when the name ends in .json. What it
// cannot use goes into wrong, with the line.
func readConfigFile(path string, wrong *configErrors) configFile {
	f := configFile{values: layer{}, lines: map[string]int{}}
	b, err := readBounded(path, maxConfigFile)
	if err != nil {
		wrong.add("configuration file: %w", err)
		return f
	}
	if strings.EqualFold(filepath.Ext(path), ".json") {
		if line, err := checkJSON(b); err != nil {
			wrong.add("%s:%d: %w", path, line, err)
			return f
		}
	}
	// JSON is read as YAML, for its lines.
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		wrong.add("%s: %w", path, err)
		return f
	}
	if len(doc.Content) == 0 {
		return f // empty, or comments alone
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		wrong.add("%s:%d: a configuration is a list of `key: value` lines", path, root.Line)
		return f
	}
	known := map[string]bool{}
	for i := range settings {
		known[settings[i].key()] = true
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		switch {
		case !known[key.Value]:
			wrong.add("%s:%d: %q: no such setting%s", path, key.Line, key.Value, resembling(key.Value, known))
		case f.lines[key.Value] > 0:
			wrong.add("%s:%d: %s stands in line %d too", path, key.Line, key.Value, f.lines[key.Value])
		case value.Kind != yaml.ScalarNode || value.Tag == "!!null":
			wrong.add("%s:%d: %s needs one value", path, key.Line, key.Value)
		default:
			f.lines[key.Value], f.values[key.Value] = key.Line, value.Value
		}
	}
	return f
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
