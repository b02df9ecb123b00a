package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// Proves that `config check` says of a configuration what serve would, all at
// once with exit code 2, that a good one is 0, and that it opens nothing.
func TestConfigCheck(t *testing.T) {
	dir := t.TempDir()
	password := writeFile(t, "password", "geheim")
	good := writeFile(t, "good.toml", "data_dir = \""+dir+"/data\"\nadmin_password_file = \""+password+"\"\nlog_level = \"warn\"\n")
	if out := (command{}).must(t, "config", "check", "--config", good); out != good+": ok\n" {
		t.Errorf("a good one: %q", out)
	}
	if out := (command{}).must(t, "config", "check", "--dev"); out != "flags and variables: ok\n" {
		t.Errorf("--dev: %q", out)
	}
	bad := writeFile(t, "bad.yaml", "data_dir: /d\nlog_levle: warn\nseal_age: soon\ntls_cert_file: /no/such\ntls_key_file: /no/such\n")
	r := command{env: []string{"TIDEMARK_NODEID=x"}}.run("config", "check", "--config", bad, "--http-addr", "nowhere")
	if r.code != exitUsage || r.out != "" || len(linesOf(r.err)) != 6 {
		t.Errorf("a bad one: %+v", r)
	}
	for _, says := range []string{
		bad + `:2: "log_levle": no such setting (log_level?)`, bad + `:3: seal_age: "soon"`, `TIDEMARK_NODEID: no such setting`,
		`--http-addr: "nowhere"`, "no admin password", "/no/such",
	} {
		if !strings.Contains(r.err, says) {
			t.Errorf("no word of %q in:\n%s", says, r.err)
		}
	}
	serve := command{env: []string{"TIDEMARK_NODEID=x"}}.run("serve", "--config", bad, "--http-addr", "nowhere")
	if serve != r {
		t.Errorf("serve says something else: %+v", serve)
	}
	if err := os.Chmod(password, 0o604); err != nil {
		t.Fatal(err)
	}
	if r := (command{}).run("config", "check", "--config", good); r.code != exitOK || !strings.Contains(r.err, "every user of this machine may read "+password) {
		t.Errorf("an open file: %+v", r)
	}
	if _, err := os.Stat(dir + "/data"); !os.IsNotExist(err) {
		t.Errorf("the data directory was made: %v", err)
	}
}

// Proves that `config print` shows every setting with its value and its source,
// and no secret in any form of output.
func TestConfigPrint(t *testing.T) {
	dir := t.TempDir()
	file := writeFile(t, "c.yaml", "# one\ndata_dir: "+dir+"\nlog_level: warn\nseal_age: 7m\n")
	c := command{env: []string{"TIDEMARK_ADMIN_PASSWORD=very-secret", "TIDEMARK_SEAL_AGE=8m", "TIDEMARK_CONFIG=" + file}}
	var all []effective
	text := c.must(t, "config", "print", "--json", "--node-id", "n-9")
	if err := json.Unmarshal([]byte(text), &all); err != nil || len(all) != len(settings)+1 {
		t.Fatalf("%d settings, %v", len(all), err)
	}
	got := map[string]effective{}
	for _, e := range all {
		got[e.Key] = e
	}
	for _, want := range []effective{
		{"data_dir", dir, file + ":2", false},
		{"log_level", "warn", file + ":3", true},
		{"seal_age", "8m", "TIDEMARK_SEAL_AGE", false},
		{"node_id", "n-9", "--node-id", false},
		{"segment_bytes", "64MiB", "default", false},
		{"archive", "", "", false},
		{"the admin password", "set, not shown", "TIDEMARK_ADMIN_PASSWORD", true},
	} {
		if got[want.Key] != want {
			t.Errorf("%+v, want %+v", got[want.Key], want)
		}
	}
	table := c.must(t, "config", "print")
	if !strings.Contains(table, "seal_age") || !strings.Contains(table, "TIDEMARK_SEAL_AGE") {
		t.Errorf("table: %s", table)
	}
	if strings.Contains(text+table, "very-secret") {
		t.Error("the password is shown")
	}
	if out := (command{}).must(t, "config", "print", "--dev"); !strings.Contains(out, "none: security is off") || !strings.Contains(out, "./tidemark-data") {
		t.Errorf("--dev: %s", out)
	}
}
