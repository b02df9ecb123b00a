package upload

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	iofs "io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/time/rate"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// errDamaged marks an error about the local file or the segment's place: no
// retry can help.
type errDamaged struct{ error }

func (e errDamaged) Unwrap() error { return e.error }

// sender brings sealed files into a store.
type sender struct {
	fs    vfs.FS
	store objstore.Store
	limit *rate.Limiter     // nil: none
	taken func(bytes int64) // an object was taken by the store
}

// put brings the object of it.attempt into the store, or proves that it is
// there already.
func (u *sender) put(ctx context.Context, pid broker.PartitionID, it *item) error {
	s := &it.sealed
	f, err := u.fs.Open(s.Path, vfs.SequentialReadsOption)
	if errors.Is(err, iofs.ErrNotExist) {
		return errDamaged{errcode.New(errcode.NotFound, "segment file %s is missing and offsets %d to %d are not archived: restore the file, or record a gap", s.Path, s.Info.Base, s.Info.Next)}
	}
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "open %s", s.Path)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "stat %s", s.Path)
	}
	if st.Size() != s.Info.Bytes {
		return errDamaged{errcode.New(errcode.Corrupt, "segment file %s is damaged: %d bytes were sealed, it has %d; it is not uploaded", s.Path, s.Info.Bytes, st.Size())}
	}
	key := segmentOf(pid, s, it.attempt).Key()
	if it.sent {
		return u.readBack(ctx, key, f, it)
	}
	b := newBody(ctx, f, s.Path, s.Info.Bytes, s.Info.FileCRC32C, u.limit)
	err = u.store.Put(ctx, key, b, s.Info.Bytes, objstore.PutOptions{CreateOnly: true, SHA256: &s.Info.FileSHA256, CRC32C: &s.Info.FileCRC32C})
	switch {
	case err == nil:
		u.taken(s.Info.Bytes)
		it.sent = true
		return u.readBack(ctx, key, f, it)
	case errcode.Is(b.err, errcode.Corrupt):
		return errDamaged{b.err}
	case b.err != nil:
		return b.err
	case errcode.Is(err, errcode.Exists):
		return u.confirm(ctx, key, it)
	case errcode.Is(err, errcode.Corrupt):
		// The store got other bytes than were sealed. Either the file has
		// changed or the way to the store did it: the file says which.
		if ferr := checkFile(f, s.Path, s.Info.Bytes, s.Info.FileCRC32C, s.Info.FileSHA256); ferr != nil {
			if errcode.Is(ferr, errcode.Corrupt) {
				return errDamaged{ferr}
			}
			return ferr
		}
		return errcode.New(errcode.Transient, "upload %s: the store received other bytes than the file has: %s", s.Path, err.Error())
	default:
		return errcode.Wrap(errcode.Transient, err, "upload %s", s.Path)
	}
}

// tailBytes is how much of an object's end is read back: the footer, which
// holds the hash of the data, and some of the index.
const tailBytes = 4 << 10

// readBack compares the end of an object that the store says it took with the
// file's. The store compared the whole with its sums as it arrived; what this
// finds is an object that is not there, or not whole: an answer that came
// before the bytes were kept. A local copy must not go on such an answer (I6).
func (u *sender) readBack(ctx context.Context, key string, f io.ReaderAt, it *item) error {
	size := it.sealed.Info.Bytes
	want := make([]byte, min(size, tailBytes))
	if _, err := f.ReadAt(want, size-int64(len(want))); err != nil {
		return errcode.Wrap(errcode.Storage, err, "read the end of %s", it.sealed.Path)
	}
	got := make([]byte, len(want)+1) // one more: an object that is longer is another one
	n, err := u.store.GetRange(ctx, key, got, size-int64(len(want)))
	switch {
	case errcode.Is(err, errcode.NotFound):
		it.sent = false // the same bytes go up under the same key
		return errcode.New(errcode.Transient, "the store took %s and does not have it: %s is uploaded again", key, it.sealed.Path)
	case err != nil:
		return errcode.Wrap(errcode.Transient, err, "read back %s", key)
	case !bytes.Equal(got[:n], want):
		return u.doubt(it, key, "it does not end as %s does", it.sealed.Path)
	}
	return nil
}

// doubt gives up an attempt's key once its object was read twice with another
// content: one answer may have been damaged on its way.
func (u *sender) doubt(it *item, key, format string, args ...any) error {
	it.doubts++
	it.fresh = it.doubts < 2
	return errcode.New(errcode.Transient, "object %s of an earlier attempt has other content: "+format+"; it is left alone", append([]any{key}, args...)...)
}

// confirm compares the object that an earlier try of this attempt left behind
// with what was sealed. Another content, seen twice, takes the key out of use.
func (u *sender) confirm(ctx context.Context, key string, it *item) error {
	body, info, err := u.store.Get(ctx, key)
	if err != nil {
		if errcode.Is(err, errcode.NotFound) {
			err = errcode.New(errcode.Transient, "the store says that %s exists and does not return it", key)
		}
		return errcode.Wrap(errcode.Transient, err, "confirm an earlier upload")
	}
	defer body.Close()
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(body, it.sealed.Info.Bytes+1))
	if err != nil {
		return errcode.Wrap(errcode.Transient, err, "read %s to confirm an earlier upload", key)
	}
	if n != it.sealed.Info.Bytes || info.Size != n || [32]byte(h.Sum(nil)) != it.sealed.Info.FileSHA256 {
		return u.doubt(it, key, "%d bytes, not those of %s", info.Size, it.sealed.Path)
	}
	return nil
}

// covered looks at the chain before an upload: done with the segment that
// already holds it.Info's range, or an error when the range cannot be added.
func covered(ctx context.Context, chain Chain, it *item) (seg manifest.Segment, same, done bool, err error) {
	in, end := &it.sealed.Info, chain.End()
	if in.Base >= end {
		return seg, false, false, nil
	}
	if in.Next > end {
		return seg, false, false, errDamaged{errcode.New(errcode.Conflict, "segment file %s holds offsets %d to %d and the archive ends at %d: cut it again there",
			it.sealed.Path, in.Base, in.Next, end).With("archived_offset", end)}
	}
	loc, err := chain.Find(ctx, in.Base)
	if err != nil {
		return seg, false, false, err
	}
	x := loc.Segment
	same = loc.Kind == manifest.InSegment && x.Base == in.Base && x.Next == in.Next && x.Records == in.Records &&
		x.Bytes == in.Bytes && x.DataSHA256 == manifest.Hash(in.DataSHA256)
	return x, same, true, nil
}
