package bucket

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"strings"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Value is one object, decoded. It prints as JSON.
type Value struct {
	Key     string         `json:"key"`
	Kind    string         `json:"kind"`
	Bytes   int64          `json:"bytes"`
	SHA256  *manifest.Hash `json:"sha256,omitempty"` // of the JSON of entries and pages, else of the object when it was read whole
	Content any            `json:"content,omitempty"`
}

// Footer is what Inspect says about a segment.
type Footer struct {
	segment.Footer
	Batches []segment.Entry
}

// Inspect reads one object of the layout and decodes it. Errors: NotFound,
// InvalidArgument (not a key of an archive), Corrupt, UnsupportedVersion, and
// the store's.
func Inspect(ctx context.Context, store objstore.Store, key string, d Decoders) (*Value, error) {
	k, err := manifest.ParseKey(key)
	if err != nil {
		return nil, err
	}
	v := &Value{Key: key, Kind: k.Kind.String()}
	if k.Kind == manifest.KindSegmentObject {
		return v, v.segment(ctx, store)
	}
	b, info, err := objstore.ReadAll(ctx, store, key, maxObject)
	if err != nil {
		return nil, errcode.Wrap(errcode.Internal, err, "inspect %s", key)
	}
	sum := manifest.Hash(sha256.Sum256(b))
	v.Bytes, v.SHA256 = info.Size, &sum
	return v, errcode.Wrap(errcode.Corrupt, v.decode(k, b, d), "inspect %s", key)
}

func (v *Value) decode(k manifest.Key, b []byte, d Decoders) (err error) {
	switch k.Kind {
	case manifest.KindEntry, manifest.KindPage:
		return v.manifest(k, b)
	case manifest.KindWAL:
		if d.WAL != nil {
			v.Content, err = d.WAL(k, b)
		}
	case manifest.KindState:
		if d.State != nil {
			v.Content, err = d.State(k, b)
		}
	default:
		if v.Content, err = printable(k, b); err == nil && d.Small != nil && isSmall(k.Kind) {
			err = d.Small(k, b)
		}
	}
	return err
}

// manifest decodes an entry or page with all its checks and shows its JSON.
func (v *Value) manifest(k manifest.Key, b []byte) error {
	if k.Kind == manifest.KindEntry {
		e, sum, err := manifest.DecodeEntry(b)
		if err != nil {
			return err
		}
		if e.Seq != k.Seq || e.Partition != k.Partition {
			return errcode.New(errcode.Corrupt, "it says it is entry %d of %s", e.Seq, e.Partition)
		}
		*v.SHA256 = sum
	} else {
		p, ref, err := manifest.DecodePage(b)
		if err != nil {
			return err
		}
		if manifest.PageKey(p.Partition, ref.Base, ref.SHA256) != v.Key {
			return errcode.New(errcode.Corrupt, "it holds the page %s", manifest.PageKey(p.Partition, ref.Base, ref.SHA256))
		}
		*v.SHA256 = ref.SHA256
	}
	raw, err := manifest.JSON(b)
	v.Content = json.RawMessage(raw)
	return err
}

// printable returns JSON as it is, and anything else as text when it is short.
func printable(k manifest.Key, b []byte) (any, error) {
	if strings.HasSuffix(k.String(), ".zst") {
		raw, err := manifest.JSON(b)
		if err != nil {
			return nil, err
		}
		b = raw
	}
	if json.Valid(b) {
		return json.RawMessage(b), nil
	}
	if len(b) == 0 {
		return nil, nil
	}
	return nil, errcode.New(errcode.Corrupt, "%d bytes are not JSON", len(b))
}

func (v *Value) segment(ctx context.Context, store objstore.Store) error {
	info, err := store.Head(ctx, v.Key)
	if err != nil {
		return errcode.Wrap(errcode.Internal, err, "inspect %s", v.Key)
	}
	v.Bytes = info.Size
	r, f, err := segment.OpenReader(v.Key, &object{ctx: ctx, store: store, key: v.Key}, info.Size)
	if err != nil {
		return err
	}
	out := Footer{Footer: *f, Batches: make([]segment.Entry, r.Index().Len())}
	for i := range out.Batches {
		out.Batches[i] = r.Index().At(i)
	}
	v.Content = out
	return nil
}
