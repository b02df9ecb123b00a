package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/testkit/authority"
)

// tlsFiles are a certificate of a name with its key, in files.
type tlsFiles struct {
	a         *authority.Authority
	cert, key string
}

func newTLSFiles(t *testing.T, name string) tlsFiles {
	t.Helper()
	dir := t.TempDir()
	f := tlsFiles{authority.New(t), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	f.issue(t, name, 365*24*time.Hour)
	return f
}

func (f *tlsFiles) issue(t *testing.T, name string, valid time.Duration) {
	t.Helper()
	f.a.Issue(t, name, f.cert, f.key, time.Now().Add(valid))
}

func (f *tlsFiles) flags() []string {
	return []string{"--tls-cert-file", f.cert, "--tls-key-file", f.key}
}

// Proves that a node with a certificate serves over TLS alone, from its start
// on, that commands reach it with the authority's file and not without, and that
// each way of going wrong says what to do.
func TestServeTLS(t *testing.T) {
	t.Parallel()
	f := newTLSFiles(t, "node-1")
	s := devServe(t, t.TempDir(), append(f.flags(), "--metrics-addr", "127.0.0.1:0", "--log-level", "info", "--log-format", "json")...)
	if !s.ready.TLS {
		t.Errorf("ready line %+v", s.ready)
	}
	c := command{env: []string{"TIDEMARK_SERVER=https://" + s.ready.HTTP}}
	trusting := command{env: append(c.env, "TIDEMARK_CA_FILE="+f.a.File), stdin: "over TLS"}
	trusting.must(t, "topic", "create", "t")
	trusting.must(t, "produce", "t")
	if out := trusting.must(t, "consume", "t", "--raw"); out != "over TLS\n" {
		t.Errorf("consumed %q", out)
	}
	c.must(t, "healthcheck", "--ready", "--ca-file", f.a.File)
	(command{}).must(t, "healthcheck", "--server", "http://"+s.ready.Metrics)

	wrong{args: "topic ls", code: exitFailed, says: []string{"is not trusted", "--ca-file"}}.check(t, c)
	wrong{args: "topic ls --server http://" + s.ready.HTTP, code: exitFailed, says: []string{"https://"}}.check(t, trusting)
	wrong{args: "consume t --server http://" + s.ready.HTTP, code: exitFailed, says: []string{"https://"}}.check(t, trusting)
	wrong{args: "topic ls --server https://" + s.ready.Metrics, code: exitFailed, says: []string{"plain HTTP", "http://"}}.check(t, trusting)
	wrong{args: "topic ls --ca-file " + f.key, code: exitUsage, says: []string{"holds no certificate", f.key}}.check(t, c)
	if !strings.Contains(s.stderr.String(), "speaking TLS") || strings.Contains(s.stderr.String(), "plain text") {
		t.Errorf("log: %s", s.stderr)
	}
}

// Proves that the lobby speaks TLS too: what asks a node that starts is not told
// that its certificate is gone.
func TestLobbyTLS(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "a")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "b")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	f := newTLSFiles(t, "node-1")
	store, gone := silentStore(t)
	var stderr lockedBuffer
	signals := make(chan os.Signal, 2)
	done := make(chan int, 1)
	p := &process{stdin: strings.NewReader(""), stdout: &lockedBuffer{}, stderr: &stderr, signals: signals, exit: func(int) {}}
	go func() {
		done <- p.run(append([]string{
			"serve", "--dev", "--data-dir", t.TempDir() + "/data", "--http-addr", "127.0.0.1:0", "--disk-reserve", "1B", "--log-level", "info", "--log-format", "json",
			"--archive", "s3://bucket/p?region=us-east-1&path_style=true&endpoint=http://" + store,
		}, f.flags()...))
	}()
	c := command{env: []string{"TIDEMARK_SERVER=https://" + listening(t, &stderr), "TIDEMARK_CA_FILE=" + f.a.File}}
	if r := c.run("healthcheck", "--ready"); r.code != exitFailed || !strings.Contains(r.err, "starting: ") {
		t.Errorf("a node that starts: %+v", r)
	}
	gone()
	eventually(t, "it is ready", func() bool { return c.run("healthcheck", "--ready").code == exitOK })
	signals <- os.Interrupt
	if code := <-done; code != exitOK {
		t.Errorf("exit %d, stderr: %s", code, stderr.String())
	}
}

