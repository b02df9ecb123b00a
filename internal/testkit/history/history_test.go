package history

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func rec(id string) Record { return Record{ID: id, Sum: uint64(len(id)) * 31} }

// put is an answered produce; times are milliseconds.
func put(id string, level Level, partition int32, offset int64, sent, answered int) Produce {
	p := Produce{Record: rec(id), Level: level, Place: Place{partition, offset}, Sent: ms(sent), Answered: ms(answered)}
	if level == Unknown {
		p.Answered = Never
	}
	return p
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

func logOf(offset int64, ids ...string) (out []Logged) {
	for i, id := range ids {
		out = append(out, Logged{offset + int64(i), rec(id)})
	}
	return out
}

func one(log []Logged) map[int32][]Logged { return map[int32][]Logged{0: log} }

// at sets the history's clock: it is n milliseconds after its beginning now.
func at(h *History, n int) { h.begin = time.Now().Add(-ms(n)) }

// expect fails unless exactly one finding holds all words, or none if there are
// no words.
func expect(t *testing.T, found []string, words ...string) {
	t.Helper()
	if len(words) == 0 {
		if len(found) > 0 {
			t.Errorf("unexpected: %q", found)
		}
		return
	}
	if len(found) != 1 {
		t.Errorf("not one finding with %q: %q", words, found)
		return
	}
	for _, w := range words {
		if !strings.Contains(found[0], w) {
			t.Errorf("%q is not in %q", w, found[0])
		}
	}
}

// A history in which everything is right has no findings, over two checks.
func TestCleanHistory(t *testing.T) {
	h := New()
	h.Produced(put("a", Stored, 0, 0, 1, 2))
	h.Produced(put("b", Archived, 0, 1, 3, 4))
	h.Produced(put("c", Unknown, AnyPartition, Nowhere, 5, 0))
	h.Produced(put("d", Unknown, AnyPartition, Nowhere, 6, 0))
	h.Produced(put("e", Stored, AnyPartition, Nowhere, 7, 8))
	at(h, 20)
	h.Delivered(Place{0, 0}, rec("a"), ms(10))
	h.Acked(Place{0, 0}, true)
	logs := map[int32][]Logged{0: logOf(0, "a", "b", "c"), 1: logOf(0, "e")}
	expect(t, h.Check(logs))
	if open := h.Open(logs); len(open) != 3 || open[Place{0, 0}] {
		t.Errorf("open: %v", open)
	}
	h.Produced(put("f", Stored, 0, 3, 30, 31))
	logs[0] = logOf(0, "a", "b", "c", "f")
	expect(t, h.Check(logs))
	if c := h.Counts(); c != (Counts{Sent: 6, Stored: 3, Archived: 1, Unknown: 2, Seen: 5, Acked: 1}) {
		t.Errorf("counts: %+v", c)
	}
}

// Each thing that must not be is found, once, and named.
func TestViolations(t *testing.T) {
	for name, c := range map[string]struct {
		sent []Produce
		log  []Logged
		want []string
	}{
		"missing":          {[]Produce{put("a", Stored, 0, 0, 1, 2), put("b", Stored, 0, 1, 3, 4)}, logOf(0, "a"), []string{"b is missing", "0/1"}},
		"elsewhere":        {[]Produce{put("a", Stored, 0, 0, 1, 2)}, logOf(7, "a"), []string{"answered with 0/0", "is at 0/7"}},
		"other partition":  {[]Produce{put("a", Stored, 1, Nowhere, 1, 2)}, logOf(7, "a"), []string{"answered with 1/-1"}},
		"twice":            {[]Produce{put("a", Unknown, AnyPartition, Nowhere, 1, 0)}, logOf(0, "a", "a"), []string{"there twice", "0/0", "0/1"}},
		"invented":         {nil, logOf(0, "x"), []string{"sent by nobody"}},
		"changed":          {[]Produce{put("a", Unknown, AnyPartition, Nowhere, 1, 0)}, []Logged{{0, Record{"a", 1}}}, []string{"not as it was sent"}},
		"offsets go back":  {[]Produce{put("a", Unknown, 0, Nowhere, 1, 0), put("b", Unknown, 0, Nowhere, 1, 0)}, []Logged{{5, rec("a")}, {4, rec("b")}}, []string{"from offset 5 to 4"}},
		"out of order":     {[]Produce{put("a", Stored, 0, Nowhere, 1, 2), put("b", Stored, 0, Nowhere, 3, 4)}, logOf(0, "b", "a"), []string{"b was sent", "after a was answered"}},
		"unknown in front": {[]Produce{put("a", Stored, 0, 1, 1, 2), put("b", Unknown, 0, Nowhere, 3, 0)}, logOf(0, "b", "a"), []string{"b was sent", "after a was answered"}},
		"sent twice":       {[]Produce{put("a", Stored, 0, 0, 1, 2), put("a", Stored, 0, 0, 1, 2)}, logOf(0, "a"), []string{"the test sent a twice"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := New()
			at(h, 100)
			for _, p := range c.sent {
				h.Produced(p)
			}
			expect(t, h.Check(one(c.log)), c.want...)
			expect(t, h.Findings())
		})
	}
}

// Records whose answers and sends overlap may stand in any order.
func TestConcurrentRecordsHaveNoOrder(t *testing.T) {
	h := New()
	h.Produced(put("a", Stored, 0, 1, 1, 5))
	h.Produced(put("b", Stored, 0, 0, 4, 6))
	h.Produced(put("c", Unknown, 0, Nowhere, 1, 0))
	h.Produced(put("d", Stored, 0, 2, 9, 10))
	expect(t, h.Check(one(logOf(0, "b", "a", "d", "c"))))
}

// An offset has one content for ever: between answers, deliveries and logs, and
// over a restore that lost the first one.
func TestTwoContents(t *testing.T) {
	h := New()
	h.Produced(put("a", Stored, 0, 5, 1, 2))
	h.Produced(put("b", Stored, 0, 5, 1, 2))
	expect(t, h.Findings(), "0/5", "two contents")

	h = New()
	h.Produced(put("a", Stored, 0, 5, 1, 2))
	at(h, 100)
	h.Cut(Cut{DiskLost: true})
	expect(t, h.Check(one(nil)))
	h.Produced(put("b", Stored, 0, 5, 200, 201))
	expect(t, h.Findings(), "0/5", "two contents")

	h = New()
	h.Produced(put("a", Stored, 0, 5, 1, 2))
	h.Produced(put("b", Unknown, AnyPartition, Nowhere, 1, 2))
	h.Delivered(Place{0, 5}, rec("b"), 0)
	expect(t, h.Findings(), "0/5", "two contents")
}

// What was acked does not come to a consume that was sent later; one that was
// under way may bring it.
func TestDeliveredAfterAck(t *testing.T) {
	h := New()
	h.Produced(put("a", Stored, 0, 0, 1, 2))
	at(h, 100)
	h.Delivered(Place{0, 0}, rec("a"), ms(50))
	h.Acked(Place{0, 0}, true)
	h.Delivered(Place{0, 0}, rec("a"), ms(60))
	expect(t, h.Findings())
	h.Acked(Place{0, 0}, true)
	at(h, 300)
	h.Delivered(Place{0, 0}, rec("a"), ms(200))
	expect(t, h.Findings(), "a at 0/0", "acked")

	h.Acked(Place{0, 0}, false)
	h.Delivered(Place{0, 0}, rec("a"), ms(400))
	expect(t, h.Findings())
	if open := h.Open(one(logOf(0, "a"))); len(open) != 0 {
		t.Errorf("an ack without an answer leaves the record to both: %v", open)
	}
	h.Acked(Place{0, 9}, true)
	expect(t, h.Findings(), "never delivered")
}

// A lost disk takes what is younger than the bound: records, what was seen of
// them, acks. It takes nothing older and nothing that was archived, and what it
// took does not come back.
func TestLostDisk(t *testing.T) {
	h := New()
	h.Produced(put("old", Stored, 0, 0, 1, 100))
	h.Produced(put("young", Stored, 0, 1, 1, 2500))
	h.Produced(put("safe", Archived, 0, 2, 1, 2900))
	at(h, 200)
	h.Delivered(Place{0, 0}, rec("old"), ms(150))
	h.Acked(Place{0, 0}, true)
	at(h, 2950)
	h.Delivered(Place{0, 1}, rec("young"), ms(2600))
	h.Delivered(Place{0, 2}, rec("safe"), ms(2600))
	h.Acked(Place{0, 2}, true)
	at(h, 3000)
	h.Cut(Cut{DiskLost: true, Before: ms(1000)})
	expect(t, h.Check(one([]Logged{{0, rec("old")}, {2, rec("safe")}})))
	at(h, 4000)
	h.Delivered(Place{0, 2}, rec("safe"), ms(3500)) // its ack was lost
	expect(t, h.Findings())
	h.Delivered(Place{0, 0}, rec("old"), ms(3500)) // this one was not
	expect(t, h.Findings(), "old at 0/0 was acked")
	expect(t, h.Check(one([]Logged{{0, rec("old")}, {1, rec("young")}, {2, rec("safe")}})), "young", "is back")

	for _, missing := range []string{"old", "safe"} {
		h := New()
		h.Produced(put("old", Stored, 0, 0, 1, 100))
		h.Produced(put("safe", Archived, 0, 1, 1, 2900))
		at(h, 3000)
		h.Cut(Cut{DiskLost: true, Before: ms(1000)})
		log := logOf(0, "old")
		if missing == "old" {
			log = logOf(1, "safe")
		}
		expect(t, h.Check(one(log)), missing+" is missing", "the disk was lost at")
	}
}

// A kill takes nothing: neither what was seen of a record without an answer,
// nor an ack; and the cut of an earlier round excuses nothing later.
func TestKillTakesNothing(t *testing.T) {
	h := New()
	at(h, 100)
	h.Cut(Cut{DiskLost: true, Before: ms(50)})
	h.Produced(put("a", Unknown, AnyPartition, Nowhere, 200, 0))
	h.Produced(put("b", Stored, 0, 1, 200, 210))
	at(h, 300)
	expect(t, h.Check(one(logOf(0, "a", "b"))))
	h.Delivered(Place{0, 1}, rec("b"), ms(250))
	h.Acked(Place{0, 1}, true)
	h.Cut(Cut{})
	at(h, 500)
	expect(t, h.Check(one(logOf(1, "b"))), "a was seen", "no more")
	h.Delivered(Place{0, 1}, rec("b"), ms(450))
	expect(t, h.Findings(), "b at 0/1 was acked")
}

// Findings are bounded, and say how many were left out.
func TestFindingsAreBounded(t *testing.T) {
	h := New()
	for i := range maxFindings + 7 {
		h.Produced(put(fmt.Sprint("r", i), Stored, 0, int64(i), 2*i, 2*i+1))
	}
	found := h.Check(one(nil))
	if len(found) != maxFindings+1 || found[maxFindings] != "and 7 more" {
		t.Errorf("%d findings, the last is %q", len(found), found[len(found)-1])
	}
}
