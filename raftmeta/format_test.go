package raftmeta

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

var update = flag.Bool("update", false, "write the golden files of formats that have none yet")

// golden compares with a file that is kept for ever: -update creates one, and
// never changes one.
func golden(t *testing.T, name string, got []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", name)
	want, err := os.ReadFile(path)
	if os.IsNotExist(err) && *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return got
	}
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: written differently now; old nodes and exports would not be understood\n got %q\nwant %q", name, got, want)
	}
	return want
}

func goldenTopic() Topic {
	t := DefaultTopic("orders.v1")
	t.ID, t.CreatedMs = 0xabc, 1700000000000
	t.resolve()
	return t
}

func goldenCluster() Cluster {
	return Cluster{ID: "00000000000000c1", Generation: 1, Salt: Salt{1, 2, 3}, CreatedMs: 1700000000000}
}

func emptyState() *State {
	s := newState()
	s.cluster, s.index = goldenCluster(), 4
	return s
}

// goldenState goes through every op once, up to and including last.
func goldenState(t *testing.T, last op) *State {
	t.Helper()
	s := newState()
	for i, c := range goldenCommands(t) {
		if c.op() == opAdopt || c.op() > last {
			continue
		}
		if _, changed, err := c.apply(s, uint64(100+i)); err != nil || !changed {
			t.Fatalf("%s: changed %v, %v", c.op(), changed, err)
		}
		s.index = uint64(100 + i)
	}
	return s
}

func goldenCommands(t *testing.T) []command {
	t.Helper()
	other := goldenTopic()
	other.Name, other.ID = "gone", 0xdef
	settings := goldenTopic().TopicSettings
	settings.RetentionMs = 0
	_, export, err := emptyState().Export()
	if err != nil {
		t.Fatal(err)
	}
	return []command{
		&initCluster{goldenCluster()},
		&adopt{Generation: 2, Export: bytes.TrimSuffix(export, []byte("\n"))},
		&registerIncarnation{Node: "n1", Incarnation: 0xa1, Addresses: map[string]string{"http": "127.0.0.1:7942", "raft": "127.0.0.1:7943"}},
		&createTopic{Topic: goldenTopic(), Owner: "n1", OwnerIncarnation: 0xa1},
		&createTopic{Topic: other, Owner: "n1", OwnerIncarnation: 0xa1},
		&deleteTopic{ID: 0xdef, DeletedMs: 1700000000001},
		&setAssignment{Topic: 0xabc, Partition: 1, ExpectOwner: "n1", ExpectGeneration: 1,
			Next: Assignment{Owner: "n1", OwnerIncarnation: 0xa1, Generation: 2, PreviousEnd: 10, Start: 10 + 1<<32}},
		&putSetting{Key: "retention.check", Value: "<60 s> & \"more\""},
		&fenceIncarnation{Fenced{Incarnation: 0xb1, Node: "n2", FencedMs: 1700000000002}},
		&updateTopic{ID: 0xabc, ChangedIndex: 106, Settings: settings},
		&purgeTopic{ID: 0xdef},
		&retireIncarnation{Node: "n2", Incarnation: 0xb1, RetiredMs: 1700000000003},
	}
}

// Every command is written as it always was, and what was written always decodes.
func TestGoldenCommands(t *testing.T) {
	seen := map[op]bool{}
	for i, c := range goldenCommands(t) {
		b, err := encodeCommand(c)
		if err != nil {
			t.Fatal(err)
		}
		want := golden(t, fmt.Sprintf("command-v1-%02d-%s.bin", i, c.op()), b)
		back, err := decodeCommand(want)
		if err != nil || !reflect.DeepEqual(back, c) {
			t.Errorf("%s: decoded %+v, %v", c.op(), back, err)
		}
		seen[c.op()] = true
	}
	for o := opInitCluster; newCommand(o) != nil; o++ {
		if !seen[o] || o.String() == "unknown" {
			t.Errorf("op %d %s has no golden file", o, o)
		}
	}
}

