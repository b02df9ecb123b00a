package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// shownRecord is a line of consume or replay.
type shownRecord struct {
	Partition uint32          `json:"partition"`
	Offset    int64           `json:"offset"`
	Key       string          `json:"key"`
	Payload   json.RawMessage `json:"payload"`
	Encoding  string          `json:"payload_encoding"`
	Attempt   int             `json:"delivery_count"`
	Handle    string          `json:"receipt_handle"`
}

func records(t *testing.T, out string) (list []shownRecord) {
	t.Helper()
	for _, line := range linesOf(out) {
		var r shownRecord
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		list = append(list, r)
	}
	return list
}

// Proves the way of records through every command: created, produced by line,
// consumed, replayed from disk and from the archive, looked at in the bucket,
// lost with the data directory and restored from the archive alone.
func TestJourney(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	archive := "file://" + dir + "/archive"
	s := devServe(t, dir, "--seal-age", "50ms", "--seal-min-bytes", "1", "--wal-interval", "50ms")
	c := s.client()
	if out := c.must(t, "topic", "create", "orders", "--partitions", "2", "--retention", "0s", "--visibility-timeout", "1m"); out != "created topic orders with 2 partitions\n" {
		t.Errorf("create: %q", out)
	}

	var input strings.Builder
	const n = 2500
	for i := range n {
		fmt.Fprintf(&input, "{\"user\":{\"id\":%d},\"n\":%d}\n", i%50, i)
	}
	c.stdin = input.String()
	var receipt receipt
	if err := json.Unmarshal([]byte(c.must(t, "produce", "orders", "--ndjson", "--key-field", "/user/id", "--ack", "committed", "--json", "--batch", "700")), &receipt); err != nil || receipt.Records != n || receipt.Batches < 4 {
		t.Errorf("receipt %+v %v", receipt, err)
	}
	c.stdin = ""

	// Order within a partition is the order of the input, and a key has one
	// partition.
	place := map[string]uint32{}
	total := 0
	for p := range 2 {
		last := -1
		for _, r := range records(t, c.must(t, "replay", "orders", "--partition", fmt.Sprint(p))) {
			var v struct{ N int }
			if err := json.Unmarshal(r.Payload, &v); err != nil || v.N <= last {
				t.Fatalf("partition %d: %s after %d: %v", p, r.Payload, last, err)
			}
			if q, ok := place[r.Key]; ok && q != uint32(p) {
				t.Fatalf("key %s is in two partitions", r.Key)
			}
			last, place[r.Key] = v.N, uint32(p)
			total++
		}
	}
	if total != n {
		t.Errorf("%d records in the log, want %d", total, n)
	}

	first := records(t, c.must(t, "consume", "orders", "--max", "150"))
	if len(first) != 150 || first[0].Attempt != 1 {
		t.Errorf("%d consumed", len(first))
	}
	eventually(t, "everything is in the archive", func() bool {
		var info struct {
			Stats []struct {
				High     int64 `json:"high_watermark"`
				Archived int64 `json:"archived_offset"`
			} `json:"partition_stats"`
		}
		if err := json.Unmarshal([]byte(c.must(t, "topic", "info", "orders", "--json")), &info); err != nil || len(info.Stats) != 2 {
			t.Fatal(err)
		}
		return info.Stats[0].Archived == info.Stats[0].High && info.Stats[1].Archived == info.Stats[1].High
	})
	if out := c.must(t, "topic", "info", "orders"); !strings.Contains(out, "for ever") || !strings.Contains(out, "serving") {
		t.Errorf("info: %s", out)
	}
	if out := c.must(t, "topic", "ls"); !strings.Contains(out, "orders") {
		t.Errorf("ls: %s", out)
	}
	var held listing
	if err := json.Unmarshal([]byte(c.must(t, "bucket", "ls", archive, "--json")), &held); err != nil || len(held.Topics) != 1 || len(held.Topics[0].Partitions) != 2 || held.Topics[0].Partitions[0].Records == 0 || held.Nodes[0].Status != "open" {
		t.Errorf("bucket ls --json: %+v %v", held, err)
	}
	if out := c.must(t, "bucket", "ls", archive); !strings.Contains(out, "node-1") || !strings.Contains(out, "ok") {
		t.Errorf("bucket ls: %s", out)
	}
	c.stdin = "the last one"
	c.must(t, "produce", "orders", "--partition", "0", "--ack", "archived")
	c.stdin = ""
	before := [2]string{}
	for p := range before {
		before[p] = c.must(t, "replay", "orders", "--partition", fmt.Sprint(p))
	}
	if code := s.stop(); code != exitOK {
		t.Fatalf("exit %d: %s", code, s.stderr)
	}
	inspectAll(t, dir)

	// The machine is gone.
	if err := os.RemoveAll(dir + "/data"); err != nil {
		t.Fatal(err)
	}
	restore := []string{"restore", "--archive", archive, "--data-dir", dir + "/data"}
	if out := c.must(t, append(restore, "--dry-run")...); !strings.Contains(out, "topics") {
		t.Errorf("plan: %s", out)
	}
	if _, err := os.Stat(dir + "/data"); !os.IsNotExist(err) {
		t.Errorf("a dry run made the directory: %v", err)
	}
	var report map[string]any
	if err := json.Unmarshal([]byte(c.must(t, append(restore, "--take-over", "--json")...)), &report); err != nil || report["topics"] != 1.0 {
		t.Errorf("report %v: %v", report, err)
	}
	wrong{args: strings.Join(append(restore, "--take-over"), " "), code: exitFailed, says: []string{"not empty", dir + "/data"}}.check(t, command{})

	s = devServe(t, dir)
	c = s.client()
	for p := range before {
		if after := c.must(t, "replay", "orders", "--partition", fmt.Sprint(p)); after != before[p] {
			t.Errorf("partition %d has %d lines after the restore, %d before", p, len(linesOf(after)), len(linesOf(before[p])))
		}
	}
	// What was acked stays acked.
	if rest := records(t, c.must(t, "consume", "orders")); len(rest) != n+1-150 {
		t.Errorf("%d records are left, want %d", len(rest), n+1-150)
	}
	if out := c.must(t, "consume", "orders"); out != "" {
		t.Errorf("an empty topic gives %q", out)
	}
	wrong{args: "topic create orders", code: exitFailed, says: []string{"orders exists"}}.check(t, c)
	c.must(t, "topic", "rm", "orders")
	wrong{args: "topic info orders", code: exitFailed, says: []string{`"orders"`, "topic create"}}.check(t, c)
}

