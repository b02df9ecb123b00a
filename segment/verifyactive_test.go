package segment

import (
	"bytes"
	"slices"
	"testing"
)

// An active file verifies as long as its batches do. A batch that does not is
// named with its position and offsets, those behind it are looked at all the
// same, and bytes that are no batch at the end are told apart from that (B35,
// B262).
func TestVerifyActive(t *testing.T) {
	_, _, batches := sealedSegment(t, 9)
	whole := slices.Concat(batches...)
	check := func(b []byte) Report {
		t.Helper()
		rep, err := VerifyActive("p/100.log", bytes.NewReader(b), int64(len(b)), true)
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	rep := check(whole)
	if rep.Err() != nil || rep.Batches != len(batches) || rep.Info.Base != headerOf(t, batches[0]).BaseOffset || rep.Info.Next != headerOf(t, batches[len(batches)-1]).NextOffset() {
		t.Fatalf("a whole file: %+v", rep)
	}
	if rep := check(nil); rep.Err() != nil || rep.Batches != 0 {
		t.Fatalf("an empty file: %+v", rep)
	}

	third, at := headerOf(t, batches[2]), int64(len(batches[0])+len(batches[1]))
	flipped := bytes.Clone(whole)
	flipped[at+int64(len(batches[2]))-1] ^= 4
	rep = check(flipped)
	if len(rep.Problems) != 1 || rep.Problems[0].Position != at || rep.Problems[0].Offset != third.BaseOffset || rep.Problems[0].Next != headerOf(t, batches[3]).BaseOffset || rep.Batches != len(batches)-1 {
		t.Fatalf("a flipped batch: %+v", rep)
	}

	torn := whole[:len(whole)-3]
	last := int64(len(whole) - len(batches[len(batches)-1]))
	rep = check(torn)
	if len(rep.Problems) != 1 || rep.Problems[0].Position != last || rep.Batches != len(batches)-1 {
		t.Fatalf("a torn end: %+v", rep)
	}

	// Order is checked too: the same batches, two of them swapped.
	swapped := slices.Clone(batches)
	swapped[4], swapped[5] = swapped[5], swapped[4]
	if rep := check(slices.Concat(swapped...)); len(rep.Problems) != 1 || rep.Problems[0].What != "order of offset and generation" {
		t.Fatalf("swapped batches: %+v", rep)
	}

	// Any flipped bit outside the fields that checksums leave out is noticed.
	for i := 0; i < len(whole); i += 97 {
		b := bytes.Clone(whole)
		b[i] ^= 1 << (i % 8)
		if rep := check(b); rep.Err() == nil {
			in := int64(i)
			for _, x := range batches {
				if in < int64(len(x)) {
					break
				}
				in -= int64(len(x))
			}
			if in >= 16 { // base offset and generation stand before the checksum
				t.Fatalf("byte %d of a batch: not noticed", in)
			}
		}
	}
}
