package frame

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

var pid = broker.PartitionID{Topic: 0x1122334455667788, Partition: 5}

func commitBody() []byte {
	b := make([]byte, CommitHeaderSize+2*SectionHeaderSize+5)
	PutCommitHeader(b, CommitHeader{AppendMS: 1700000000000, OriginIncarnation: 7, OriginLSN: 9})
	s := b[CommitHeaderSize:]
	PutSectionHeader(s, pid, 3, 5)
	copy(s[SectionHeaderSize:], "batch")
	PutSectionHeader(s[SectionHeaderSize+5:], broker.PartitionID{Topic: 1}, 1, 0)
	return b
}

func baseBody() ([]byte, Base) {
	s := Base{Partition: pid, Generation: 2, ChainEnd: 10, PreviousEnd: 20, Start: 20 + 1<<32, End: 20, Gaps: [][2]int64{{20, 20 + 1<<32}}, Groups: [][]byte{[]byte("g1"), {}}}
	b := make([]byte, BaseSize(s))
	PutBase(b, s)
	return b, s
}

func groupBody() ([]byte, Group) {
	g := Group{Partition: pid, Generation: 4, Name: "default", Ops: []byte{1, 2, 3}}
	b := make([]byte, GroupSize(g))
	PutGroup(b, g)
	return b, g
}

// The bodies keep their bytes: a log written by any build must replay in every
// later one.
func TestGolden(t *testing.T) {
	base, _ := baseBody()
	group, _ := groupBody()
	for name, got := range map[string]struct {
		b    []byte
		want string
	}{
		"commit": {commitBody(), "0000018bcfe5680000000000000000070000000000000009112233445566778800000005000000030000000562617463680000000000000001000000000000000100000000"},
		"group":  {group, "11223344556677880000000500000004076465666175" + "6c74010203"},
		"base": {base, "11223344556677880000000500000002000000000000000a000000000000001400000001000000140000000000000014" +
			"000100020000000000000014000000010000001400000002673100000000"},
	} {
		if h := hex.EncodeToString(got.b); h != got.want {
			t.Errorf("%s: %s, want %s", name, h, got.want)
		}
	}
}

func TestRoundTrips(t *testing.T) {
	h, sections, err := ParseCommit(commitBody())
	if err != nil || h != (CommitHeader{1700000000000, 7, 9}) {
		t.Fatalf("%+v %v", h, err)
	}
	var got []Section
	for s := range sections {
		got = append(got, s)
	}
	if len(got) != 2 || got[0].Partition != pid || string(got[0].Batches) != "batch" || got[0].Generation != 3 || len(got[1].Batches) != 0 {
		t.Fatalf("sections %+v", got)
	}
	b, want := baseBody()
	if s, err := ParseBase(b); err != nil || !reflect.DeepEqual(s, want) {
		t.Fatalf("base %+v %v", s, err)
	}
	gb, gw := groupBody()
	if g, err := ParseGroup(gb); err != nil || !reflect.DeepEqual(g, gw) {
		t.Fatalf("group %+v %v", g, err)
	}
}

// Every cut of every body is an error or parses; none panics (I13). A commit
// cut inside a section is never taken for a shorter commit.
func TestCutsAreRefused(t *testing.T) {
	c := commitBody()
	for n := range c {
		if _, _, err := ParseCommit(c[:n]); err == nil && n != CommitHeaderSize && n != CommitHeaderSize+SectionHeaderSize+5 {
			t.Errorf("commit cut at %d accepted", n)
		}
	}
	b, _ := baseBody()
	for n := range b {
		if _, err := ParseBase(b[:n]); err == nil {
			t.Errorf("base cut at %d accepted", n)
		}
	}
}

func FuzzParse(f *testing.F) {
	b, _ := baseBody()
	g, _ := groupBody()
	f.Add(commitBody())
	f.Add(b)
	f.Add(g)
	f.Fuzz(func(t *testing.T, in []byte) {
		if h, sections, err := ParseCommit(in); err == nil {
			out := make([]byte, CommitHeaderSize)
			PutCommitHeader(out, h)
			for s := range sections {
				hdr := make([]byte, SectionHeaderSize)
				PutSectionHeader(hdr, s.Partition, s.Generation, len(s.Batches))
				out = append(append(out, hdr...), s.Batches...)
			}
			if !bytes.Equal(out, in) {
				t.Fatalf("commit: %x became %x", in, out)
			}
		}
		if s, err := ParseBase(in); err == nil {
			out := make([]byte, BaseSize(s))
			PutBase(out, s)
			if !bytes.Equal(out, in) {
				t.Fatalf("base: %x became %x", in, out)
			}
		}
		if g, err := ParseGroup(in); err == nil {
			out := make([]byte, GroupSize(g))
			PutGroup(out, g)
			if !bytes.Equal(out, in) {
				t.Fatalf("group: %x became %x", in, out)
			}
		}
	})
}
