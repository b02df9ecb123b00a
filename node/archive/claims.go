package archive

import (
	"encoding/json"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

const (
	claimFormat     = "tidemark-cluster"
	openFormat      = "tidemark-open"
	fenceFormat     = "tidemark-fence"
	tombstoneFormat = "tidemark-tombstone"
	claimVersion    = 1
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

// Tombstone is the object x/<topic id>: the topic was deleted, and what stands
// under its prefix may be gone in part.
type Tombstone struct {
	Format            string         `json:"format"`
	Version           int            `json:"version"`
	Topic             broker.TopicID `json:"topic"`
	Name              string         `json:"name"`
	ClusterGeneration uint64         `json:"cluster_generation"` // of who deletes
	DeletedMS         int64          `json:"deleted_ms"`         // of the deletion in the metadata
}

// Encode returns the stored form.
func (c Claim) Encode() []byte { c.Format, c.Version = claimFormat, claimVersion; return must(c) }

// Encode returns the stored form.
func (o Open) Encode() []byte { o.Format, o.Version = openFormat, claimVersion; return must(o) }

// Encode returns the stored form.
func (f Fence) Encode() []byte { f.Format, f.Version = fenceFormat, claimVersion; return must(f) }

// Encode returns the stored form. It is the same at every try.
func (t Tombstone) Encode() []byte {
	t.Format, t.Version = tombstoneFormat, claimVersion
	return must(t)
}

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

// DecodeTombstone reads a topic's tombstone. Errors: Corrupt, UnsupportedVersion.
func DecodeTombstone(b []byte) (t Tombstone, err error) {
	err = unmarshalVersioned(b, &t, "tombstone", tombstoneFormat, claimVersion)
	if err == nil && t.Topic == 0 {
		err = errcode.New(errcode.Corrupt, "tombstone without a topic id")
	}
	return t, err
}
