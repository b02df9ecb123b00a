package manifest

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

var addGolden = flag.Bool("add-golden", false, "write golden files that do not exist yet")

func goldenEntry() *Entry {
	seg := testSegment(100, 110, 3, 0xbeef)
	out := testSegment(0, 20, 3, 0xcafe)
	return &Entry{
		Partition: testPID, Seq: 7, Owner: Owner{ClusterGeneration: 2, Generation: 3, Incarnation: 0xfedcba9876543210, Node: "node-a"},
		Nonce: 0x0123456789abcdef, TimeMS: 1_700_000_000_123, Previous: Hash{1, 2, 3}, Checkpoint: 4,
		Ops: []Op{
			{Add: &seg},
			{Replace: &Replace{Inputs: []string{testSegment(0, 10, 3, 1).Key(), testSegment(10, 20, 3, 2).Key()}, Output: out}},
			{Trim: &Trim{Start: 10, Dropped: Totals{1, 10, 1320}}},
			{Gap: &Gap{From: 110, Next: 110 + UncleanSkip, Reason: ReasonUnclean}},
			{Fence: &Fence{ClusterGeneration: 2, Generation: 3, Incarnation: 0xfedcba9876543210, PreviousEnd: 110, Start: 110 + UncleanSkip}},
		},
	}
}

func goldenCheckpoint() *Entry {
	segs := []Segment{testSegment(40, 50, 1, 5), testSegment(50, math.MaxInt64-1, 1, 6)}
	segs[1].Records, segs[1].Bytes, segs[1].FooterPosition, segs[1].DataLength = 3, 1000, 840, 700
	segs[1].MinTimestamp, segs[1].MaxTimestamp, segs[1].MinAppend, segs[1].MaxAppend = -5, 5, 0, 9
	return &Entry{
		Partition: testPID, Seq: 9, Owner: testOwner(1), Nonce: 5, TimeMS: 6, Previous: Hash{9}, Checkpoint: 9,
		Ops: []Op{
			{Checkpoint: &Checkpoint{
				Start: 5, End: math.MaxInt64 - 1, Totals: Totals{4, 33, 4000},
				Pages:    []PageRef{{Base: 0, Next: 40, Totals: Totals{4, 40, 5000}, MaxTimestamp: 40000, MaxAppend: 40000, SHA256: Hash{7}}},
				Segments: segs, Gaps: []Gap{}, Fences: []Fence{{ClusterGeneration: 1, Generation: 1, Incarnation: 0x1001, PreviousEnd: 0, Start: 0}},
			}},
			{Trim: &Trim{Start: 6, Dropped: Totals{}}},
		},
	}
}

func goldenPage() *Page {
	return &Page{Partition: testPID, Segments: []Segment{testSegment(0, 10, 1, 1), testSegment(10, 20, 1, 2), testSegment(30, 40, 1, 3)}}
}

func golden(t *testing.T, name string, stored []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", "golden", name)
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) && *addGolden {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, stored, 0o644); err != nil {
			t.Fatal(err)
		}
		return stored
	}
	if err != nil {
		t.Fatalf("%v (run with -add-golden to write a new one; existing ones are kept for ever)", err)
	}
	return b
}

// Stored objects of every version decode for ever, to the same values, and
// encoding those gives the same JSON and so the same links.
func TestGolden(t *testing.T) {
	for name, want := range map[string]*Entry{"v1-entry.json.zst": goldenEntry(), "v1-checkpoint.json.zst": goldenCheckpoint()} {
		stored, sum, err := EncodeEntry(want)
		if err != nil {
			t.Fatal(err)
		}
		b := golden(t, name, stored)
		got, gotSum, err := DecodeEntry(b)
		if err != nil || !reflect.DeepEqual(got, want) || gotSum != sum {
			t.Errorf("%s: %+v\nwant %+v\nhash %s, want %s: %v", name, got, want, gotSum, sum, err)
		}
	}
	stored, ref, err := EncodePage(goldenPage())
	if err != nil {
		t.Fatal(err)
	}
	got, gotRef, err := DecodePage(golden(t, "v1-page.json.zst", stored))
	if err != nil || !reflect.DeepEqual(got, goldenPage()) || gotRef != ref {
		t.Errorf("page %+v %+v: %v", got, gotRef, err)
	}
	// The hashes are part of the format: links and page names hold them.
	for _, x := range []struct{ what, got, want string }{
		{"page key", PageKey(testPID, ref.Base, ref.SHA256), "t/0000000000000abc/00000000000000000003/p/00000000000000000000-" + hex.EncodeToString(ref.SHA256[:4]) + ".json.zst"},
	} {
		if x.got != x.want {
			t.Errorf("%s %s, want %s", x.what, x.got, x.want)
		}
	}
}

// compressRaw stores JSON that no encoder here writes.
func compressRaw(raw string) []byte {
	enc, _ := coders()
	return enc.EncodeAll([]byte(raw), nil)
}

