package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Proves a reload of the real process from end to end: level of the log,
// password and certificate are exchanged at SIGHUP; what is wrong, what needs a
// restart and what loosens security is refused whole, with the reason, and
// leaves everything as it was; both are counted; readiness has no part in it.
func TestReload(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := newTLSFiles(t, "first")
	file, password := dir+"/c.yaml", dir+"/password"
	put := func(path, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	settings := func(extra string) {
		put(file, fmt.Sprintf("data_dir: %s/data\narchive: none\nhttp_addr: 127.0.0.1:0\nmetrics_addr: 127.0.0.1:0\ndisk_reserve: 1B\nadmin_password_file: %s\ntls_cert_file: %s\ntls_key_file: %s\n%s",
			dir, password, f.cert, f.key, extra), 0o600)
	}
	put(password, "one", 0o600)
	settings("tls_min_version: \"1.3\"\nsegment_bytes: 64MiB\n")
	p := startProcess(t, nil, "serve", "--config", file, "--merge-min-segments", "9")
	r := readyLine(t, p)
	if !r.TLS {
		t.Fatalf("ready line %+v", r)
	}
	counted := func(result string) string {
		_, metrics := get(t, "http://"+r.Metrics+"/metrics")
		for line := range strings.Lines(metrics) {
			if n, ok := strings.CutPrefix(line, `tidemark_config_reloads_total{result="`+result+`"} `); ok {
				return strings.TrimSpace(n)
			}
		}
		return "none"
	}
	done, refused := 0, 0
	hup := func(result string, n *int, says ...string) {
		t.Helper()
		*n++
		before := len(linesOf(p.Stderr()))
		if err := syscall.Kill(p.PID(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the reload is "+result, func() bool { return counted(result) == fmt.Sprint(*n) })
		// What it logged comes here by a pipe, later than the count perhaps.
		var last string
		eventually(t, "the log says so", func() bool {
			for _, line := range linesOf(p.Stderr())[before:] {
				if strings.Contains(line, "the new configuration is refused") || strings.Contains(line, "the configuration was read again") {
					last = line
					return true
				}
			}
			return false
		})
		for _, s := range says {
			if !strings.Contains(last, s) {
				t.Errorf("no word of %q in %s", s, last)
			}
		}
		if counted("done") != fmt.Sprint(done) || counted("refused") != fmt.Sprint(refused) {
			t.Errorf("%s done, %s refused; want %d, %d", counted("done"), counted("refused"), done, refused)
		}
	}
	ask := func(password string) int {
		t.Helper()
		c := &connection{p: &process{}, caFile: f.a.File}
		hc, err := c.client()
		if err != nil {
			t.Fatal(err)
		}
		defer c.close()
		req, err := http.NewRequest(http.MethodGet, "https://"+r.HTTP+"/v1/topics", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.SetBasicAuth(adminUser, password)
		res, err := hc.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	is := func(password, name string) {
		t.Helper()
		if got := ask(password); got != 200 {
			t.Errorf("password %s: %d", password, got)
		}
		if got := ask("x" + password); got != 401 {
			t.Errorf("another password: %d", got)
		}
		if got := shownCertificate(t, r.HTTP, f.a.File); got != name {
			t.Errorf("certificate %s, want %s", got, name)
		}
		if status, body := get(t, "http://"+r.Metrics+"/readyz"); status != 200 {
			t.Errorf("/readyz: %d %s", status, body)
		}
	}
	is("one", "first")
	hup("done", &done, `"changes":[]`)

	// Everything that may change does, at once; 67108864 is no change.
	put(password, "two", 0o600)
	f.issue(t, "second", time.Hour*24*365)
	settings("tls_min_version: \"1.3\"\nsegment_bytes: 67108864\nlog_format: text\nlog_level: debug\nshutdown_grace: 3s\n")
	hup("done", &done, "level=INFO", "log_level from info to debug", "shutdown_grace from 10s to 3s", "the admin password", "CN=second")
	is("two", "second")

	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	back := func() { put(file, string(good), 0o600) }
	for name, c := range map[string]struct {
		text string
		says []string
	}{
		"a restart":        {string(good) + "seal_age: 5m\n", []string{"seal_age from 10m to 5m needs a restart"}},
		"several":          {strings.Replace(string(good), "log_level: debug", "log_level: loud\nnope: 1", 1), []string{"loud", "nope", "no such setting"}},
		"no syntax":        {"data_dir: [", []string{"yaml"}},
		"an older TLS":     {strings.Replace(string(good), `"1.3"`, `"1.2"`, 1), []string{"tls_min_version"}},
		"no TLS":           {strings.Replace(strings.Replace(string(good), "tls_key_file", "# ", 1), "tls_cert_file", "# ", 1), []string{"TLS is turned on and off by a restart"}},
		"no password":      {strings.Replace(string(good), "admin_password_file", "# ", 1), []string{"no admin password"}},
		"security off":     {strings.Replace(string(good), "admin_password_file", "dev: true\n# ", 1), []string{"dev from false to true needs a restart", "without an admin password"}},
		"a missing file":   {strings.Replace(string(good), f.key, "/no/such", 1), []string{"/no/such"}},
		"another listener": {strings.Replace(string(good), "http_addr: 127.0.0.1:0", "http_addr: 0.0.0.0:0", 1), []string{"http_addr", "needs a restart"}},
	} {
		// What is good beside it is not taken over either.
		put(file, strings.Replace(c.text, "log_format: text", "log_format: json", 1), 0o600)
		hup("refused", &refused, append(c.says, "level=ERROR")...)
		if t.Failed() {
			t.Fatalf("reload with %s", name)
		}
	}
	back()
	is("two", "second")

	// A pair that does not fit keeps the old one, and the new password out.
	put(password, "three", 0o600)
	key, err := os.ReadFile(f.key)
	if err != nil {
		t.Fatal(err)
	}
	other := newTLSFiles(t, "other")
	otherKey, err := os.ReadFile(other.key)
	if err != nil {
		t.Fatal(err)
	}
	put(f.key, string(otherKey), 0o600)
	hup("refused", &refused, "does not match")
	is("two", "second")
	put(f.key, string(key), 0o644)
	hup("refused", &refused, "every user of this machine may read "+f.key)
	is("two", "second")
	put(f.key, string(key), 0o600)
	if _, metrics := get(t, "http://"+r.Metrics+"/metrics"); !strings.Contains(metrics, "tidemark_config_reload_ok 0\n") {
		t.Error("the refusal does not show in the gauge")
	}
	hup("done", &done, "the admin password")
	is("three", "second")
	if !p.Stop(time.Minute) || p.ExitCode() != exitOK {
		t.Errorf("exit %d: %s", p.ExitCode(), p.Stderr())
	}
}

// Proves that SIGHUP while a node starts does not end it, and that one without a
// file reads password and certificate again.
func TestHangupWhileStarting(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startProcess(t, nil, "serve", "--dev", "--data-dir", dir+"/data", "--archive", "none", "--http-addr", "127.0.0.1:0", "--disk-reserve", "1B", "--log-format", "json", "--log-level", "info")
	eventually(t, "it starts", func() bool { return strings.Contains(p.Stderr(), `"msg":"starting"`) })
	if err := syscall.Kill(p.PID(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	readyLine(t, p)
	eventually(t, "the configuration is read again", func() bool { return strings.Contains(p.Stderr(), "was read again") })
	if !p.Stop(time.Minute) || p.ExitCode() != exitOK {
		t.Errorf("exit %d: %s", p.ExitCode(), p.Stderr())
	}
}