// Proves what is warned about, once: passwords on a network without TLS, files
// with secrets that everybody may read, a certificate that is over soon, and
// profiles that the network can ask for.
func TestSecurityWarnings(t *testing.T) {
	t.Parallel()
	password := writeFile(t, "password", "geheim")
	if err := os.Chmod(password, 0o644); err != nil {
		t.Fatal(err)
	}
	common := []string{"--disk-reserve", "1B", "--log-level", "warn", "--archive", "none", "--admin-password-file", password}
	warnings := func(stderr string) (list []string) {
		for _, line := range linesOf(stderr) {
			var said struct{ Level, Msg string }
			if json.Unmarshal([]byte(line), &said) != nil || said.Level != "WARN" {
				t.Errorf("a line of the log is %q", line)
			}
			list = append(list, said.Msg)
		}
		return list
	}
	is := func(name string, got []string, want ...string) {
		if len(got) != len(want) {
			t.Errorf("%s: %q", name, got)
			return
		}
		for i := range want {
			if !strings.Contains(got[i], want[i]) {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	}
	open := startServe(t, nil, append(common, "--data-dir", t.TempDir(), "--http-addr", "0.0.0.0:0")...)
	is("plain", warnings(open.stderr.String()), "every user of this machine may read", "cross the network as plain text")
	f := newTLSFiles(t, "soon over")
	f.issue(t, "soon over", 72*time.Hour)
	if err := os.Chmod(password, 0o640); err != nil {
		t.Fatal(err)
	}
	secured := startServe(t, nil, append(append(common, "--data-dir", t.TempDir(), "--http-addr", "0.0.0.0:0"), f.flags()...)...)
	is("TLS", warnings(secured.stderr.String()), "is over soon")
	local := startServe(t, nil, append(common, "--data-dir", t.TempDir(), "--http-addr", "127.0.0.1:0", "--pprof-addr", "[::1]:0")...)
	is("loopback", warnings(local.stderr.String()))
	profiled := startServe(t, nil, append(common, "--data-dir", t.TempDir(), "--http-addr", "127.0.0.1:0", "--pprof-addr", "0.0.0.0:0")...)
	is("profiles", warnings(profiled.stderr.String()), "listener for profiles")
}

// Proves that a start with a certificate that no client would take is refused
// with everything that is wrong, and touches nothing.
func TestServeRefusesBadCertificate(t *testing.T) {
	dir := t.TempDir()
	f, other := newTLSFiles(t, "x"), newTLSFiles(t, "y")
	old := newTLSFiles(t, "old")
	old.issue(t, "old", -time.Hour)
	for _, c := range []struct{ cert, key, says string }{
		{f.cert, other.key, "does not match"},
		{old.cert, old.key, "is over since"},
		{f.key, f.key, "certificate"},
	} {
		r := (command{}).run("serve", "--data-dir", dir+"/data", "--tls-cert-file", c.cert, "--tls-key-file", c.key)
		if r.code != exitUsage || !strings.Contains(r.err, c.says) || !strings.Contains(r.err, "no admin password") {
			t.Errorf("%+v", r)
		}
	}
	if _, err := os.Stat(dir + "/data"); !os.IsNotExist(err) {
		t.Errorf("the data directory was made: %v", err)
	}
}

// shownCertificate is the name that a node shows.
func shownCertificate(t *testing.T, addr, ca string) string {
	t.Helper()
	c := &connection{p: &process{}, caFile: ca}
	hc, err := c.client()
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	req, err := http.NewRequest(http.MethodGet, "https://"+addr+"/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := hc.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	return res.TLS.PeerCertificates[0].Subject.CommonName
}