// What is not exactly an entry is refused, a newer version by its name, and
// nothing is allocated because an object says so.
func TestDecodeRefuses(t *testing.T) {
	stored, _, err := EncodeEntry(goldenEntry())
	if err != nil {
		t.Fatal(err)
	}
	raw, err := JSON(stored)
	if err != nil {
		t.Fatal(err)
	}
	good := string(raw)
	edit := func(old, new string) []byte {
		if !strings.Contains(good, old) {
			t.Fatalf("the golden entry has no %q", old)
		}
		return compressRaw(strings.Replace(good, old, new, 1))
	}
	for name, x := range map[string]struct {
		stored []byte
		code   errcode.Code
		text   string
	}{
		"newer version":        {edit(`"version":1`, `"version":3`), errcode.UnsupportedVersion, "version 3"},
		"skip in version 1":    {edit(`"ops":`, `"skips":1,"ops":`), errcode.Corrupt, "skips"},
		"version 2, no skip":   {edit(`"version":1`, `"version":2`), errcode.Corrupt, "skips"},
		"no version":           {edit(`"version":1,`, ``), errcode.Corrupt, "version"},
		"unknown field":        {edit(`"seq":7`, `"seq":7,"color":"red"`), errcode.Corrupt, "color"},
		"unknown operation":    {edit(`{"trim"`, `{"erase":{},"trim"`), errcode.Corrupt, "erase"},
		"two operations":       {edit(`{"trim"`, `{"gap":{"from":1,"next":2,"reason":"x"},"trim"`), errcode.Corrupt, "2 of its fields"},
		"no operation":         {edit(`{"trim":{"start":10,"dropped":{"segments":1,"records":10,"bytes":1320}}}`, `{}`), errcode.Corrupt, "0 of its fields"},
		"seq 0":                {edit(`"seq":7`, `"seq":0`), errcode.Corrupt, "entry 0"},
		"checkpoint ahead":     {edit(`"checkpoint":4`, `"checkpoint":8`), errcode.Corrupt, "last checkpoint"},
		"claims a checkpoint":  {edit(`"checkpoint":4`, `"checkpoint":7`), errcode.Corrupt, "last checkpoint"},
		"foreign segment key":  {edit(`"key":"t/0000000000000abc/`, `"key":"t/0000000000000abd/`), errcode.Corrupt, "does not belong"},
		"key out of the path":  {edit(`"key":"t/0000000000000abc/`, `"key":"../0000000000000abc/`), errcode.Corrupt, "malformed"},
		"negative trim":        {edit(`"start":10`, `"start":-1`), errcode.Corrupt, "trim"},
		"gap backwards":        {edit(`"from":110`, `"from":99999999999999`), errcode.Corrupt, "gap"},
		"start below end":      {edit(`"previous_end":110`, `"previous_end":99999999999999`), errcode.Corrupt, "fence"},
		"node out of the path": {edit(`"node":"node-a"`, `"node":".."`), errcode.Corrupt, "reserved"},
		"no generation":        {edit(`"generation":3`, `"generation":0`), errcode.Corrupt, "generation"},
		"two values":           {compressRaw(good + good), errcode.Corrupt, ""},
		"not JSON":             {compressRaw("hello"), errcode.Corrupt, ""},
		"not zstd":             {[]byte(good), errcode.Corrupt, "zstd"},
		"nothing":              {nil, errcode.Corrupt, "zstd"},
		"two frames":           {append(bytes.Clone(stored), stored...), errcode.Corrupt, ""},
		"bomb":                 {compressRaw(`{"version":1,"node":"` + strings.Repeat("a", 8<<20) + `"}`), errcode.Corrupt, "over the bound"},
	} {
		e, _, err := DecodeEntry(x.stored)
		if !errcode.Is(err, x.code) || e != nil || !strings.Contains(err.Error(), x.text) {
			t.Errorf("%s: %v, want %s with %q", name, err, x.code, x.text)
		}
	}
	for cut := range len(stored) {
		if _, _, err := DecodeEntry(stored[:cut]); err == nil {
			t.Fatalf("accepted the first %d of %d bytes", cut, len(stored))
		}
	}
}

