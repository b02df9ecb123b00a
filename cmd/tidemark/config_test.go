package main

import (
	"crypto/tls"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write the pages that are made of tables")

// configOf loads a configuration as serve does.
func configOf(t *testing.T, env []string, file string, args ...string) (config, error) {
	t.Helper()
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	addSettings(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	var wrong configErrors
	l, _ := loadConfig(&process{env: env}, flags, file, &wrong)
	if len(wrong.errs) > 0 {
		return l.config, &wrong
	}
	return l.config, nil
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Proves the order of the layers: flags go before variables, variables before
// the file, the file before the defaults.
func TestConfigLayers(t *testing.T) {
	file := writeFile(t, "c.yaml", "data_dir: /from/file\nnode_id: file\nsegment_bytes: 1MiB\nseal_age: 1m\nwal_interval: 2s\n")
	c, err := configOf(t,
		[]string{"TIDEMARK_NODE_ID=env", "TIDEMARK_SEGMENT_BYTES=2MiB", "TIDEMARK_SEAL_AGE=2m", "TIDEMARK_CACHE_BYTES=", "OTHER=x"}, file,
		"--segment-bytes", "3MiB", "--seal-age=3m")
	if err != nil {
		t.Fatal(err)
	}
	want := config{
		DataDir: "/from/file", NodeID: "env", SegmentBytes: 3 << 20, SealAge: 3 * time.Minute, WALInterval: 2 * time.Second,
		HTTPAddr: "0.0.0.0:7942", RaftAddr: "127.0.0.1:0", SealMinBytes: 1 << 20, FlushBytes: 512 << 10, WALMaxBytes: 2 << 30,
		StateInterval: 10 * time.Minute, CacheBytes: 1 << 30, ShutdownGrace: 10 * time.Second, LogFormat: "json", LogLevel: slog.LevelInfo, TLSMinVersion: tls.VersionTLS12,
		MergeInterval: 5 * time.Minute, MergeMinSegments: 8, RetentionInterval: 10 * time.Second,
		GarbageGrace: time.Hour, GarbageInterval: 5 * time.Minute, PITRWindow: time.Hour, OrphanInterval: 24 * time.Hour, ScrubInterval: 14 * 24 * time.Hour,
	}
	if c != want {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// Proves that every setting can be given by flag, by variable, and by key in
// YAML, in JSON and in TOML, to the same effect.
func TestEverySettingFromEverySource(t *testing.T) {
	samples := map[string]string{
		"dev": "true", "data-dir": "/d", "archive": "file:///a", "node-id": "n-9", "http-addr": "127.0.0.1:1", "raft-addr": "127.0.0.1:2",
		"metrics-addr": "127.0.0.1:3", "pprof-addr": "127.0.0.1:4", "admin-password-file": "/p", "tls-cert-file": "/c", "tls-key-file": "/k", "tls-min-version": "1.3", "segment-bytes": "1.5MiB", "seal-age": "7s",
		"seal-min-bytes": "9", "flush-bytes": "1MB", "wal-interval": "3s", "wal-max-bytes": "5GiB", "state-interval": "5m", "memory-budget": "64MiB",
		"cache-bytes": "3GiB", "disk-reserve": "2GiB", "retention-interval": "20s", "merge-interval": "2m", "merge-min-segments": "12",
		"shutdown-grace": "1s", "garbage-grace": "2h", "garbage-interval": "1m", "pitr-window": "6h", "orphan-interval": "12h", "scrub-interval": "168h", "log-format": "text", "log-level": "warn",
	}
	for _, s := range settings {
		sample, ok := samples[s.name]
		if !ok {
			t.Errorf("no sample for %s", s.name)
			continue
		}
		base := []string{"--data-dir", "/base"}
		plain, err := configOf(t, nil, "", base...)
		if err != nil {
			t.Fatal(err)
		}
		switch s.name {
		case "data-dir":
			base = nil
		case "tls-cert-file":
			base = append(base, "--tls-key-file=/other")
		case "tls-key-file":
			base = append(base, "--tls-cert-file=/other")
		}
		byFlag, err := configOf(t, nil, "", append(base, "--"+s.name+"="+sample)...)
		if err != nil || byFlag == plain {
			t.Errorf("--%s=%s: %v, or without effect", s.name, sample, err)
		}
		byVariable, err := configOf(t, []string{s.variable() + "=" + sample}, "", base...)
		if err != nil || byVariable != byFlag {
			t.Errorf("%s=%s: %v\n%+v\n%+v", s.variable(), sample, err, byVariable, byFlag)
		}
		byYAML, err := configOf(t, nil, writeFile(t, "c.yaml", "# a comment\n"+s.key()+": "+sample+"\n"), base...)
		if err != nil || byYAML != byFlag {
			t.Errorf("%s: %s: %v", s.key(), sample, err)
		}
		byJSON, err := configOf(t, nil, writeFile(t, "c.json", "{\n\t\""+s.key()+"\": \""+sample+"\"\n}"), base...)
		if err != nil || byJSON != byFlag {
			t.Errorf("JSON %s: %s: %v", s.key(), sample, err)
		}
		byTOML, err := configOf(t, nil, writeFile(t, "c.toml", "# a comment\n"+s.key()+" = \""+sample+"\"\n"), base...)
		if err != nil || byTOML != byFlag {
			t.Errorf("TOML %s: %s: %v", s.key(), sample, err)
		}
	}
}

// Proves that all errors of all sources are reported at once, each with where
// it stands.
func TestConfigErrors(t *testing.T) {
	file := writeFile(t, "c.yaml", "segment_bytes: 12 parsecs\nsegmentbytes: 1\n\nseal_age: 5\nseal_age: 6s\nnode_id: [a]\nlog_level:\ndisk_reserve: -1\n")
	_, err := configOf(t, []string{"TIDEMARK_WAL_INTERVALS=1s", "TIDEMARK_HTTP_ADDR=nowhere", "TIDEMARK_LOG_FORMAT=xml"}, file,
		"--metrics-addr", "1.2.3.4:99999", "--archive", "ftp://x")
	if err == nil {
		t.Fatal("it was taken")
	}
	for _, says := range []string{
		file + `:1: segment_bytes: "12 parsecs" is not a size`,
		file + `:2: "segmentbytes": no such setting (segment_bytes?)`,
		file + `:4: seal_age: "5" is not a length of time`,
		file + `:5: seal_age stands in line 4 too`,
		file + `:6: node_id needs one value`,
		file + `:7: log_level needs one value`,
		file + `:8: disk_reserve: "-1" is not a size`,
		`TIDEMARK_WAL_INTERVALS: no such setting`, `(TIDEMARK_WAL_INTERVAL?)`,
		`TIDEMARK_HTTP_ADDR: "nowhere" is not host:port`,
		`TIDEMARK_LOG_FORMAT: "xml" is not one of json, text`,
		`--metrics-addr: "1.2.3.4:99999" has no port between 0 and 65535`,
		`--archive: archive URL: the scheme "ftp" is unknown`,
	} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("no word of %q in:\n%v", says, err)
		}
	}
	r := command{env: []string{"TIDEMARK_X=1"}}.run("serve", "--config", file)
	if r.code != exitUsage || len(linesOf(r.err)) < 7 || r.out != "" {
		t.Errorf("exit %d, stdout %q, stderr:\n%s", r.code, r.out, r.err)
	}
	for _, line := range linesOf(r.err) {
		if !strings.HasPrefix(line, "tidemark: ") {
			t.Errorf("a line of stderr is %q", line)
		}
	}
}

// Proves that files which are no configuration are refused with the line.
func TestConfigFilesThatAreNone(t *testing.T) {
	for _, c := range []struct{ name, text, says string }{
		{"a.yaml", "- a\n- b\n", "a.yaml:1: a configuration is"},
		{"a.yaml", "node_id: [\n", "a.yaml: yaml: line"},
		{"a.yaml", "just text\n", "a.yaml:1: a configuration is"},
		{"a.yaml", "x: &a 1\nnode_id: *a\n", "a.yaml:2: node_id needs one value"},
		{"a.json", "{\n\"node_id\": \"x\",\n}", "a.json:3: invalid character"},
		{"a.json", "[1]", "a.json:1: json: cannot unmarshal array"},
		{"a.json", "node_id: x", "a.json:1: invalid character"},
		{"a.toml", "node_id = \"x\"\nseal_age = 5m\n", "a.toml:2: toml:"},
		{"a.toml", "# c\n\n[node]\nid = 1\n", "a.toml:3: [node]: a configuration is one flat list"},
		{"a.toml", "node_id = \"x\"\n\nnode.id = \"x\"\n", `a.toml:3: "node.id": no such setting`},
		{"a.toml", "node_id = [\"x\"]\n", "a.toml:1: node_id needs one value"},
		{"a.toml", "node_id = \"x\"\nnode_id = \"y\"\n", "a.toml:"},
		{"a.toml", "node_id = \"x\"\nmerge_min_segments = 1_0\n", `a.toml:2: merge_min_segments: "1_0" is not a number`},
		{"a.yaml", strings.Repeat("#", maxConfigFile+1), "is larger than 1 MiB"},
	} {
		path := writeFile(t, c.name, c.text)
		if _, err := configOf(t, nil, path, "--data-dir", "/d"); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%.40q: %v; want %s", c.text, err, c.says)
		}
	}
	if _, err := configOf(t, nil, "/no/such/file", "--data-dir", "/d"); err == nil || !strings.Contains(err.Error(), "/no/such/file") {
		t.Errorf("a missing file: %v", err)
	}
	if _, err := configOf(t, nil, writeFile(t, "empty.yaml", "# nothing\n"), "--data-dir", "/d"); err != nil {
		t.Errorf("an empty file: %v", err)
	}
}

// Proves what --dev changes, from whatever source it comes, and that anything
// given goes before it.
func TestDevDefaults(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for source, c := range map[string]func() (config, error){
		"flag":     func() (config, error) { return configOf(t, nil, "", "--dev") },
		"variable": func() (config, error) { return configOf(t, []string{"TIDEMARK_DEV=1"}, "") },
		"file":     func() (config, error) { return configOf(t, nil, writeFile(t, "c.yaml", "dev: true\n")) },
	} {
		got, err := c()
		if err != nil {
			t.Fatalf("%s: %v", source, err)
		}
		if !got.Dev || got.HTTPAddr != "127.0.0.1:7942" || got.DataDir != dir+"/tidemark-data" || got.Archive != "file://"+dir+"/tidemark-archive" || got.LogFormat != "text" {
			t.Errorf("%s: %+v", source, got)
		}
	}
	got, err := configOf(t, []string{"TIDEMARK_HTTP_ADDR=127.0.0.1:0"}, "", "--dev", "--archive", "none", "--data-dir", "x")
	if err != nil || got.HTTPAddr != "127.0.0.1:0" || got.Archive != "" || got.DataDir != dir+"/x" {
		t.Errorf("%+v %v", got, err)
	}
	if _, err := configOf(t, nil, "", "--archive", "file:///a"); err == nil || !strings.Contains(err.Error(), "--data-dir") {
		t.Errorf("without data directory: %v", err)
	}
	for _, archive := range []string{"file:///d/archive", "file:///d", "file:///"} {
		if _, err := configOf(t, nil, "", "--data-dir", "/d", "--archive", archive); err == nil {
			t.Errorf("archive %s of /d was taken", archive)
		}
	}
}

// Proves that variables which Kubernetes makes of services, and those of other
// commands, do not stop the start, while a misspelled one does.
func TestForeignVariables(t *testing.T) {
	env := []string{
		"TIDEMARK_SERVICE_HOST=10.0.0.1", "TIDEMARK_SERVICE_PORT=7942", "TIDEMARK_SERVICE_PORT_HTTP=7942", "TIDEMARK_PORT=tcp://10.0.0.1:7942",
		"TIDEMARK_PORT_7942_TCP=tcp://10.0.0.1:7942", "TIDEMARK_PORT_7942_TCP_PROTO=tcp", "TIDEMARK_PORT_7942_TCP_PORT=7942", "TIDEMARK_PORT_7942_TCP_ADDR=10.0.0.1",
		"TIDEMARK_HEADLESS_SERVICE_HOST=None", "TIDEMARK_HEADLESS_PORT=tcp://x",
		"TIDEMARK_SERVER=http://x", "TIDEMARK_USER=u", "TIDEMARK_PASSWORD=p", "TIDEMARK_PASSWORD_FILE=f", "TIDEMARK_TOOLS=/t",
	}
	if _, err := configOf(t, env, "", "--data-dir", "/d"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"TIDEMARK_DATADIR", "TIDEMARK_data_dir", "TIDEMARK_", "TIDEMARK_HTTP_PORTS"} {
		if _, err := configOf(t, []string{name + "=1"}, "", "--data-dir", "/d"); err == nil || !strings.Contains(err.Error(), name+": no such setting") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Proves which texts are sizes, and that no number overflows.
func TestParseBytes(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1": 1, "1B": 1, "64KiB": 64 << 10, "64 MiB": 64 << 20, "1.5GiB": 3 << 29, "2TiB": 2 << 40, "1kB": 1000, "1KB": 1000, "5MB": 5e6, "0.5GB": 5e8,
		"9223372036854775807": 1<<63 - 1,
	} {
		if got, err := parseBytes(text); err != nil || got != want {
			t.Errorf("%s: %d %v", text, got, err)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "-1MiB", "+1", "1e3", "1e3MiB", "0x10", "1_000", "1.5", "1.5B", "1XiB", "NaN", "NaNMiB", "InfMiB", "9223372036854775808", "9000000000GiB", "99999999999999999999.5TiB", "1 2"} {
		if got, err := parseBytes(text); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1 << 20: "1 MiB", 1<<20 - 1: "1 MiB", 3 << 29: "1.5 GiB", 1<<63 - 1: "8 EiB"} {
		if got := formatBytes(n); got != want {
			t.Errorf("%d is shown as %s, want %s", n, got, want)
		}
	}
}

// Proves that docs/configuration.md is what `config docs` prints.
// `go test ./cmd/tidemark -run Page -update` writes it.
func TestConfigurationPage(t *testing.T) {
	const path = "../../docs/configuration.md"
	want := (command{}).must(t, "config", "docs")
	if strings.Contains(want, "{{") || !strings.Contains(want, "| `--log-level` `log_level` `TIDEMARK_LOG_LEVEL` | level | info | SIGHUP |") {
		t.Errorf("the page has no table: %.300s", want)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(b) == want {
		return
	}
	if !*update {
		t.Fatalf("%s differs from configpage.txt with the table in settings.go; run go test ./cmd/tidemark -run Page -update", path)
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Proves that every field of config has a setting: one that nothing can set
// would silently be zero.
func TestEveryFieldHasASetting(t *testing.T) {
	if fields := reflect.TypeFor[config]().NumField(); fields != len(settings) {
		t.Errorf("%d fields, %d settings", fields, len(settings))
	}
}
