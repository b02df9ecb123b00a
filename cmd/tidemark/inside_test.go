package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// lived is a data directory and an archive that a node has left behind: a topic
// with two partitions, consumed in part, sealed segments, a tail.
func lived(t *testing.T, flags ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	s := devServe(t, dir, append([]string{"--wal-interval", "50ms"}, flags...)...)
	c := s.client()
	c.must(t, "topic", "create", "orders", "--partitions", "2")
	for round := range 3 {
		var input strings.Builder
		for i := range 40 {
			fmt.Fprintf(&input, "{\"n\":%d,\"pad\":%q}\n", 40*round+i, strings.Repeat("x", 200))
		}
		c.stdin = input.String()
		c.must(t, "produce", "orders", "--ndjson", "--batch", "10", "--partition", fmt.Sprint(round%2))
	}
	c.stdin = ""
	c.must(t, "consume", "orders", "--max", "25")
	if code := s.stop(); code != exitOK {
		t.Fatalf("serve ended with %d: %s", code, s.stderr)
	}
	return dir
}

func onlyMatch(t *testing.T, pattern string) string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("nothing matches %s: %v", pattern, err)
	}
	return names[0]
}

// change replaces bytes of a file.
func change(t *testing.T, path string, fn func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, fn(b), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// dumpLine is a line of `wal dump --json`.
type dumpLine struct {
	Type     string
	LSN      uint64
	Kind     string
	Error    string
	Sections []struct {
		First   int64 `json:"first_offset"`
		Next    int64 `json:"next_offset"`
		Records int64
	}
	Operations []struct{ Op string }
	Verdict    string
	First      uint64 `json:"first_lsn"`
	Next       uint64 `json:"next_lsn"`
	Damage     []struct {
		File     string
		Position int64
		From     uint64 `json:"from_lsn"`
		Next     uint64 `json:"next_lsn"`
	}
}

func dumpLines(t *testing.T, out string) (lines []dumpLine) {
	t.Helper()
	for _, text := range linesOf(out) {
		var l dumpLine
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		lines = append(lines, l)
	}
	return lines
}

// Proves that wal dump shows every frame with what it means, keeps to its
// range, tells clean, torn and damaged apart, and names file, position and LSN
// (I4): of a directory, its folder, and one file.
func TestWALDump(t *testing.T) {
	t.Parallel()
	dir := lived(t)
	data := dir + "/data"
	file := onlyMatch(t, data+"/wal/*.wal")
	lines := dumpLines(t, command{}.must(t, "wal", "dump", data, "--json"))
	records, kinds, next, settled := int64(0), map[string]int{}, uint64(1), 0
	for _, l := range lines {
		if l.Type != "frame" {
			continue
		}
		if l.LSN != next || l.Error != "" {
			t.Fatalf("frame %+v, want LSN %d", l, next)
		}
		next++
		kinds[l.Kind]++
		for _, s := range l.Sections {
			records += s.Records
		}
		for _, o := range l.Operations {
			if o.Op == "settle" {
				settled++
			}
		}
	}
	last := lines[len(lines)-1]
	if records != 120 || kinds["base"] != 2 || kinds["mark"] == 0 || settled == 0 || last.Verdict != "clean" || last.Next != next {
		t.Errorf("%d records, kinds %v, %d settled, %+v", records, kinds, settled, last)
	}
	for _, path := range []string{data + "/wal", file} {
		if got := dumpLines(t, command{}.must(t, "wal", "dump", path, "--json", "--from", "5", "--to", "8")); len(got) < 5 || slices.ContainsFunc(got, func(l dumpLine) bool { return l.Type == "frame" && (l.LSN < 5 || l.LSN >= 8) }) {
			t.Errorf("dump of %s from 5 to 8: %+v", path, got)
		}
	}
	text := command{}.must(t, "wal", "dump", data)
	for _, part := range []string{"incarnation", " commit ", "generation 1 offsets 0..9", "settle ", "clean: LSN 1.."} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in %.2000s", part, text)
		}
	}

	// A write that a crash tore, behind the last group.
	const group = 4096
	copied := dir + "/copy.wal"
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	end := 0
	for at := group; at < len(whole); at += group {
		if string(whole[at:at+4]) == "TMGR" {
			end = at
		}
	}
	if err := os.WriteFile(copied, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	change(t, copied, func(b []byte) []byte { b[end+60] ^= 1; return b })
	out := command{}.run("wal", "dump", copied, "--verdict")
	if out.code != exitOK || !strings.Contains(out.out, "torn tail") && !strings.Contains(out.out, "clean") {
		t.Errorf("a torn file: %d %s %s", out.code, out.out, out.err)
	}

	// Damage in the middle, in the directory itself.
	change(t, file, func(b []byte) []byte { b[2*group+80] ^= 1; return b })
	out = command{}.run("wal", "dump", data, "--json")
	lines = dumpLines(t, out.out)
	last = lines[len(lines)-1]
	if out.code != exitFailed || last.Verdict != "damaged" || len(last.Damage) != 1 || last.Damage[0].File != file || last.Damage[0].Position != 2*group || last.Damage[0].From < 2 || last.Damage[0].Next <= last.Damage[0].From {
		t.Errorf("exit %d, %+v", out.code, last)
	}
	if !strings.Contains(out.err, "wal repair") {
		t.Errorf("no way out: %s", out.err)
	}
	if out := (command{}).run("wal", "dump", data); out.code != exitFailed || !strings.Contains(out.out, fmt.Sprintf("%s at position %d", file, 2*group)) {
		t.Errorf("exit %d: %s", out.code, out.out)
	}
}

