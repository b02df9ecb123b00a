package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// asked is a server that remembers who asked it.
func asked(t *testing.T) (url string, last func() string) {
	t.Helper()
	var mu sync.Mutex
	who := ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		user, password, _ := r.BasicAuth()
		who = user + ":" + password
		_, _ = w.Write([]byte(`{"topics":[]}`))
	}))
	t.Cleanup(s.Close)
	return s.URL, func() string {
		mu.Lock()
		defer mu.Unlock()
		defer func() { who = "nobody" }()
		return who
	}
}

// Proves the life of contexts: added, listed without their secrets, used,
// replaced and removed, in a file that only its owner may read.
func TestContexts(t *testing.T) {
	home := t.TempDir()
	c := command{env: []string{"HOME=" + home}, stdin: "very secret\nnot this\n"}
	path := home + "/.config/tidemark/contexts.json"
	if out := c.must(t, "ctx", "ls", "--json"); out != "[]\n" {
		t.Errorf("none: %q", out)
	}
	if out := c.must(t, "ctx", "add", "local", "--server", "http://127.0.0.1:7942"); out != "added context local, which is the current one\n" {
		t.Errorf("the first: %q", out)
	}
	if out := c.must(t, "ctx", "add", "prod", "--server", "https://mq:7942", "--user", "u", "--password-file", "-", "--ca-file", "/ca.pem"); out != "added context prod\n" {
		t.Errorf("the second: %q", out)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v %v", info.Mode(), err)
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("its directory: %v %v", info.Mode(), err)
	}
	c.must(t, "ctx", "use", "prod")
	var list []listedContext
	text := c.must(t, "ctx", "ls", "--json")
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list) != 2 ||
		list[0] != (listedContext{Name: "local", Server: "http://127.0.0.1:7942"}) ||
		list[1] != (listedContext{"prod", true, "https://mq:7942", "u", "kept with the context", "/ca.pem"}) {
		t.Errorf("%+v %v", list, err)
	}
	if table := c.must(t, "ctx", "ls"); strings.Contains(text+table, "very secret") || !strings.Contains(table, "*") {
		t.Errorf("table: %s", table)
	}
	if b, err := os.ReadFile(path); err != nil || !strings.Contains(string(b), `"password": "very secret"`) {
		t.Errorf("the password is not kept: %s %v", b, err)
	}
	wrong{args: "ctx add prod --server http://x", code: exitFailed, says: []string{`"prod"`, "--replace"}}.check(t, c)
	c.must(t, "ctx", "add", "prod", "--server", "http://other", "--replace")
	if b, err := os.ReadFile(path); err != nil || strings.Contains(string(b), "secret") {
		t.Errorf("the old password is still there: %s %v", b, err)
	}
	if out := c.must(t, "ctx", "rm", "prod"); !strings.Contains(out, "no current one") {
		t.Errorf("rm: %s", out)
	}
	for _, w := range []wrong{
		{args: "ctx add", says: []string{"NAME is missing"}},
		{args: "ctx add x", says: []string{"--server is missing"}},
		{args: "ctx add x --server nowhere", says: []string{`"nowhere"`}},
		{args: "ctx add a/b --server http://x", says: []string{`"a/b"`}},
		{args: "ctx use prod", says: []string{`"prod"`, "ctx ls"}},
		{args: "ctx rm prod", says: []string{`"prod"`}},
		{args: "topic ls --context prod", says: []string{`"prod"`}},
		{args: "topic ls --context local --server http://x", says: []string{"--context", "--server"}},
		{args: "topic ls", env: []string{"TIDEMARK_CONTEXT=local", "TIDEMARK_SERVER=http://x"}, says: []string{"TIDEMARK_CONTEXT", "TIDEMARK_SERVER"}},
		{args: "topic ls", env: []string{"TIDEMARK_CONTEXT=nope"}, says: []string{`"nope"`}},
	} {
		w.code = exitUsage
		w.check(t, c)
	}
	wrong{args: "ctx add x --server http://x", code: exitUsage, says: []string{"XDG_CONFIG_HOME", "HOME"}}.check(t, command{})
	xdg := t.TempDir()
	(command{env: []string{"HOME=/no/such", "XDG_CONFIG_HOME=" + xdg}}).must(t, "ctx", "add", "x", "--server", "http://x")
	if _, err := os.Stat(xdg + "/tidemark/contexts.json"); err != nil {
		t.Error(err)
	}
}

