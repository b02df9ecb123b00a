package archive

import (
	"strings"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// decoders of the small objects, as one would call them with whatever stands
// under their keys.
var decoders = map[string]func([]byte) (any, error){
	"tidemark-cluster": func(b []byte) (any, error) { return DecodeClaim(b) },
	"tidemark-open":    func(b []byte) (any, error) { return DecodeOpen(b) },
	"tidemark-fence":   func(b []byte) (any, error) { return DecodeFence(b) },

	"tidemark-tombstone": func(b []byte) (any, error) { return DecodeTombstone(b) },
}

// Claims come back as they were; each refuses the other kinds, an unknown
// version by name, and every cut.
func TestClaims(t *testing.T) {
	claim := Claim{ClusterID: "00000000000000c1", Generation: 1<<64 - 1, Node: "n1", Restore: "ab", TimeMS: 5}
	opened := Open{Node: "n1", Incarnation: 1<<64 - 1, ClusterGeneration: 2, FirstLSN: 1, TimeMS: 6}
	fence := Fence{ClusterGeneration: 3, TimeMS: 7}
	if got, err := DecodeClaim(claim.Encode()); err != nil || got.ClusterID != claim.ClusterID || got.Generation != claim.Generation || got.Node != "n1" || got.Restore != "ab" || got.TimeMS != 5 {
		t.Errorf("%+v %v", got, err)
	}
	if got, err := DecodeOpen(opened.Encode()); err != nil || got.Node != "n1" || got.Incarnation != opened.Incarnation || got.ClusterGeneration != 2 || got.FirstLSN != 1 || got.TimeMS != 6 {
		t.Errorf("%+v %v", got, err)
	}
	if got, err := DecodeFence(fence.Encode()); err != nil || got.ClusterGeneration != 3 || got.TimeMS != 7 {
		t.Errorf("%+v %v", got, err)
	}
	tomb := Tombstone{Topic: 0xabc, Name: "t", ClusterGeneration: 2, DeletedMS: 8}
	if got, err := DecodeTombstone(tomb.Encode()); err != nil || got.Topic != 0xabc || got.Name != "t" || got.ClusterGeneration != 2 || got.DeletedMS != 8 {
		t.Errorf("%+v %v", got, err)
	}
	if _, err := DecodeTombstone(Tombstone{Name: "t"}.Encode()); !errcode.Is(err, errcode.Corrupt) {
		t.Errorf("a tombstone of no topic: %v", err)
	}
	stored := map[string][]byte{"tidemark-cluster": claim.Encode(), "tidemark-open": opened.Encode(), "tidemark-fence": fence.Encode(), "tidemark-tombstone": tomb.Encode()}
	for format, decode := range decoders {
		for other, b := range stored {
			if _, err := decode(b); (err == nil) != (other == format) || err != nil && !errcode.Is(err, errcode.Corrupt) {
				t.Errorf("%s as %s: %v", other, format, err)
			}
		}
		whole := strings.TrimSuffix(string(stored[format]), "\n")
		for n := range whole {
			if _, err := decode([]byte(whole[:n])); !errcode.Is(err, errcode.Corrupt) {
				t.Errorf("%s cut at %d: %v", format, n, err)
			}
		}
		later := strings.Replace(whole, `"version":1`, `"version":9`, 1)
		if _, err := decode([]byte(later)); !errcode.Is(err, errcode.UnsupportedVersion) || !strings.Contains(err.Error(), format+" version 9") {
			t.Errorf("%s version 9: %v", format, err)
		}
	}
	for _, bad := range []Claim{{Generation: 1}, {ClusterID: "c"}} {
		if _, err := DecodeClaim(bad.Encode()); !errcode.Is(err, errcode.Corrupt) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// FuzzDecodeClaims: no panic, errors of two codes, allocation in proportion.
func FuzzDecodeClaims(f *testing.F) {
	f.Add(Claim{ClusterID: "c", Generation: 1}.Encode())
	f.Add(Open{Node: "n1"}.Encode())
	f.Add(Fence{}.Encode())
	f.Add(Tombstone{Topic: 1}.Encode())
	f.Add([]byte(`{"format":"tidemark-fence","version":2}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := allocated(func() {
			for format, decode := range decoders {
				if _, err := decode(b); err != nil && !errcode.Is(err, errcode.Corrupt) && !errcode.Is(err, errcode.UnsupportedVersion) {
					t.Fatalf("%s: %v", format, err)
				}
			}
		})
		if n > 1<<20+64*uint64(len(b)) {
			t.Fatalf("%d bytes of input allocated %d", len(b), n)
		}
	})
}
