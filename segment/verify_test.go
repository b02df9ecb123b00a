package segment

import (
	"bytes"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Flipping any bit of a sealed segment is noticed by Verify and by Adopt.
func TestVerifyNoticesEveryByte(t *testing.T) {
	raw, in, _ := sealedSegment(t, 7)
	step := max(1, len(raw)/700)
	for i := 0; i < len(raw); i++ {
		if i < int(in.DataLength) && i%step != 0 {
			continue // data bytes by sample; index and footer each
		}
		b := bytes.Clone(raw)
		b[i] ^= 1 << (i % 8)
		rep, err := Verify("s", bytes.NewReader(b), in.Bytes, false)
		if err != nil || rep.Err() == nil {
			t.Fatalf("byte %d: %v, not noticed", i, err)
		}
	}
	for _, n := range []int{0, 1, FooterSize - 1, FooterSize, len(raw) - 1} {
		rep, err := Verify("s", bytes.NewReader(raw[:n]), int64(n), false)
		if err != nil || rep.Err() == nil {
			t.Fatalf("cut to %d: %v", n, err)
		}
	}
	if _, err := Verify("s", bytes.NewReader(raw[:len(raw)-1]), in.Bytes, false); !errcode.Is(err, errcode.Storage) {
		t.Fatalf("a failed read is reported as %v", err)
	}
}

// One bit flipped in batch 3 of 10 is reported with file, position and offset,
// by Verify, Adopt and by reading; the nine others are still served (B35).
func TestFlippedBatchIsLoud(t *testing.T) {
	raw, in, batches := sealedSegment(t, 8)
	at := len(batches[0]) + len(batches[1])
	raw[at+len(batches[2])-1] ^= 4
	rep, err := Verify("p/100.seg", bytes.NewReader(raw), in.Bytes, true)
	if err != nil {
		t.Fatal(err)
	}
	third := headerOf(t, batches[2])
	if p := rep.Problems[0]; p.File != "p/100.seg" || p.Position != int64(at) || p.Offset != third.BaseOffset || rep.Batches != 9 {
		t.Fatalf("%+v", rep)
	}
	wantCode(t, rep.Err(), errcode.Corrupt)
	r, _, err := OpenReader("p/100.seg", bytes.NewReader(raw), in.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range batches {
		got, _, err := r.ReadBatch(r.Index().At(i), nil)
		if i == 2 {
			wantCode(t, err, errcode.Corrupt)
		} else if err != nil || !bytes.Equal(got, b) {
			t.Fatalf("batch %d: %v", i, err)
		}
	}
	s := r.Scan(0, nil)
	for range 2 {
		if _, _, err := s.Next(); err != nil {
			t.Fatal(err)
		}
	}
	_, _, err = s.Next()
	wantCode(t, err, errcode.Corrupt)
	if _, _, again := s.Next(); !errcode.Is(again, errcode.Corrupt) || s.Pos() != int64(at) {
		t.Fatalf("reading went on behind the damage: %v at %d", again, s.Pos())
	}
	fs := newFS(t)
	writeFile(t, fs, segPath(), raw)
	_, err = Adopt(fs, dir, testOptions)
	wantCode(t, err, errcode.Corrupt)
}

// A segment whose footer and index are right but do not fit the data is
// reported: each total is compared.
func TestVerifyComparesTotals(t *testing.T) {
	raw, in, _ := sealedSegment(t, 9)
	tail := raw[in.FooterPosition:]
	f, err := ParseFooter(tail)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(f *Footer){
		"next":             func(f *Footer) { f.Next++ },
		"records":          func(f *Footer) { f.Records-- },
		"min timestamp":    func(f *Footer) { f.MinTimestamp-- },
		"first generation": func(f *Footer) { f.FirstGeneration-- },
		"last generation":  func(f *Footer) { f.LastGeneration++ },
		"data sha256":      func(f *Footer) { f.DataSHA256[3] ^= 1 },
	} {
		g := f
		change(&g)
		b := appendFooter(bytes.Clone(raw[:in.FooterPosition]), &g)
		rep, err := Verify("s", bytes.NewReader(b), in.Bytes, false)
		if err != nil || len(rep.Problems) != 1 {
			t.Errorf("%s: %v %v", name, rep.Problems, err)
		}
	}
}

// A report is bounded, and says how much it left out.
func TestReportIsBounded(t *testing.T) {
	fs := newFS(t)
	w := mustCreate(t, fs)
	b := mustBatch(t, someRecords(newRand(1), 0, 1), BatchOptions{})
	for i := range 150 {
		Stamp(b, int64(100+i), 0)
		mustAppend(t, w, b)
	}
	in, err := w.Seal()
	if err != nil {
		t.Fatal(err)
	}
	raw := readFile(t, fs, segPath())
	for i := range 150 {
		raw[i*len(b)+30] ^= 1
	}
	rep, err := Verify("s", bytes.NewReader(raw), in.Bytes, false)
	if err != nil || len(rep.Problems) != maxProblems || rep.More != 51 { // and the hash
		t.Fatalf("%d problems, %d more, %v", len(rep.Problems), rep.More, err)
	}
}

// Every field of a footer and an index survives encoding, and is refused
// outside its bounds under a right checksum.
func TestFooterAndIndexBounds(t *testing.T) {
	raw, in, _ := sealedSegment(t, 10)
	good, err := ParseFooter(raw[in.FooterPosition:])
	if err != nil {
		t.Fatal(err)
	}
	if got := infoOf(&good); got.DataSHA256 != in.DataSHA256 || got.Bytes != in.Bytes || got.Next != in.Next {
		t.Fatalf("%+v", good)
	}
	for name, c := range map[string]struct {
		change func(f *Footer)
		code   errcode.Code
	}{
		"flags":                   {func(f *Footer) { f.Flags = 1 }, errcode.UnsupportedVersion},
		"base negative":           {func(f *Footer) { f.Base = -1 }, errcode.Corrupt},
		"next at base":            {func(f *Footer) { f.Next = f.Base }, errcode.Corrupt},
		"records negative":        {func(f *Footer) { f.Records = -1 }, errcode.Corrupt},
		"records over offsets":    {func(f *Footer) { f.Records = f.Next - f.Base + 1 }, errcode.Corrupt},
		"times descend":           {func(f *Footer) { f.MinTimestamp = f.MaxTimestamp + 1 }, errcode.Corrupt},
		"append times descend":    {func(f *Footer) { f.MinAppend = f.MaxAppend + 1 }, errcode.Corrupt},
		"generations descend":     {func(f *Footer) { f.FirstGeneration = f.LastGeneration + 1 }, errcode.Corrupt},
		"data negative":           {func(f *Footer) { f.DataLength = -1 }, errcode.Corrupt},
		"data too long":           {func(f *Footer) { f.DataLength = MaxData + 1 }, errcode.Corrupt},
		"data empty":              {func(f *Footer) { f.DataLength = 0 }, errcode.Corrupt},
		"index empty":             {func(f *Footer) { f.IndexLength = 0 }, errcode.Corrupt},
		"index no multiple":       {func(f *Footer) { f.IndexLength++ }, errcode.Corrupt},
		"index out of proportion": {func(f *Footer) { f.IndexLength = (f.DataLength/HeaderSize + 1) * IndexEntrySize }, errcode.Corrupt},
	} {
		f := good
		c.change(&f)
		_, err := ParseFooter(appendFooter(nil, &f))
		if !errcode.Is(err, c.code) {
			t.Errorf("footer, %s: %v, want code %v", name, err, c.code)
		}
	}
	index := raw[in.DataLength:in.FooterPosition]
	if _, err := ParseIndex(index, &good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(e *Entry){
		"base":             func(e *Entry) { e.Base -= 1000 },
		"base at the end":  func(e *Entry) { e.Base = good.Next },
		"position":         func(e *Entry) { e.Position++ },
		"size":             func(e *Entry) { e.Size++ },
		"size of nothing":  func(e *Entry) { e.Size = 0 },
		"time":             func(e *Entry) { e.MaxTimestamp = 5 },
		"time of the last": func(e *Entry) { e.MaxTimestamp++ },
	} {
		x := Index{index}
		var b []byte
		for i := range x.Len() {
			e := x.At(i)
			if i == x.Len()-1 {
				change(&e)
			}
			b = appendEntry(b, e)
		}
		f := good
		f.IndexCRC32C = newCRC(b)
		if _, err := ParseIndex(b, &f); !errcode.Is(err, errcode.Corrupt) {
			t.Errorf("index, %s: %v", name, err)
		}
	}
	b := bytes.Clone(raw[in.FooterPosition:])
	b[7] = 2
	_, err = ParseFooter(b)
	wantCode(t, err, errcode.UnsupportedVersion)
}

func newCRC(b []byte) uint32 {
	s := newSums()
	s.add(b)
	return s.crc
}