// Keys are exactly as documented, and read back to what they were made of.
func TestKeys(t *testing.T) {
	pid := broker.PartitionID{Topic: 0xabc, Partition: 12}
	at := time.Date(2026, 11, 29, 14, 30, 59, 999, time.UTC)
	for got, want := range map[string]string{
		ClusterKey(3):                        "cluster/00000000000000000003",
		MetaKey(3, math.MaxUint64):           "meta/00000000000000000003-18446744073709551615.json.zst",
		EntryKey(pid, 9):                     "t/0000000000000abc/00000000000000000012/m/00000000000000000009.json.zst",
		PageKey(pid, 5, Hash{0xde, 0xad, 1}): "t/0000000000000abc/00000000000000000012/p/00000000000000000005-dead0100.json.zst",
		SegmentKey(pid, 5, 17, 3, 0xbeef):    "t/0000000000000abc/00000000000000000012/s/00000000000000000005-00000000000000000017-00000003-0000beef.seg",
		WALOpenKey("n1.dc-a", 0xf):           "wal/n1.dc-a/000000000000000f/OPEN",
		WALFenceKey("n1", 0xf):               "wal/n1/000000000000000f/FENCE",
		WALKey("n1", 0xf, 7, math.MaxUint64): "wal/n1/000000000000000f/00000000000000000007-18446744073709551615.ship",
		StateKey("n1", 0xf, 7):               "state/n1/000000000000000f/00000000000000000007.state.zst",
		SnapshotKey(at, 0xa):                 "snap/20261129t143059z-0000000a.json",
		TombstoneKey(0xabc):                  "x/0000000000000abc",
	} {
		if got != want {
			t.Errorf("key %s, want %s", got, want)
		}
		k, err := ParseKey(got)
		if err != nil || k.String() != got || k.Kind.String() == "unknown" {
			t.Errorf("parse %s: %+v %v", got, k, err)
		}
	}
	for _, bad := range []string{
		"", "/", "cluster/3", "cluster/0000000000000000000a", "cluster/-0000000000000000003", "cluster/99999999999999999999", "cluster/00000000000000000003/",
		"/cluster/00000000000000000003", "t/0000000000000ABC/00000000000000000012/m/00000000000000000009.json.zst",
		"t/0000000000000abc/00000000000000000012/m/00000000000000000000.json.zst", "t/0000000000000abc/12/m/00000000000000000009.json.zst",
		"t/0000000000000abc/00000000004294967296/m/00000000000000000009.json.zst",
		"t/0000000000000abc/00000000000000000012/s/00000000000000000017-00000000000000000005-00000003-0000beef.seg",
		"t/0000000000000abc/00000000000000000012/s/09223372036854775807-09223372036854775808-00000003-0000beef.seg",
		"wal/N1/000000000000000f/OPEN", "wal/../000000000000000f/OPEN", "wal/n1/000000000000000f/open", "wal/n1/f/OPEN",
		"wal/n1/000000000000000f/00000000000000000007-00000000000000000007.ship", "snap/20261329t143059z-0000000a.json", "snap/20261129t143059.5z-0000000a.json",
		"x/abc", "x/0000000000000abc.json", strings.Repeat("a/", 400),
	} {
		if k, err := ParseKey(bad); !errcode.Is(err, errcode.InvalidArgument) {
			t.Errorf("%q parsed as %+v, %v", bad, k, err)
		}
	}
}

// Whatever an entry decodes to encodes and decodes to the same.
func FuzzDecodeEntry(f *testing.F) {
	for _, e := range []*Entry{goldenEntry(), goldenCheckpoint()} {
		stored, _, err := EncodeEntry(e)
		if err != nil {
			f.Fatal(err)
		}
		raw, err := JSON(stored)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(stored)
		f.Add(raw) // the fuzzer changes JSON better than compressed JSON
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if json.Valid(b) {
			b = compressRaw(string(b))
		}
		e, _, err := DecodeEntry(b)
		if err != nil {
			return
		}
		stored, sum, err := EncodeEntry(e)
		if err != nil {
			t.Fatal(err)
		}
		again, sum2, err := DecodeEntry(stored)
		if err != nil || sum != sum2 || !reflect.DeepEqual(e, again) {
			t.Fatalf("%+v\nthen %+v: %v", e, again, err)
		}
		if _, err := newState(e.Partition).apply(e, sum, len(stored)); err != nil && errcode.Is(err, errcode.Internal) {
			t.Fatal(err)
		}
	})
}

// Pages as entries.
func FuzzDecodePage(f *testing.F) {
	stored, _, err := EncodePage(goldenPage())
	if err != nil {
		f.Fatal(err)
	}
	raw, err := JSON(stored)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Fuzz(func(t *testing.T, b []byte) {
		if json.Valid(b) {
			b = compressRaw(string(b))
		}
		p, _, err := DecodePage(b)
		if err != nil {
			return
		}
		stored, ref, err := EncodePage(p)
		if err != nil {
			t.Fatal(err)
		}
		again, ref2, err := DecodePage(stored)
		if err != nil || ref != ref2 || !reflect.DeepEqual(p, again) {
			t.Fatalf("%+v\nthen %+v: %v", p, again, err)
		}
	})
}

// A key that parses is one that the builders write.
func FuzzParseKey(f *testing.F) {
	f.Add("cluster/00000000000000000003")
	f.Add("t/0000000000000abc/00000000000000000012/s/00000000000000000005-00000000000000000017-00000003-0000beef.seg")
	f.Add("wal/n1/000000000000000f/00000000000000000007-00000000000000000009.ship")
	f.Add("snap/20261129t143059z-0000000a.json")
	f.Fuzz(func(t *testing.T, key string) {
		if k, err := ParseKey(key); err == nil && k.String() != key {
			t.Fatalf("%q reads as %q", key, k)
		}
	})
}