// inspectAll decodes every object of an archive, and checks that verify finds
// none of them damaged, and each one when it is.
func inspectAll(t *testing.T, dir string) {
	t.Helper()
	archive := "file://" + dir + "/archive"
	if out := (command{}).must(t, "bucket", "verify", archive, "--deep"); !strings.Contains(out, " 0 problems") {
		t.Errorf("verify: %s", out)
	}
	kinds := map[string]string{}
	err := filepath.WalkDir(dir+"/archive", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		key, err := filepath.Rel(dir+"/archive", path)
		if err != nil || strings.HasPrefix(key, ".") {
			return err
		}
		var v struct{ Kind string }
		if err := json.Unmarshal([]byte((command{}).must(t, "bucket", "inspect", archive, key)), &v); err != nil {
			t.Errorf("inspect %s: %v", key, err)
		}
		kinds[v.Kind] = key
		return nil
	})
	if err != nil || len(kinds) < 5 {
		t.Fatalf("kinds %v, %v", kinds, err)
	}
	wrong{args: "bucket inspect " + archive + " no/such/thing", code: exitFailed, says: []string{"no/such/thing"}}.check(t, command{})
	damaged := 0
	for kind, key := range kinds {
		if kind != "segment" && kind != "wal" && kind != "state" {
			continue
		}
		path := filepath.Join(dir, "archive", key)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(whole) < 100 {
			continue
		}
		// One bit: what it decodes to may stay the same, and it is damage all the same.
		bad := bytes.Clone(whole)
		bad[len(bad)/2] ^= 0x40
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		r := (command{}).run("bucket", "verify", archive, "--deep")
		if r.code != exitFailed || !strings.Contains(r.out, "PROBLEM") || !strings.Contains(r.out, key) || !strings.Contains(r.err, "1 problems") {
			t.Errorf("%s %s is damaged: exit %d\n%s%s", kind, key, r.code, r.out, r.err)
		}
		var v verification
		r = (command{}).run("bucket", "verify", archive, "--deep", "--json")
		if err := json.Unmarshal([]byte(r.out), &v); err != nil || r.code != exitFailed || v.Summary.Problems != 1 || len(v.Findings) != 1 || v.Findings[0].Key != key || !v.Findings[0].Problem {
			t.Errorf("%s: exit %d, %+v, %v", key, r.code, v, err)
		}
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
		damaged++
	}
	if damaged < 2 {
		t.Errorf("only %d of %v could be damaged", damaged, kinds)
	}
	if out := (command{}).must(t, "bucket", "verify", archive, "--deep"); !strings.Contains(out, " 0 problems") {
		t.Errorf("verify of the repaired archive: %s", out)
	}
	if out := (command{}).must(t, "bucket", "doctor", archive); !strings.Contains(out, "create-only") || strings.Contains(out, "MISSING") {
		t.Errorf("doctor: %s", out)
	}
	var d diagnosis
	if err := json.Unmarshal([]byte((command{}).must(t, "bucket", "doctor", archive, "--json")), &d); err != nil || !d.OK || len(d.Checks) < 5 {
		t.Errorf("doctor --json: %+v %v", d, err)
	}
}

