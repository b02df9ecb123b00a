package broker

import (
	"strings"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Known answers of the Kafka Java client (UtilsTest.testMurmur2): a different
// hash would place the keys of Kafka and HTTP producers apart.
func TestMurmur2KnownAnswers(t *testing.T) {
	for in, want := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string": -1486304829, "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got := int32(murmur2([]byte(in))); got != want {
			t.Errorf("murmur2(%q) = %d, want %d", in, got, want)
		}
	}
	if p := PartitionForKey(nil, 7); p >= 7 {
		t.Errorf("empty key: partition %d of 7", p)
	}
}

// Names are refused with the name, the place and the rule (B228, B253).
func TestValidateName(t *testing.T) {
	for _, good := range []string{"a", "Orders.v1_x-2", "-", ".hidden", strings.Repeat("x", 200)} {
		if err := ValidateName("topic", good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", ".", "..", "a/b", "a/../b", "%2e", "bad topic!", "a\x00b", "ü", strings.Repeat("x", 201)} {
		err := ValidateName("topic", bad)
		if !errcode.Is(err, errcode.InvalidArgument) || !strings.Contains(err.Error(), "1 to 200") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if err := ValidateName("topic", "bad topic!"); !strings.Contains(err.Error(), `"bad topic!"`) || !strings.Contains(err.Error(), "position 4") {
		t.Errorf("message does not name the place: %v", err)
	}
}

func TestTopicIDText(t *testing.T) {
	id := TopicID(0xabc)
	back, err := ParseTopicID(id.String())
	if err != nil || back != id || id.String() != "0000000000000abc" {
		t.Fatalf("%v %v %v", id, back, err)
	}
	for _, bad := range []string{"", "abc", "zz00000000000abc", "00000000000000abc"} {
		if _, err := ParseTopicID(bad); err == nil {
			t.Errorf("%q accepted", bad)
		}
	}
}
