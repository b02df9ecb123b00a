package objstore

import (
	"context"
	"io"
)

// Class is the pool that a call competes in. A higher class has the better
// right: when the store asks for fewer requests, a class gives way together
// with every class below it.
type Class uint8

// The classes, from the least right to the most.
const (
	Background Class = iota // scrub, garbage, exports, merges, and whatever says nothing
	Read                    // somebody waits for archived records
	Upload                  // segments, chain entries, the WAL, fences
	numClasses
)

// String returns "background", "read" or "upload".
func (c Class) String() string {
	switch c {
	case Upload:
		return "upload"
	case Read:
		return "read"
	default:
		return "background"
	}
}

// Cause says why a request is made: requests are counted and priced by cause.
type Cause uint8

// The causes.
const (
	CauseOther   Cause = iota
	CauseSegment       // a sealed segment goes up
	CauseChain         // an entry of a partition's manifest
	CauseWAL           // shipping the write-ahead log
	CauseFence         // looking for or setting a fence
	CauseRead          // a reader of archived records
	CauseRestore       // restore, adoption, rehydration
	CauseExport        // metadata exports, state objects, snapshots
	CauseScrub         // re-reading and repairing
	CauseGarbage       // deleting what nothing names
	CauseDoctor        // proving that a bucket works
	CauseMerge         // small segments become larger ones
	numCauses
)

var causes = [numCauses]struct {
	name  string
	class Class
}{
	CauseOther:   {"other", Background},
	CauseSegment: {"segment", Upload},
	CauseChain:   {"chain", Upload},
	CauseWAL:     {"wal", Upload},
	CauseFence:   {"fence", Upload},
	CauseRead:    {"read", Read},
	CauseRestore: {"restore", Read},
	CauseExport:  {"export", Background},
	CauseScrub:   {"scrub", Background},
	CauseGarbage: {"garbage", Background},
	CauseDoctor:  {"doctor", Background},
	CauseMerge:   {"merge", Background},
}

// String returns the cause's name in metrics.
func (c Cause) String() string {
	if c < numCauses {
		return causes[c].name
	}
	return causes[CauseOther].name
}

// Class returns the pool that the cause's calls compete in.
func (c Cause) Class() Class {
	if c < numCauses {
		return causes[c].class
	}
	return Background
}

type causeKey struct{}

// WithCause marks the calls made with the returned context.
func WithCause(ctx context.Context, c Cause) context.Context {
	return context.WithValue(ctx, causeKey{}, c)
}

// CauseOf returns the context's cause, CauseOther when it has none.
func CauseOf(ctx context.Context) Cause {
	c, _ := ctx.Value(causeKey{}).(Cause)
	return c
}

// For returns a view of s whose calls carry the cause c, for components that
// make requests for one reason only. Closing the view does not close s.
func For(s Store, c Cause) Store { return &view{s, c} }

type view struct {
	store Store
	cause Cause
}

func (v *view) mark(ctx context.Context) context.Context { return WithCause(ctx, v.cause) }

func (v *view) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, opts PutOptions) error {
	return v.store.Put(v.mark(ctx), key, body, size, opts)
}

func (v *view) Get(ctx context.Context, key string) (io.ReadCloser, Info, error) {
	return v.store.Get(v.mark(ctx), key)
}

func (v *view) GetRange(ctx context.Context, key string, p []byte, off int64) (int, error) {
	return v.store.GetRange(v.mark(ctx), key, p, off)
}

func (v *view) Head(ctx context.Context, key string) (Info, error) {
	return v.store.Head(v.mark(ctx), key)
}

func (v *view) List(ctx context.Context, prefix, startAfter string, limit int) (Page, error) {
	return v.store.List(v.mark(ctx), prefix, startAfter, limit)
}

func (v *view) Delete(ctx context.Context, keys []string) error {
	return v.store.Delete(v.mark(ctx), keys)
}

func (v *view) Capabilities() Capabilities { return v.store.Capabilities() }
func (v *view) Close() error               { return nil }

// Unwrap returns the store that the view marks calls for.
func (v *view) Unwrap() Store { return v.store }