// Proves that any bytes come out as they went in: by consume --raw and replay
// --raw every byte, by JSON lines without mixing up a text with the JSON string
// of it.
func TestExactBytes(t *testing.T) {
	t.Parallel()
	s := devServe(t, t.TempDir(), "--archive", "none")
	c := s.client()
	c.must(t, "topic", "create", "t", "--partitions", "1")
	values := []string{
		`text`, `"text"`, `5`, `"5"`, `{"a": [1, 2]}`, " {\"a\":\n1}\n", "two\nlines\n", "\x00\xff\xfe", "", `"\u0074ext"`, "true", "   ", strings.Repeat("é", 40000),
	}
	for i, v := range values {
		cmd := command{env: c.env, stdin: v}
		args := []string{"produce", "t"}
		if v == "" {
			args = append(args, "--empty")
		}
		if out := cmd.must(t, args...); out != fmt.Sprintf("topic t partition 0 offset %d\n", i) {
			t.Errorf("%q: %s", v, out)
		}
	}
	lines := records(t, c.must(t, "replay", "t", "--partition", "0"))
	for i, want := range []string{`"text"`, `"text"`, `5`, `"5"`} {
		if string(lines[i].Payload) != want {
			t.Errorf("line %d is %s", i, lines[i].Payload)
		}
	}
	if b, err := base64.StdEncoding.DecodeString(strings.Trim(string(lines[7].Payload), `"`)); err != nil || string(b) != values[7] || lines[7].Encoding != "base64" {
		t.Errorf("binary is %s %s", lines[7].Payload, lines[7].Encoding)
	}
	if got := c.must(t, "replay", "t", "--partition", "0", "--raw", "--delimiter", `\0`); got != strings.Join(values, "\x00")+"\x00" {
		t.Errorf("replay --raw: %.300q", got)
	}
	if got := c.must(t, "replay", "t", "--partition", "0", "--raw", "--from", "2", "--to", "4"); got != "5\n\"5\"\n" {
		t.Errorf("replay --from --to: %q", got)
	}
	if got := c.must(t, "replay", "t", "--partition", "0", "--raw", "--from", "2000-01-01T00:00:00Z", "--to", "1"); got != "text\n" {
		t.Errorf("replay from a time: %q", got)
	}
	if got := records(t, c.must(t, "consume", "t", "--peek")); len(got) != 10 || got[1].Attempt != 1 {
		t.Errorf("peek: %d", len(got))
	}
	if got := c.must(t, "consume", "t", "--raw", "--delimiter", `\0`); got != strings.Join(values, "\x00")+"\x00" {
		t.Errorf("consume --raw: %.300q", got)
	}
	wrong{args: "replay t --partition 0 --from 99", code: exitFailed, says: []string{"99"}}.check(t, c)
	wrong{args: "replay t --partition 7", code: exitFailed, says: []string{"7"}}.check(t, c)
	for _, args := range []string{"produce gone", "produce gone --ndjson", "consume gone", "replay gone --partition 0", "topic info gone", "topic rm gone"} {
		wrong{args: args, stdin: "1\n", code: exitFailed, says: []string{`"gone"`}}.check(t, c)
	}
}

