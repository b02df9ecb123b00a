package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// wrong is a command line that has to fail.
type wrong struct {
	args  string // split at spaces
	stdin string
	env   []string
	code  int
	says  []string
}

func (w wrong) check(t *testing.T, base command) {
	t.Helper()
	c := command{env: append(append([]string{}, base.env...), w.env...), stdin: w.stdin}
	r := c.run(strings.Fields(w.args)...)
	if r.code != w.code {
		t.Errorf("tidemark %s: exit %d, want %d; stderr: %s", w.args, r.code, w.code, r.err)
	}
	if n := len(linesOf(r.err)); n != 1 || !strings.HasPrefix(r.err, "tidemark: ") {
		t.Errorf("tidemark %s: %d lines on stderr: %s", w.args, n, r.err)
	}
	for _, says := range w.says {
		if !strings.Contains(r.err, says) {
			t.Errorf("tidemark %s: no word of %q in: %s", w.args, says, r.err)
		}
	}
	if strings.Contains(r.out, "Usage:") {
		t.Errorf("tidemark %s: usage on stdout", w.args)
	}
}

// Proves that a command line which cannot work exits 2 with one line that
// names what is wrong, without asking a node. B253: the value is shown and the
// rule with it.
func TestUsageErrors(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	two := filepath.Join(dir, "two")
	if err := os.WriteFile(two, []byte("a\nb\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Nobody listens: a command that asks a node would exit 1.
	base := command{env: []string{"TIDEMARK_SERVER=http://" + closedPort(t)}}
	for _, w := range []wrong{
		{args: "frobnicate", says: []string{`"frobnicate"`, "--help"}},
		{args: "prodce", says: []string{`"prodce"`, "produce?"}},
		{args: "--frob", says: []string{"--frob"}},
		{args: "topic frob", says: []string{`"frob"`}},
		{args: "topic create", says: []string{"topic create: NAME is missing"}},
		{args: "topic create a b", says: []string{`unexpected argument "b"`}},
		{args: "topic create bad!topic", says: []string{`"bad!topic"`}},
		{args: "topic create ..", says: []string{`".."`}},
		{args: "topic create a --partitions 0", says: []string{"--partitions 0", "1024"}},
		{args: "topic create a --partitions 1025", says: []string{"--partitions 1025"}},
		{args: "topic create a --partitions x", says: []string{"--partitions", `"x"`}},
		{args: "topic create a --retention -1s", says: []string{"--retention"}},
		{args: "topic create a --retention 1us", says: []string{"--retention"}},
		{args: "topic create a --max-record-bytes lots", says: []string{"--max-record-bytes", `"lots"`}},
		{args: "topic create a --default-ack sure", says: []string{`"sure"`, "committed"}},
		{args: "topic create a --frob", says: []string{"--frob", "topic create --help"}},
		{args: "topic set", says: []string{"NAME is missing"}},
		{args: "topic set a", says: []string{"no setting is given"}},
		{args: "topic set a! --retention 1h", says: []string{`"a!"`}},
		{args: "topic set a --retention -1s", says: []string{"--retention"}},
		{args: "topic set a --partitions 4", says: []string{"--partitions"}},
		{args: "topic ls x", says: []string{`"x"`}},
		{args: "topic info", says: []string{"NAME is missing"}},
		{args: "topic rm", says: []string{"NAME is missing"}},
		{args: "topic ls --server 127.0.0.1:7942", says: []string{"127.0.0.1:7942", "http://host:port"}},
		{args: "topic ls --server ftp://x", says: []string{"ftp://x"}},
		{args: "topic ls --password-file /no/such", says: []string{"/no/such"}},
		{args: "topic ls --password-file " + empty, says: []string{empty, "empty"}},
		{args: "topic ls --password-file " + two, says: []string{two, "several lines"}},
		{args: "produce", says: []string{"TOPIC is missing"}},
		{args: "produce a! -f x", says: []string{`"a!"`}},
		{args: "produce a -f /no/such/file", says: []string{"/no/such/file"}},
		{args: "produce a --ack maybe", says: []string{`"maybe"`}},
		{args: "produce a --ack-wait 31s", says: []string{"--ack-wait 31s"}},
		{args: "produce a --partition -2", says: []string{"--partition -2"}},
		{args: "produce a --batch 5", says: []string{"--ndjson"}},
		{args: "produce a --ndjson --batch 1001", says: []string{"--batch 1001", "1000"}},
		{args: "produce a --ndjson --key k --key-field /k", says: []string{"--key-field"}},
		{args: "produce a", says: []string{"--empty"}},
		{args: "consume", says: []string{"TOPIC is missing"}},
		{args: "consume a!", says: []string{`"a!"`}},
		{args: "consume a --max 0", says: []string{"--max 0"}},
		{args: "consume a --group billing", says: []string{`"billing"`, "default"}},
		{args: "consume a --peek --no-ack", says: []string{"--no-ack"}},
		{args: "consume a --peek --max 101", says: []string{"--max 101", "100"}},
		{args: "consume a --wait -1s", says: []string{"-1s"}},
		{args: "consume a --partition 1024", says: []string{"--partition 1024"}},
		{args: "replay", says: []string{"TOPIC is missing"}},
		{args: "replay a", says: []string{"--partition is missing"}},
		{args: "replay a!b --partition 0", says: []string{`"a!b"`}},
		{args: "replay a --partition x", says: []string{`"x"`}},
		{args: "replay a --partition 0 --from yesterday", says: []string{`"yesterday"`}},
		{args: "replay a --partition 0 --from 9 --to 3", says: []string{"--from 9", "--to 3"}},
		{args: "replay a --partition 0 --to -3", says: []string{"--to -3"}},
		{args: "replay a --partition 0 --server nowhere", says: []string{"nowhere"}},
		{args: "healthcheck --server nowhere", says: []string{"nowhere"}},
		{args: "healthcheck x", says: []string{`"x"`}},
		{args: "version x", says: []string{`"x"`}},
		{args: "restore", says: []string{"--archive is missing"}},
		{args: "restore --archive file:///a", says: []string{"--data-dir is missing"}},
		{args: "restore --archive file:///a --data-dir /b", says: []string{"--take-over", "--dry-run"}},
		{args: "restore --archive ftp://a --data-dir /b --dry-run", says: []string{`"ftp"`}},
		{args: "restore --archive file:///a --data-dir /b --dry-run --node-id a/b", says: []string{"--node-id", `"a/b"`}},
		{args: "bucket frob", says: []string{`"frob"`}},
		{args: "bucket ls", says: []string{"URL is missing"}},
		{args: "bucket ls gs://b", says: []string{"gs://"}},
		{args: "bucket ls s3://", says: []string{"no bucket"}},
		{args: "bucket ls s3://b?regoin=x", says: []string{`"regoin"`}},
		{args: "bucket inspect file:///a", says: []string{"KEY is missing"}},
		{args: "bucket verify file:///a --topic zz", says: []string{"--topic"}},
		{args: "bucket cat", says: []string{"URL is missing"}},
		{args: "bucket cat file:///a", says: []string{"--topic is missing"}},
		{args: "bucket cat file:///a --topic t", says: []string{"--partition is missing"}},
		{args: "bucket cat file:///a --topic t --partition -1", says: []string{"--partition -1"}},
		{args: "bucket cat file:///a --topic t --partition 0 --from -2", says: []string{"--from -2"}},
		{args: "bucket cat file:///a --topic t --partition 0 --to -2", says: []string{"--to -2"}},
		{args: "bucket cat file:///a --topic t --partition 0 --from 9 --to 3", says: []string{"--from 9", "--to 3"}},
		{args: "bucket cat file:///a --topic t --partition 0 --raw --json", says: []string{"--raw", "--json"}},
		{args: "bucket cat ftp://a --topic t --partition 0", says: []string{`"ftp"`}},
		{args: "wal frob", says: []string{`"frob"`}},
		{args: "wal dump", says: []string{"DIR|FILE is missing"}},
		{args: "wal dump /a /b", says: []string{`"/b"`}},
		{args: "wal dump /a --from x", says: []string{`"x"`}},
		{args: "wal dump /a --from 9 --to 3", says: []string{"--from 9", "--to 3"}},
		{args: "wal repair", says: []string{"DIR is missing"}},
		{args: "wal repair /a --archive ftp://b", says: []string{`"ftp"`}},
		{args: "wal repair /a --frob", says: []string{"--frob"}},
		{args: "segment frob", says: []string{`"frob"`}},
		{args: "segment dump", says: []string{"FILE|KEY is missing"}},
		{args: "segment dump t/x --archive ftp://a", says: []string{`"ftp"`}},
		{args: "segment verify", says: []string{"FILE is missing"}},
		{args: "bucket doctor", says: []string{"URL is missing"}},
		{args: "bucket doctor ftp://x", says: []string{`"ftp"`}},
		{args: "serve --data-dir " + dir, says: []string{"TIDEMARK_ADMIN_PASSWORD", "--admin-password-file", "--dev"}},
		{args: "serve --data-dir " + dir + " --admin-password-file /no/such", says: []string{"/no/such"}},
		{args: "serve", says: []string{"--data-dir", "--dev"}, env: []string{"TIDEMARK_ADMIN_PASSWORD=x"}},
		{args: "serve --dev --tls-cert-file /no/such --tls-key-file /no/such", says: []string{"/no/such"}},
		{args: "serve --dev --tls-cert-file /no/such", says: []string{"--tls-key-file", "go together"}},
		{args: "serve --dev --tls-min-version 1.1", says: []string{"--tls-min-version", `"1.1"`}},
		{args: "config frob", says: []string{`"frob"`}},
		{args: "config check x", says: []string{`"x"`}},
		{args: "config print --dev --seal-age x", says: []string{"--seal-age"}},
		{args: "config docs x", says: []string{`"x"`}},
		{args: "surfaces", says: []string{"--data-dir"}, env: []string{"TIDEMARK_ADMIN_PASSWORD=x"}},
		{args: "topic ls --ca-file /no/such", says: []string{"/no/such"}},
		{args: "serve x", says: []string{`"x"`}},
		{args: "serve --frob", says: []string{"--frob"}},
		{args: "serve --config /no/such.yaml", says: []string{"/no/such.yaml"}, env: []string{"TIDEMARK_DATA_DIR=" + dir}},
		{args: "serve --dev --log-level loud", says: []string{"--log-level", `"loud"`}},
	} {
		w.code = exitUsage
		w.check(t, base)
	}
}

// Proves that offline tools name what they were pointed at when it is not there,
// or is something else, and fail with 1.
func TestOfflineToolsOnWrongFiles(t *testing.T) {
	dir := t.TempDir()
	text, empty := dir+"/text", dir+"/empty"
	if err := os.WriteFile(text, bytes.Repeat([]byte("no log, no segment\n"), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, w := range []wrong{
		{args: "wal dump " + dir + "/none", says: []string{dir + "/none", "no such file"}},
		{args: "wal dump " + dir, says: []string{dir, "no data directory"}},
		{args: "wal dump " + text, says: []string{"damaged"}},
		{args: "wal dump " + empty, says: []string{"damaged"}},
		{args: "wal repair " + dir + "/none", says: []string{dir + "/none", "does not exist"}},
		{args: "wal repair " + dir, says: []string{"identity.json", "does not exist"}},
		{args: "wal repair " + dir + " --archive file://" + dir + "/none", says: []string{dir + "/none", "no such file"}},
		{args: "segment dump " + dir + "/none", says: []string{dir + "/none", "no such file"}},
		{args: "segment dump " + dir, says: []string{dir, "directory"}},
		{args: "segment dump " + text, says: []string{text, "magic"}},
		{args: "segment dump " + empty, says: []string{empty, "shorter than a footer"}},
		{args: "segment verify " + dir, says: []string{dir, "no segment file"}},
		{args: "segment verify " + text, says: []string{"1 of 1"}},
		{args: "segment verify " + empty, says: []string{"1 of 1"}},
	} {
		w.code = exitFailed
		w.check(t, command{})
	}
}

// closedPort returns a loopback address on which nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// Proves that a node which cannot be reached is named, with the way out, by
// every command that needs one.
func TestUnreachableNode(t *testing.T) {
	addr := closedPort(t)
	for _, args := range []string{
		"topic create a", "topic ls", "topic info a", "topic rm a", "consume a", "consume a --raw", "replay a --partition 0", "healthcheck", "produce a", "produce a --ndjson",
	} {
		wrong{args: args, stdin: "1\n", code: exitFailed, says: []string{addr, "connection refused", "--server"}}.check(t, command{env: []string{"TIDEMARK_SERVER=http://" + addr}})
	}
}

// Proves that a start which cannot work ends at once and names the place: a
// port that is taken, a directory that is a file, an archive that is a file, a
// parent that does not exist (B257).
func TestServeStartChecks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().String()
	start := "serve --dev --log-level error --http-addr 127.0.0.1:0 --archive none "
	for _, w := range []wrong{
		{args: "serve --dev --archive none --data-dir " + dir + "/a --http-addr " + port, says: []string{port, "--http-addr", "in use"}},
		{args: start + "--data-dir " + dir + "/b --metrics-addr " + port, says: []string{port, "--metrics-addr"}},
		{args: start + "--data-dir " + dir + "/c --pprof-addr " + port, says: []string{port, "--pprof-addr"}},
		{args: start + "--data-dir " + file, says: []string{file}},
		{args: start + "--data-dir " + file + "/below", says: []string{file}},
		{args: start + "--data-dir " + dir + "/d --raft-addr 0.0.0.0:0", says: []string{"0.0.0.0:0", "loopback"}},
		{args: "serve --dev --log-level error --http-addr 127.0.0.1:0 --data-dir " + dir + "/e --archive file://" + file, says: []string{file}},
	} {
		w.code = exitFailed
		w.check(t, command{})
	}
}