// The export is written as it always was, decodes to the same state, and what
// decodes exports to the same bytes.
func TestGoldenExport(t *testing.T) {
	for name, s := range map[string]*State{"export-v1-empty.json": emptyState(), "export-v1.json": goldenState(t, opUpdateTopic),
		"export-v1-collected.json": goldenState(t, opRetireIncarnation)} {
		index, data, err := s.Export()
		if err != nil || index != s.Index() {
			t.Fatal(index, err)
		}
		want := golden(t, name, data)
		back, err := ParseExport(want)
		if err != nil {
			t.Fatal(name, err)
		}
		if _, again, err := back.Export(); err != nil || !bytes.Equal(again, want) {
			t.Errorf("%s: exports to\n%s\n%v", name, again, err)
		}
	}
}

// A log entry is stored as it always was.
func TestGoldenLogEntry(t *testing.T) {
	l := raft.Log{Index: 7, Term: 3, Type: raft.LogCommand, Data: []byte("data"), Extensions: []byte("ext")}
	b := make([]byte, logValueHeader+len(l.Data)+len(l.Extensions))
	encodeLog(b, &l)
	var back raft.Log
	if err := decodeLog(7, golden(t, "logentry-v1.bin", b), &back); err != nil || !reflect.DeepEqual(back, l) {
		t.Fatalf("%+v %v", back, err)
	}
	for n := range b {
		if n < logValueHeader+len(l.Data) {
			if err := decodeLog(7, b[:n], &back); !errcode.Is(err, errcode.Corrupt) {
				t.Fatalf("cut to %d: %v", n, err)
			}
		}
	}
	b[0] = 9
	wantCode(t, decodeLog(7, b, &back), errcode.UnsupportedVersion, "version 9")
}

// What is not an export of this version is refused by name or as corrupt.
func TestParseExportRefuses(t *testing.T) {
	_, data, _ := goldenState(t, opRetireIncarnation).Export()
	replaced := func(old, new string) string {
		if !strings.Contains(string(data), old) {
			t.Fatalf("%s is not in the export", old)
		}
		return strings.Replace(string(data), old, new, 1)
	}
	for name, c := range map[string]struct {
		in   string
		code errcode.Code
		text string
	}{
		"empty":            {"", errcode.Corrupt, "does not decode"},
		"cut":              {string(data[:len(data)/2]), errcode.Corrupt, "does not decode"},
		"more behind":      {string(data) + "{}", errcode.Corrupt, "does not decode"},
		"version":          {replaced(`"version":1`, `"version":2`), errcode.UnsupportedVersion, `"tidemark-meta" version 2; this build reads "tidemark-meta" version 1`},
		"format":           {replaced(`tidemark-meta`, `other`), errcode.UnsupportedVersion, `format "other"`},
		"field":            {replaced(`"settings":`, `"pins":[],"settings":`), errcode.UnsupportedVersion, `"pins"`},
		"topic field":      {replaced(`"failover":`, `"schema":"x","failover":`), errcode.UnsupportedVersion, `"schema"`},
		"no salt":          {replaced(goldenCluster().saltText(), strings.Repeat("0", 64)), errcode.Corrupt, "no salt"},
		"cluster id":       {replaced(`"00000000000000c1"`, `"c1"`), errcode.Corrupt, "cluster id"},
		"assignments":      {replaced(`"partitions":3`, `"partitions":4`), errcode.Corrupt, "4 partitions and 3 assignments"},
		"topic id":         {replaced(`"id":"0000000000000abc"`, `"id":"0000000000000def"`), errcode.Corrupt, "has the id or name of another"},
		"topic setting":    {replaced(`"compression":"zstd"`, `"compression":"lz4"`), errcode.Corrupt, "lz4"},
		"generation":       {replaced(`"generation":2,`, `"generation":0,`), errcode.Corrupt, "generation 0"},
		"node state":       {replaced(`"state":"active"`, `"state":"asleep"`), errcode.Corrupt, "asleep"},
		"empty setting":    {replaced(`"settings":{`, `"settings":{"k":"",`), errcode.Corrupt, "is empty"},
		"list is no list":  {replaced(`"deleted_topics":[`, `"deleted_topics":{"x":[`), errcode.Corrupt, "does not decode"},
		"salt is no hex":   {replaced(goldenCluster().saltText(), strings.Repeat("z", 64)), errcode.Corrupt, "does not decode"},
		"incarnation text": {replaced(`"00000000000000a1"`, `"a1"`), errcode.Corrupt, "16 lower-case"},
	} {
		_, err := ParseExport([]byte(c.in))
		if !errcode.Is(err, c.code) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v (%v), want %v with %q", name, err, errcode.Of(err), c.code, c.text)
		}
	}
	_, err := ParseExport(make([]byte, MaxExportBytes+1))
	wantCode(t, err, errcode.TooLarge, "at most")
}