// Proves that a line which is no record is named by its number in the input,
// together with what is stored, and that lines before it are (B260: input from
// pipes has a defined result).
func TestBadLines(t *testing.T) {
	t.Parallel()
	s := devServe(t, t.TempDir(), "--archive", "none")
	c := s.client()
	c.must(t, "topic", "create", "t", "--partitions", "1")
	for _, w := range []wrong{
		{args: "--ndjson", stdin: "1\n\n2\n{\"a\":\n4\n", says: []string{"line 4: is not JSON", "nothing is stored"}},
		{args: "--ndjson --batch 1", stdin: "1\n\n2\nnope\n4\n", says: []string{"line 4: is not JSON", "the lines up to 3 are stored"}},
		{args: "--ndjson --key k", stdin: "1\nnope\n", says: []string{"line 2: not JSON"}},
		{args: "--ndjson --key-field /k", stdin: "{\"k\":1}\n \n{\"j\":1}\n", says: []string{"line 3: ", `"/k"`}},
		{args: "--ndjson --key-field k", stdin: "{}\n", says: []string{"key_field"}},
		{args: "--ndjson --partition 3", stdin: "1\n", says: []string{"partition 3"}},
		{args: "--ndjson", stdin: strings.Repeat("9", 2<<20) + "\n", says: []string{"line 1: "}},
		{args: "--ndjson", stdin: "\x00\n", says: []string{"line 1: is not JSON"}},
		{args: "--partition 3", stdin: "1", says: []string{"partition 3"}},
		{args: "", stdin: strings.Repeat("9", 2<<20), says: []string{"1048576"}},
		{args: "", stdin: strings.Repeat("9", maxRecord+1), says: []string{"16 MiB"}},
	} {
		w.args, w.code = "produce t "+w.args, exitFailed
		w.check(t, c)
	}
	if got := c.must(t, "replay", "t", "--partition", "0", "--raw"); got != "1\n2\n" {
		t.Errorf("stored: %q", got)
	}
	for _, stdin := range []string{"", "\n", " \n\n"} {
		if out := (command{env: c.env, stdin: stdin}).must(t, "produce", "t", "--ndjson"); !strings.HasPrefix(out, "appended 0 records") {
			t.Errorf("%q: %s", stdin, out)
		}
	}
	command{env: c.env, stdin: strings.Repeat("\x00", 1<<20)}.must(t, "produce", "t")
}

// limitedWriter takes some writes and then breaks, as a pipe whose reader went
// away does.
type limitedWriter struct {
	left int
	got  bytes.Buffer
}

func (w *limitedWriter) Write(p []byte) (int, error) {
	if w.left == 0 {
		return 0, errors.New("broken pipe")
	}
	w.left--
	return w.got.Write(p)
}

// Proves that only what stdout took is acked: the rest is back at once and
// comes again to the next consumer.
func TestAckAfterStdout(t *testing.T) {
	t.Parallel()
	s := devServe(t, t.TempDir(), "--archive", "none")
	c := s.client()
	c.must(t, "topic", "create", "t", "--partitions", "1", "--visibility-timeout", "1h")
	command{env: c.env, stdin: "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n"}.must(t, "produce", "t", "--ndjson")
	for _, raw := range []bool{false, true} {
		out := &limitedWriter{left: 3}
		args := []string{"consume", "t"}
		if raw {
			args = append(args, "--raw")
		}
		r := command{env: c.env, stdout: out}.run(args...)
		if r.code != exitFailed || !strings.Contains(r.err, "broken pipe") || len(linesOf(out.got.String())) != 3 {
			t.Errorf("raw %v: exit %d, stderr %s, stdout %q", raw, r.code, r.err, out.got.String())
		}
	}
	leased := records(t, c.must(t, "consume", "t", "--no-ack", "--max", "1"))
	if len(leased) != 1 || leased[0].Offset != 6 || leased[0].Handle == "" {
		t.Fatalf("no-ack: %+v", leased)
	}
	if got := c.must(t, "consume", "t", "--raw"); got != "7\n8\n9\n" {
		t.Errorf("the rest is %q", got)
	}
}