// Proves that a segment, sealed or active, on disk or in the archive, is dumped
// with its records and verified; that damage is named with file, position and
// offsets, and comes with what to do (B262, B41).
func TestSegmentCommands(t *testing.T) {
	t.Parallel()
	dir := lived(t, "--seal-age", "50ms", "--seal-min-bytes", "1")
	data, archive := dir+"/data", "file://"+dir+"/archive"
	sealed := onlyMatch(t, data+"/topics/*/*/*.seg")
	out := command{}.must(t, "segment", "dump", sealed, "--records", "--json")
	var lines []struct {
		Type    string
		Offset  *int64
		Records int64
		Payload struct{ N *int }
	}
	for _, text := range linesOf(out) {
		lines = append(lines, struct {
			Type    string
			Offset  *int64
			Records int64
			Payload struct{ N *int }
		}{})
		if err := json.Unmarshal([]byte(text), &lines[len(lines)-1]); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
	}
	n := int64(0)
	for _, l := range lines {
		if l.Offset != nil && l.Payload.N != nil {
			n++
		}
	}
	if lines[0].Type != "segment" || lines[0].Records != n || n == 0 {
		t.Errorf("%d records of %+v", n, lines[0])
	}
	if text := (command{}).must(t, "segment", "dump", sealed); !strings.Contains(text, "sealed segment") || !strings.Contains(text, "batch at 0  offsets 0..") {
		t.Errorf("dump: %s", text)
	}
	key := strings.TrimPrefix(onlyMatch(t, dir+"/archive/t/*/*/s/*.seg"), dir+"/archive/")
	if text := (command{}).must(t, "segment", "dump", key, "--archive", archive); !strings.Contains(text, key) {
		t.Errorf("dump of a key: %s", text)
	}
	if r := (command{}).run("segment", "dump", "t/none", "--archive", archive); r.code != exitFailed {
		t.Errorf("dump of a key that is not there: %+v", r)
	}
	if text := (command{}).must(t, "segment", "verify", filepath.Dir(sealed), sealed); !strings.Contains(text, "ok") || strings.Contains(text, "DAMAGED") {
		t.Errorf("verify: %s", text)
	}

	change(t, sealed, func(b []byte) []byte { b[100] ^= 1; return b })
	r := command{}.run("segment", "verify", sealed)
	for _, part := range []string{"DAMAGED", sealed, "0..", "crc32c", "data sha256", "What to do", "bucket verify"} {
		if !strings.Contains(r.out, part) {
			t.Errorf("no %q in %s", part, r.out)
		}
	}
	if r.code != exitFailed || !strings.Contains(r.err, "1 of 1") {
		t.Errorf("exit %d: %s", r.code, r.err)
	}
	r = command{}.run("segment", "verify", sealed, "--json")
	var v segmentVerification
	if err := json.Unmarshal([]byte(r.out), &v); err != nil || r.code != exitFailed || len(v.Problems) != 2 || v.Problems[0].First != 0 || v.Problems[0].Next <= 0 || v.Problems[0].Position != 0 {
		t.Errorf("%+v %v", v, err)
	}
	if r := (command{}).run("segment", "dump", sealed); r.code != exitFailed || !strings.Contains(r.err, "position 0") {
		t.Errorf("dump of a damaged file: %+v", r)
	}

	// What the guidance says works: with the archive's copy in place, the node
	// serves the offsets of a file that was moved away.
	if err := os.Rename(sealed, dir+"/quarantine.seg"); err != nil {
		t.Fatal(err)
	}
	s := devServe(t, dir)
	total := 0
	for p := range 2 {
		total += len(records(t, s.client().must(t, "replay", "orders", "--partition", fmt.Sprint(p))))
	}
	if total != 120 {
		t.Errorf("%d records after the quarantine, want 120", total)
	}
}