func (c Cluster) saltText() string { b, _ := c.Salt.MarshalText(); return string(b) }

// I13: a million tiny wrong elements must not become a million large structs.
func TestParseExportIsBounded(t *testing.T) {
	_, data, _ := goldenState(t, opRetireIncarnation).Export()
	bomb := strings.Replace(string(data), `"topics":[`, `"topics":[`+strings.Repeat("{},", 1<<20), 1)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := ParseExport([]byte(bomb))
	runtime.ReadMemStats(&after)
	wantCode(t, err, errcode.Corrupt, "id 0")
	if took := after.TotalAlloc - before.TotalAlloc; took > 8*uint64(len(bomb)) {
		t.Fatalf("%d bytes of input took %d bytes of memory", len(bomb), took)
	}
}

// Topic.Validate reports every bad field at once, at, below and above each bound.
func TestTopicValidate(t *testing.T) {
	bad := Topic{Name: "a/b", TopicSettings: TopicSettings{RetentionMs: -1, RetentionBytes: -1, LocalRetentionMs: -1, LocalRetentionBytes: -1,
		MaxInFlightPerPartition: MaxInFlight + 1, DefaultAck: "maybe", Failover: "no", Compression: "lz4"}}
	err := bad.Validate()
	wantCode(t, err, errcode.InvalidArgument, "retention_ms: -1 is not in")
	fields := err.(*errcode.Error).Facts["fields"].(map[string]string)
	raw, _ := json.Marshal(bad.TopicSettings)
	var settings map[string]any
	_ = json.Unmarshal(raw, &settings)
	for name := range settings {
		if fields[name] == "" {
			t.Errorf("%s is not reported", name)
		}
	}
	if fields["name"] == "" || fields["partitions"] == "" || len(fields) != len(settings)+2 {
		t.Errorf("fields %v", fields)
	}
	for _, c := range []struct {
		ok     bool
		change func(*Topic)
	}{
		{true, func(t *Topic) {}},
		{true, func(t *Topic) { t.Partitions = 1 }},
		{false, func(t *Topic) { t.Partitions = 0 }},
		{true, func(t *Topic) { t.Partitions = 1024 }},
		{false, func(t *Topic) { t.Partitions = 1025 }},
		{true, func(t *Topic) { t.VisibilityTimeoutMs = 1000 }},
		{false, func(t *Topic) { t.VisibilityTimeoutMs = 999 }},
		{true, func(t *Topic) { t.VisibilityTimeoutMs = 43_200_000 }},
		{false, func(t *Topic) { t.VisibilityTimeoutMs = 43_200_001 }},
		{true, func(t *Topic) { t.MaxRecordBytes = 1 }},
		{false, func(t *Topic) { t.MaxRecordBytes = 0 }},
		{true, func(t *Topic) { t.MaxRecordBytes = 16 << 20 }},
		{false, func(t *Topic) { t.MaxRecordBytes = 16<<20 + 1 }},
		{true, func(t *Topic) { t.RetentionMs = MaxRetentionMs }},
		{false, func(t *Topic) { t.RetentionMs = MaxRetentionMs + 1 }},
		{true, func(t *Topic) { t.Failover = FailoverAutomatic }},
		{false, func(t *Topic) { t.Name = "" }},
	} {
		tp := DefaultTopic("t")
		c.change(&tp)
		if err := tp.Validate(); (err == nil) != c.ok {
			t.Errorf("%+v: %v", tp, err)
		}
	}
}

