package archive

import (
	"encoding/json"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

const (
	claimFormat  = "tidemark-cluster"
	openFormat   = "tidemark-open"
	fenceFormat  = "tidemark-fence"
	claimVersion = 1
)

// Claim is the object cluster/<generation>: who began that generation of the
// cluster. The highest one that exists is the cluster that may write.
type Claim struct {
	Format     string `json:"format"`
	Version    int    `json:"version"`
	ClusterID  string `json:"cluster_id"`
	Generation uint64 `json:"generation"`
	Node       string `json:"node"`       // who created it
	Restore    string `json:"restore_id"` // random; tells a lost answer from somebody else's claim
	TimeMS     int64  `json:"time_ms"`
}

// Open is the object OPEN of an incarnation, created before it ships.
type Open struct {
	Format            string `json:"format"`
	Version           int    `json:"version"`
	Node              string `json:"node"`
	Incarnation       uint64 `json:"incarnation"`
	ClusterGeneration uint64 `json:"cluster_generation"`
	FirstLSN          uint64 `json:"first_lsn"`
	TimeMS            int64  `json:"time_ms"`
}

// Fence is the object FENCE of an incarnation: nothing it ships from now on
// counts.
type Fence struct {
	Format            string `json:"format"`
	Version           int    `json:"version"`
	ClusterGeneration uint64 `json:"cluster_generation"` // of who fenced
	TimeMS            int64  `json:"time_ms"`
}

// Encode returns the stored form.
func (c Claim) Encode() []byte { c.Format, c.Version = claimFormat, claimVersion; return must(c) }

// Encode returns the stored form.
func (o Open) Encode() []byte { o.Format, o.Version = openFormat, claimVersion; return must(o) }

// Encode returns the stored form.
func (f Fence) Encode() []byte { f.Format, f.Version = fenceFormat, claimVersion; return must(f) }

// must encodes a struct of strings and numbers, which cannot fail.
func must(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return append(b, '\n')
}

// DecodeClaim reads a cluster claim. Errors: Corrupt, UnsupportedVersion.
func DecodeClaim(b []byte) (c Claim, err error) {
	err = unmarshalVersioned(b, &c, "cluster claim", claimFormat, claimVersion)
	if err == nil && (c.Generation == 0 || c.ClusterID == "") {
		err = errcode.New(errcode.Corrupt, "cluster claim without generation or cluster id")
	}
	return c, err
}

// DecodeOpen reads an OPEN object. Errors: Corrupt, UnsupportedVersion.
func DecodeOpen(b []byte) (o Open, err error) {
	err = unmarshalVersioned(b, &o, "OPEN object", openFormat, claimVersion)
	return o, err
}

// DecodeFence reads a FENCE object. Errors: Corrupt, UnsupportedVersion.
func DecodeFence(b []byte) (f Fence, err error) {
	err = unmarshalVersioned(b, &f, "FENCE object", fenceFormat, claimVersion)
	return f, err
}