// Proves that a log which breaks off without its end marker fails, says where
// to go on, and does not look complete.
func TestBrokenReplay(t *testing.T) {
	answer := ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		_, _ = io.WriteString(w, answer)
	}))
	defer s.Close()
	c := command{env: []string{"TIDEMARK_SERVER=" + s.URL + "/"}}
	for _, w := range []struct{ answer, says, raw string }{
		{"", "nothing was printed", "nothing was read"},
		{"{\"offset\":7,\"payload\":1}\n", "go on with --from 8", "from offset 8"},
		{"{\"offset\":7,\"payload\":1}\n{\"offset\":8,\"payl", "go on with --from 8", "from offset 8"},
		{"{\"offset\":7,\"payload\":1}\n{\"end\":true,\"resume_offset\":8}", "go on with --from 8", "from offset 8"},
		{"{\"what\":7}\n{\"end\":true}\n", "no record", ""}, // a line without an offset has no value either
		{"nonsense\n", "no record", "no record"},
	} {
		answer = w.answer
		wrong{args: "replay t --partition 0", code: exitFailed, says: []string{w.says}}.check(t, c)
		if w.raw != "" {
			wrong{args: "replay t --partition 0 --raw", code: exitFailed, says: []string{w.raw}}.check(t, c)
		}
	}
	answer = "{\"offset\":7,\"payload\":1}\n{\"end\":true,\"resume_offset\":8}\n"
	if out := c.must(t, "replay", "t", "--partition", "0"); out != "{\"offset\":7,\"payload\":1}\n" {
		t.Errorf("%q", out)
	}
}

// Proves that a batch which is refused for now is sent again, and that one
// which may have been stored is not.
func TestProduceAgain(t *testing.T) {
	var bodies []string
	var answers []int
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		bodies = append(bodies, string(b))
		status := answers[0]
		answers = answers[1:]
		w.WriteHeader(status)
		switch status {
		case 503:
			_, _ = io.WriteString(w, `{"error":"the disk is full","code":"storage"}`)
		case 504:
			_, _ = io.WriteString(w, `{"error":"no confirmation in time","code":"not_confirmed"}`)
		default:
			_, _ = io.WriteString(w, `{"accepted":1}`)
		}
	}))
	defer s.Close()
	c := command{env: []string{"TIDEMARK_SERVER=" + s.URL}, stdin: "1\n2\n"}
	answers = []int{503, 202, 503, 503, 202}
	c.must(t, "produce", "t", "--ndjson", "--batch", "1")
	if got := strings.Join(bodies, ""); got != "1\n1\n2\n2\n2\n" {
		t.Errorf("sent: %q", got)
	}
	bodies, answers = nil, []int{202, 504}
	wrong{args: "produce t --ndjson --batch 1", stdin: c.stdin, code: exitFailed, says: []string{"no confirmation", "up to 1 are stored", "of lines 2 to 2 it is not known"}}.check(t, c)
	if len(bodies) != 2 {
		t.Errorf("%d requests", len(bodies))
	}
}

// Proves that the offline tools and restore do not make an archive out of a
// misspelled path.
func TestNoArchiveThere(t *testing.T) {
	dir := t.TempDir()
	missing := dir + "/missing"
	for _, args := range []string{
		"bucket ls file://" + missing, "bucket verify file://" + missing, "bucket inspect file://" + missing + " cluster/00000000000000000001",
		"restore --dry-run --data-dir " + dir + "/d --archive file://" + missing,
	} {
		wrong{args: args, code: exitFailed, says: []string{missing}}.check(t, command{})
	}
	if _, err := os.Stat(missing); !os.IsNotExist(err) {
		t.Errorf("it was made: %v", err)
	}
	if out := (command{}).must(t, "bucket", "ls", "file://"+dir); out != "no cluster has written here\n" {
		t.Errorf("an empty archive: %q", out)
	}
	wrong{args: "restore --dry-run --data-dir " + dir + "/d --archive file://" + dir, code: exitFailed, says: []string{dir}}.check(t, command{})
}