// Commands of any bytes decode or are refused, and what decodes encodes to
// something that decodes to the same; applying it never panics.
func FuzzDecodeCommand(f *testing.F) {
	files, _ := filepath.Glob("testdata/command-*.bin")
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodeCommand(b)
		if err != nil {
			if code := errcode.Of(err); code != errcode.Corrupt && code != errcode.UnsupportedVersion && code != errcode.InvalidArgument {
				t.Fatalf("%v: %v", code, err)
			}
			return
		}
		enc, err := encodeCommand(c)
		if err != nil {
			return // an adopt with an export that is no JSON object cannot be here; too large can
		}
		back, err := decodeCommand(enc)
		if err != nil {
			t.Fatalf("%q decoded, its encoding %q does not: %v", b, enc, err)
		}
		again, err := encodeCommand(back)
		if err != nil || !bytes.Equal(enc, again) {
			t.Fatalf("%q and %q", enc, again)
		}
		s := newState()
		if c.op() != opInitCluster && c.op() != opAdopt {
			s = fuzzState(t)
		}
		_, before, _ := s.Export()
		_, changed, err := c.apply(s, 500)
		if _, after, _ := s.Export(); (err != nil || !changed) && !bytes.Equal(before, after) {
			t.Fatalf("%q changed the state although it says it did not (%v)", b, err)
		}
		if changed {
			s.index = 500
			_, data, err := s.Export()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := ParseExport(data); err != nil && c.op() != opCreateTopic && c.op() != opUpdateTopic {
				t.Fatalf("%q gives a state that cannot be read back: %v", b, err)
			}
		}
	})
}

func fuzzState(t *testing.T) *State {
	t.Helper()
	data, err := os.ReadFile("testdata/export-v1.json")
	if err != nil {
		t.Fatal(err)
	}
	s, err := ParseExport(data)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Exports of any bytes parse or are refused; what parses is canonical after
// one export.
func FuzzParseExport(f *testing.F) {
	files, _ := filepath.Glob("testdata/export-*.json")
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseExport(b)
		if err != nil {
			if code := errcode.Of(err); code != errcode.Corrupt && code != errcode.UnsupportedVersion {
				t.Fatalf("%v: %v", code, err)
			}
			return
		}
		_, first, err := s.Export()
		if err != nil {
			t.Fatal(err)
		}
		back, err := ParseExport(first)
		if err != nil {
			t.Fatalf("%s: %v", first, err)
		}
		if _, second, err := back.Export(); err != nil || !bytes.Equal(first, second) {
			t.Fatalf("%s\n%s\n%v", first, second, err)
		}
	})
}

// Snapshot headers of any bytes decode or are refused.
func FuzzSnapshotHeader(f *testing.F) {
	f.Add([]byte(snapshotMagic + "\x00\x00\x00\x02{}"))
	f.Add([]byte("TMRSNAP\x02\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := readSnapshotHeader(bytes.NewReader(b)); err != nil {
			if code := errcode.Of(err); code != errcode.Corrupt && code != errcode.UnsupportedVersion {
				t.Fatalf("%v: %v", code, err)
			}
		}
	})
}

// Log values of any bytes decode or are refused.
func FuzzDecodeLog(f *testing.F) {
	if b, err := os.ReadFile("testdata/logentry-v1.bin"); err == nil {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var l raft.Log
		if decodeLog(1, b, &l) == nil {
			out := make([]byte, logValueHeader+len(l.Data)+len(l.Extensions))
			encodeLog(out, &l)
			if len(out) != len(b) || !bytes.Equal(out, b) {
				t.Fatalf("%x became %x", b, out)
			}
		}
	})
}

// The check of Pebble's files reads any bytes; a prefix of a good file is never
// called damaged: that is what a crash leaves.
func FuzzFindDamage(f *testing.F) {
	f.Add([]byte{0x87, 97, 94, 163, 22, 0, 5, 2, 0, 0, 0, 10, 0}, uint32(2), true)
	f.Add(make([]byte, recordBlock+20), uint32(2), false)
	f.Fuzz(func(t *testing.T, b []byte, number uint32, isLog bool) {
		var log *uint32
		if isLog {
			log = &number
		}
		at, err := findDamage(bytes.NewReader(b), log)
		if err != nil || at >= int64(len(b)) {
			t.Fatalf("%d of %d bytes: %v", at, len(b), err)
		}
	})
}