// Proves that bucket cat prints what replay prints, from the bucket alone, and
// that a deep verify of what a node left finds nothing (I16).
func TestBucketCat(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{nil, {"--seal-age", "50ms", "--seal-min-bytes", "1"}} {
		dir := lived(t, flags...)
		archive := "file://" + dir + "/archive"
		s := devServe(t, dir)
		for p := range 2 {
			want := s.client().must(t, "replay", "orders", "--partition", fmt.Sprint(p))
			got := command{}.must(t, "bucket", "cat", archive, "--topic", "orders", "--partition", fmt.Sprint(p))
			if got != want {
				t.Errorf("partition %d, flags %v: cat and replay differ:\n%.300s\n%.300s", p, flags, got, want)
			}
			if raw := linesOf(command{}.must(t, "bucket", "cat", archive, "--topic", "orders", "--partition", fmt.Sprint(p), "--from", "3", "--to", "17", "--raw")); len(raw) != 14 || !strings.HasPrefix(raw[0], `{"n":`) {
				t.Errorf("%d raw lines: %v", len(raw), raw)
			}
		}
		for _, w := range []wrong{
			{args: "bucket cat " + archive + " --topic nothing --partition 0", says: []string{`"nothing"`, "bucket ls"}},
			{args: "bucket cat " + archive + " --topic orders --partition 9", says: []string{"2 partitions"}},
		} {
			w.code = exitFailed
			w.check(t, command{})
		}
		s.stop()
		if out := (command{}).must(t, "bucket", "verify", archive, "--deep"); !strings.Contains(out, " 0 problems") || strings.Contains(out, "checksums of 0 B") {
			t.Errorf("verify: %s", out)
		}
	}
}

// Proves that wal repair shows its plan and changes nothing, repairs with
// --apply, and that the node serves every record of what the archive has filled
// (I4); without an archive just the damaged group's are gone (I3).
func TestWALRepair(t *testing.T) {
	t.Parallel()
	for _, ask := range []bool{true, false} {
		dir := lived(t)
		data := dir + "/data"
		file := onlyMatch(t, data+"/wal/*.wal")
		change(t, file, func(b []byte) []byte { b[3*4096+80] ^= 1; return b })
		args := []string{"wal", "repair", data}
		want := "rebuild"
		if ask {
			args, want = append(args, "--archive", "file://"+dir+"/archive"), "refill"
		}
		damaged, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		out := command{}.must(t, args...)
		for _, part := range []string{want, file, "12288", "nothing was changed"} {
			if !strings.Contains(out, part) {
				t.Errorf("no %q in %s", part, out)
			}
		}
		if now, err := os.ReadFile(file); err != nil || !slices.Equal(now, damaged) {
			t.Fatalf("a look has changed the log: %v", err)
		}
		var report struct {
			Action string `json:"action"`
			Kept   string `json:"kept"`
		}
		if err := json.Unmarshal([]byte(command{}.must(t, append(args, "--apply", "--json")...)), &report); err != nil || report.Action != want {
			t.Fatalf("%+v %v", report, err)
		}
		if old, err := os.ReadFile(filepath.Join(report.Kept, filepath.Base(file))); err != nil || !slices.Equal(old, damaged) {
			t.Errorf("the damaged file is not kept: %v", err)
		}
		if out := (command{}).must(t, "wal", "repair", data); !strings.Contains(out, "nothing: the log verifies") {
			t.Errorf("after the repair: %s", out)
		}
		s := devServe(t, dir)
		total := 0
		for p := range 2 {
			total += len(records(t, s.client().must(t, "replay", "orders", "--partition", fmt.Sprint(p))))
		}
		if total != 120 { // a stopped node has everything in its segment files too
			t.Errorf("%d records, want 120", total)
		}
		if r := (command{}).run("wal", "repair", data); r.code != exitFailed || !strings.Contains(r.err, "in use") {
			t.Errorf("beside a running node: %+v", r)
		}
	}
}
