package queue

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files of the current format versions")

// golden compares b with a file of testdata, which holds it in hexadecimal.
func golden(t *testing.T, name string, b []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(path, []byte(hex.EncodeToString(b)+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b, want) {
		t.Fatalf("%s: encoding has changed without a new version\ngot  %x\nwant %x", name, b, want)
	}
	return want
}

func sampleState() State {
	return State{
		Group: "billing.v2", Committed: 1 << 33,
		Ranges:   [][2]int64{{1<<33 + 1, 1<<33 + 2}, {1<<33 + 5, 1<<33 + 1000}},
		Returned: []Returned{{1 << 33, 3, 0}, {1<<33 + 3, 1, 1_785_000_000_123}},
		Leased: []Leased{
			{1<<33 + 2, 1, 1_785_000_000_000_001, 1_785_000_000_000_001},
			{1<<33 + 4, math.MaxUint32, 1_785_000_000_000_001, 1_785_000_600_000_000},
			{1<<33 + 1000, 7, 1_785_000_000_000_001, 1_785_000_000_000_000},
		},
	}
}

// Files of version 1 decode for ever, and today's encoder writes the same.
func TestGoldenState(t *testing.T) {
	s := sampleState()
	b := golden(t, "state-v1.hex", s.Append(nil))
	back, err := DecodeState(b)
	if err != nil || !reflect.DeepEqual(back, s) {
		t.Fatalf("%v %+v", err, back)
	}
	all := []State{{Group: "default"}, s}
	b = golden(t, "states-v1.hex", AppendStates(nil, all))
	many, err := DecodeStates(b)
	if err != nil || !reflect.DeepEqual(many, all) {
		t.Fatalf("%v %+v", err, many)
	}
}

func TestGoldenOps(t *testing.T) {
	b := appendSettle(nil, 1<<33, 1<<33+300)
	b = appendReturn(b, 5, 3, 1_785_000_000_123)
	b = appendSeek(b, 77)
	b = appendDelete(b)
	b = appendSkip(b, 0, 1)
	b = appendExtend(b, 9, 2, 1_785_000_000_000_001, 1_785_000_600_000_000)
	b = appendCut(b, 12)
	b = golden(t, "ops-v1.hex", b)
	var got []op
	if err := decodeOps(b, func(o op) error { got = append(got, o); return nil }); err != nil {
		t.Fatal(err)
	}
	want := []op{
		{kind: opSettle, from: 1 << 33, to: 1<<33 + 300},
		{kind: opReturn, from: 5, attempts: 3, dueMS: 1_785_000_000_123},
		{kind: opSeek, from: 77},
		{kind: opDelete},
		{kind: opSkip, from: 0, to: 1},
		{kind: opExtend, from: 9, attempts: 2, expiry: 1_785_000_000_000_001, deadline: 1_785_000_600_000_000},
		{kind: opCut, from: 12},
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got  %+v\nwant %+v", got, want)
	}
}

// A version or an operation that this build does not know is refused by name;
// so is everything that cannot have been written.
func TestDecodersRefuse(t *testing.T) {
	good := sampleState()
	enc := good.Append(nil)
	uv := func(vs ...uint64) []byte {
		b := []byte{stateVersion, 1, 'g'}
		for _, v := range vs {
			for v >= 0x80 {
				b = append(b, byte(v)|0x80)
				v >>= 7
			}
			b = append(b, byte(v))
		}
		return b
	}
	for name, c := range map[string]struct {
		b    []byte
		code errcode.Code
	}{
		"empty":                {nil, errcode.Corrupt},
		"version 2":            {append([]byte{2}, enc[1:]...), errcode.UnsupportedVersion},
		"trailing byte":        {append(bytes.Clone(enc), 0), errcode.Corrupt},
		"name of 201":          {append([]byte{1, 201, 1}, make([]byte, 300)...), errcode.Corrupt},
		"name with a slash":    {[]byte{1, 1, '/', 0, 0, 0, 0}, errcode.Corrupt},
		"long form":            {[]byte{1, 1, 'g', 0x80, 0x00, 0, 0, 0}, errcode.Corrupt},
		"offset over 63 bits":  {uv(1<<63, 0, 0, 0), errcode.Corrupt},
		"declared ranges":      {uv(0, 1<<40, 0, 0), errcode.Corrupt},
		"range at committed":   {uv(5, 1, 0, 1, 0, 0), errcode.Corrupt},
		"touching ranges":      {uv(5, 2, 1, 1, 0, 1, 0, 0), errcode.Corrupt},
		"empty range":          {uv(5, 1, 1, 0, 0, 0), errcode.Corrupt},
		"range over the end":   {uv(5, 1, 1, math.MaxInt64, 0, 0), errcode.Corrupt},
		"returned and settled": {uv(5, 1, 1, 1, 1, 1, 1, 0, 0), errcode.Corrupt},
		"returned twice":       {uv(5, 0, 2, 0, 1, 0, 0, 1, 0, 0), errcode.Corrupt},
		"leased and returned":  {uv(5, 0, 1, 3, 1, 0, 1, 3, 1, 9, 0), errcode.Corrupt},
		"lease attempt 0":      {uv(5, 0, 0, 1, 3, 0, 9, 0), errcode.Corrupt},
		"lease before time":    {uv(5, 0, 0, 1, 3, 1, 0, 1), errcode.Corrupt},
	} {
		if s, err := DecodeState(c.b); !errcode.Is(err, c.code) {
			t.Errorf("%s: %v, %+v", name, err, s)
		}
	}
	for n := range enc {
		if _, err := DecodeState(enc[:n]); err == nil {
			t.Errorf("cut to %d of %d bytes: accepted", n, len(enc))
		}
	}
	for name, c := range map[string]struct {
		b    []byte
		code errcode.Code
	}{
		"empty":         {nil, errcode.Corrupt},
		"version 9":     {[]byte{9, 4}, errcode.UnsupportedVersion},
		"operation 200": {[]byte{1, 200}, errcode.UnsupportedVersion},
		"operation 0":   {[]byte{1, 0}, errcode.UnsupportedVersion},
		"cut":           {appendSettle(nil, 1000, 1001)[:3], errcode.Corrupt},
		"empty range":   {[]byte{1, byte(opSettle), 5, 0}, errcode.Corrupt},
		"attempts":      {[]byte{1, byte(opReturn), 5, 0xff, 0xff, 0xff, 0xff, 0x1f, 0}, errcode.Corrupt},
	} {
		if err := decodeOps(c.b, func(op) error { return nil }); !errcode.Is(err, c.code) {
			t.Errorf("ops %s: %v", name, err)
		}
	}
	if _, err := DecodeStates([]byte{1, 200, 1, 0}); !errcode.Is(err, errcode.Corrupt) {
		t.Errorf("states with a length over the end: %v", err)
	}
	one := (&State{Group: "g"}).Append(nil)
	many := []byte{stateVersion}
	for range MaxGroups + 1 {
		many = append(append(many, byte(len(one))), one...)
	}
	if _, err := DecodeStates(many); !errcode.Is(err, errcode.Corrupt) {
		t.Errorf("%d states: %v", MaxGroups+1, err)
	}
}

// Fifty thousand single-record holes stay below 200 KB, and the largest state
// that the bounds allow below what one frame of a move carries (I12).
func TestStateSize(t *testing.T) {
	build := func(ranges, returned int) State {
		s := State{Group: strings.Repeat("g", broker.MaxNameLen), Committed: 1 << 40}
		off := s.Committed
		for range ranges {
			s.Ranges = append(s.Ranges, [2]int64{off + 1, off + 2})
			off += 2
		}
		for range returned {
			off++
			s.Returned = append(s.Returned, Returned{off, 100, 1_785_000_000_000})
		}
		return s
	}
	s := build(50_000, 0)
	if n := len(s.Append(nil)); n > 200<<10 {
		t.Errorf("50,000 holes take %d bytes", n)
	}
	s = build(MaxRanges+DefaultMaxInFlight, MaxTracked+DefaultMaxInFlight)
	if n := len(s.Append(nil)); n > 16<<20 {
		t.Errorf("the largest state takes %d bytes", n)
	}
}

// What decodes encodes to the same bytes: there is one encoding of a state.
func FuzzDecodeState(f *testing.F) {
	s := sampleState()
	f.Add(s.Append(nil))
	f.Add((&State{Group: "default"}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeState(b)
		if err != nil {
			return
		}
		if again := s.Append(nil); !bytes.Equal(again, b) {
			t.Fatalf("%+v\nin  %x\nout %x", s, b, again)
		}
		// And it restores to itself, as long as nothing in it is due.
		e := New(Options{})
		defer e.Close()
		if err := e.Attach(part(0), PartitionConfig{Replay: true}, []State{s}); err != nil {
			t.Fatal(err)
		}
		back, _ := e.Snapshot(part(0))
		if len(back) != 1 || back[0].Committed != s.Committed || !reflect.DeepEqual(back[0].Ranges, s.Ranges) {
			t.Fatalf("restored %+v from %+v", back, s)
		}
	})
}

// Any bytes as a journal entry: applied whole or refused, and what the engine
// holds afterwards is a state that encodes and decodes.
func FuzzApply(f *testing.F) {
	f.Add(appendSettle(nil, 3, 9))
	f.Add(appendCut(appendExtend(appendReturn(appendSkip(appendSeek(nil, 4), 6, 7), 5, 2, 99), 8, 1, 50, 60), 20))
	f.Add(appendDelete(nil))
	f.Fuzz(func(t *testing.T, ops []byte) {
		e := New(Options{})
		defer e.Close()
		if err := e.Attach(part(0), PartitionConfig{HighWatermark: 10, Replay: true}, nil); err != nil {
			t.Fatal(err)
		}
		var whole []byte
		bad := decodeOps(ops, func(o op) error { whole = append(whole, reencode(o)...); return nil })
		err := e.Apply(part(0), "g", ops)
		if (err == nil) != (bad == nil) {
			t.Fatalf("applied %v, decoded %v", err, bad)
		}
		if bad == nil && !bytes.Equal(whole, ops[1:]) {
			t.Fatalf("in  %x\nout %x", ops[1:], whole)
		}
		states, _ := e.Snapshot(part(0))
		back, err := DecodeStates(AppendStates(nil, states))
		if err != nil || !reflect.DeepEqual(back, states) {
			t.Fatalf("%v: %+v, %+v", err, states, back)
		}
		if err := e.Serve(part(0)); err != nil {
			t.Fatal(err)
		}
		if states, _ = e.Snapshot(part(0)); len(states) > 0 && states[0].Committed > 10 {
			t.Fatalf("served beyond the log: %+v", states)
		}
	})
}

func reencode(o op) []byte {
	var b []byte
	switch o.kind {
	case opSettle:
		b = appendSettle(b, o.from, o.to)
	case opSkip:
		b = appendSkip(b, o.from, o.to)
	case opReturn:
		b = appendReturn(b, o.from, o.attempts, o.dueMS)
	case opSeek:
		b = appendSeek(b, o.from)
	case opDelete:
		b = appendDelete(b)
	case opExtend:
		b = appendExtend(b, o.from, o.attempts, o.expiry, o.deadline)
	case opCut:
		b = appendCut(b, o.from)
	}
	return b[1:]
}

// States that the engine can hold survive their encoding.
func TestStateRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := State{Group: "g", Committed: rapid.Int64Range(0, 1<<50).Draw(rt, "committed")}
		off := s.Committed
		for i := range rapid.IntRange(0, 30).Draw(rt, "n") {
			step := rapid.Int64Range(1, 1<<rapid.IntRange(1, 40).Draw(rt, "log")).Draw(rt, "step")
			switch kind := rapid.IntRange(0, 2).Draw(rt, "kind"); kind {
			case 0:
				s.Ranges = append(s.Ranges, [2]int64{off + 1, off + 1 + step})
				off += step + 2
			case 1:
				s.Returned = append(s.Returned, Returned{off, rapid.Uint32().Draw(rt, "attempt"), int64(i) * step})
				off += step
			case 2:
				s.Leased = append(s.Leased, Leased{off, 1 + rapid.Uint32Range(0, 9).Draw(rt, "attempt"), step, int64(i)})
				off += step
			}
		}
		back, err := DecodeState(s.Append(nil))
		if err != nil || !reflect.DeepEqual(back, s) {
			rt.Fatalf("%v\ngot  %+v\nwant %+v", err, back, s)
		}
	})
}

func ExampleState_Append() {
	s := State{Group: "default", Committed: 7, Ranges: [][2]int64{{9, 12}}, Returned: []Returned{{Offset: 8, Attempt: 1}}}
	fmt.Printf("%x\n", s.Append(nil))
	// Output: 010764656661756c74070102030101010000
}