// Proves which word goes before which: flags, variables, the context; and that
// what a context knows never goes to another server, nor its password with
// another user.
func TestTargetPrecedence(t *testing.T) {
	home := t.TempDir()
	one, askedOne := asked(t)
	two, askedTwo := asked(t)
	env := []string{"HOME=" + home}
	(command{env: env, stdin: "p1\n"}).must(t, "ctx", "add", "one", "--server", one, "--user", "u1", "--password-file", "-")
	(command{env: env}).must(t, "ctx", "add", "two", "--server", two, "--user", "u2", "--password-file", writeFile(t, "p", "p2"))
	flag := writeFile(t, "flag", "pf")
	for _, c := range []struct {
		args string
		env  []string
		one  string
		two  string
	}{
		{args: "", one: "u1:p1"},
		{args: "--context two", two: "u2:p2"},
		{env: []string{"TIDEMARK_CONTEXT=two"}, two: "u2:p2"},
		{args: "--context two", env: []string{"TIDEMARK_CONTEXT=one"}, two: "u2:p2"},
		{args: "--context two", env: []string{"TIDEMARK_SERVER=" + one}, two: "u2:p2"},
		{args: "--server " + two, two: ":"},
		{env: []string{"TIDEMARK_SERVER=" + two}, two: ":"},
		{args: "--server " + two, env: []string{"TIDEMARK_CONTEXT=one"}, two: ":"},
		{args: "--server " + one, env: []string{"TIDEMARK_SERVER=" + two}, one: ":"},
		{args: "--password-file " + flag, one: "u1:pf"},
		{env: []string{"TIDEMARK_PASSWORD=pe"}, one: "u1:pe"},
		{args: "--password-file " + flag, env: []string{"TIDEMARK_PASSWORD=pe"}, one: "u1:pf"},
		{args: "--user u1", one: "u1:p1"},
		{args: "--user other", one: "other:"},
		{env: []string{"TIDEMARK_USER=other"}, one: "other:"},
		{args: "--user u3", env: []string{"TIDEMARK_USER=other", "TIDEMARK_PASSWORD=pe"}, one: "u3:pe"},
		{args: "--password-file -", one: "u1:typed"},
		{args: "--server " + two, env: []string{"TIDEMARK_PASSWORD=pe"}, two: "admin:pe"},
	} {
		askedOne()
		askedTwo()
		(command{env: append(append([]string{}, env...), c.env...), stdin: "typed\n"}).must(t, append([]string{"topic", "ls"}, strings.Fields(c.args)...)...)
		for i, got := range []string{askedOne(), askedTwo()} {
			if want := []string{c.one, c.two}[i]; got != want && (want != "" || got != "nobody") {
				t.Errorf("%q with %q: server %d is asked by %q, want %q", c.args, c.env, i+1, got, want)
			}
		}
	}
}

// Proves that the password on stdin takes its line and nothing of what follows,
// and that what is no password is said so.
func TestPasswordOnStdin(t *testing.T) {
	got := ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		body := make([]byte, 100)
		n, _ := r.Body.Read(body)
		got = password + "|" + string(body[:n])
		_, _ = w.Write([]byte(`{"partition":0,"offset":0}`))
	}))
	defer s.Close()
	c := command{env: []string{"TIDEMARK_SERVER=" + s.URL}, stdin: "geheim\r\nthe record\nof two lines"}
	if c.must(t, "produce", "t", "--password-file", "-"); got != "geheim|the record\nof two lines" {
		t.Errorf("%q", got)
	}
	for stdin, says := range map[string]string{"": "is empty", "\nx": "is empty", strings.Repeat("x", maxPasswordFile+1): "is longer than"} {
		wrong{args: "topic ls --password-file -", stdin: stdin, code: exitUsage, says: []string{says}}.check(t, command{env: c.env})
	}
}

// Proves that a damaged file of contexts is named with its line, is not written
// over, and is in nobody's way who names a server; and that one which others may
// read is warned about.
func TestDamagedContexts(t *testing.T) {
	xdg := t.TempDir()
	path := xdg + "/tidemark/contexts.json"
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	server, _ := asked(t)
	c := command{env: []string{"XDG_CONFIG_HOME=" + xdg}}
	good := fmt.Sprintf(`{"version":1,"current":"a","contexts":{"a":{"server":%q,"password":"x"}}}`, server)
	for text, says := range map[string]string{
		"":                      path + ":1: EOF",
		"{\n\"version\": 1,\n}": path + ":3: invalid character",
		good[:len(good)-2]:      path + ":1: unexpected EOF",
		good + "{}":             "more follows",
		`{"version":2}`:         "version 2, this build knows 1",
		`{"version":1,"new":1}`: `unknown field "new"`,
		`{"version":1,"current":"b","contexts":{}}`:               `"b"`,
		`{"version":1,"contexts":{"a":{"server":"nowhere"}}}`:     `"nowhere"`,
		`{"version":1,"contexts":{"../a":{"server":"http://x"}}}`: `"../a"`,
		strings.Repeat(" ", maxContextsFile+1):                    "larger than 1 MiB",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range []string{"ctx ls", "ctx add x --server http://x", "ctx use a", "topic ls"} {
			wrong{args: args, code: exitUsage, says: []string{says, path}}.check(t, c)
		}
		c.must(t, "topic", "ls", "--server", server)
		if b, err := os.ReadFile(path); err != nil || string(b) != text {
			t.Errorf("it was changed: %s %v", b, err)
		}
	}
	if err := os.WriteFile(path, []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := c.run("topic", "ls"); r.code != exitOK || r.err != "" {
		t.Errorf("a good one: %+v", r)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if r := c.run("topic", "ls"); r.code != exitOK || !strings.Contains(r.err, "others may read it") {
		t.Errorf("one that others may read: %+v", r)
	}
}

// Proves that contexts added at the same time are all there, and that a link to
// the file stays one.
func TestContextsTogether(t *testing.T) {
	xdg, elsewhere := t.TempDir(), t.TempDir()+"/real.json"
	c := command{env: []string{"XDG_CONFIG_HOME=" + xdg}}
	c.must(t, "ctx", "add", "first", "--server", "http://x")
	path := xdg + "/tidemark/contexts.json"
	if err := os.Rename(path, elsewhere); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, path); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if r := c.run("ctx", "add", fmt.Sprintf("c%d", i), "--server", "http://x"); r.code != exitOK {
				t.Errorf("%+v", r)
			}
		})
	}
	wg.Wait()
	if n := len(linesOf(c.must(t, "ctx", "ls"))); n != 22 {
		t.Errorf("%d lines", n)
	}
	if to, err := os.Readlink(path); err != nil || to != elsewhere {
		t.Errorf("the link: %s %v", to, err)
	}
	left, err := filepath.Glob(filepath.Dir(path) + "/.contexts-*")
	if err != nil || len(left) > 0 {
		t.Errorf("left over: %v %v", left, err)
	}
}
