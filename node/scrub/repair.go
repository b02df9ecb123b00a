package scrub

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// outcome is what became of a damaged copy.
type outcome struct {
	done     string // what was done, or what to do
	repaired bool
	gone     bool  // nothing names the copy any more
	err      error // what it needs does not answer: it is tried again
}

func todo(format string, args ...any) outcome { return outcome{done: fmt.Sprintf(format, args...)} }

func mended(format string, args ...any) outcome {
	return outcome{done: fmt.Sprintf(format, args...), repaired: true}
}

func (s *Scrubber) repair(ctx context.Context, u *unit, bad string) outcome {
	if u.tier == local {
		return s.repairFile(ctx, u)
	}
	return s.repairObject(ctx, u, bad)
}

// repairFile gets a damaged file back from the archive.
func (s *Scrubber) repairFile(ctx context.Context, u *unit) outcome {
	f := &u.file
	if s.o.Archive == nil {
		return todo("it is the only copy: put the file back from a backup and restart the node")
	}
	x, ok, err := s.o.Archive.Next(ctx, u.id, f.Base)
	switch {
	case err != nil:
		return outcome{err: err}
	case ok && same(&x, f):
		return s.fetch(ctx, u, &x)
	case f.Confirmed:
		return s.setAside(ctx, u)
	default:
		return todo("the archive does not have its bytes: put the file back from a backup and restart the node")
	}
}

// fetch puts the object's bytes into the file's place.
func (s *Scrubber) fetch(ctx context.Context, u *unit, x *manifest.Segment) outcome {
	obj := s.object(ctx, x)
	kept, err := s.o.Partitions.Mend(u.id, &u.file.Info, func(w io.Writer) error {
		_, err := io.CopyBuffer(struct{ io.Writer }{w}, io.NewSectionReader(obj, 0, x.Bytes), make([]byte, step))
		return err
	})
	switch {
	case err == nil:
	case obj.failed != nil:
		return outcome{err: obj.failed}
	case obj.wrong != "" || errcode.Is(err, errcode.Corrupt):
		s.suspect(place{archived, u.id, x.Base}) // it has a finding of its own
		return todo("both copies are bad, the object %s as well (%v): put one of them back from a backup or from the bucket's versions", x.Key(), err)
	case errcode.Is(err, errcode.Conflict):
		return outcome{gone: true}
	default:
		return outcome{err: err}
	}
	if v := s.checkFile(ctx, u); v.bad != "" {
		return todo("a good copy was fetched from %s, and reads damaged as well (%s): replace the disk", x.Key(), v.bad)
	}
	s.o.Mended(u.id)
	done := "replaced by the bytes of " + x.Key()
	if kept != "" {
		done += "; what was there is kept as " + kept
	}
	if s.o.Partitions.Refused(u.id) != nil {
		done += "; the partition went out of service at the start: restart the node to serve it"
	}
	return mended("%s", done)
}

// setAside lets the archive serve what a confirmed file holds, whose object was
// merged into another one since.
func (s *Scrubber) setAside(ctx context.Context, u *unit) outcome {
	for at := u.file.Base; at < u.file.Next; {
		x, ok, err := s.o.Archive.Next(ctx, u.id, at)
		switch {
		case err != nil:
			return outcome{err: err}
		case !ok || x.Base > at:
			return todo("the archive does not have offset %d of it any more: put the file back from a backup and restart the node", at)
		}
		v := s.check(ctx, &unit{tier: archived, id: u.id, seg: x})
		switch {
		case v.err != nil:
			return outcome{err: v.err}
		case v.bad != "":
			s.suspect(place{archived, u.id, x.Base})
			return todo("both copies are bad, the object %s as well (%s): put one of them back from a backup or from the bucket's versions", x.Key(), v.bad)
		}
		at = x.Next
	}
	kept, err := s.o.Partitions.SetAside(u.id, &u.file.Info)
	switch {
	case errcode.Is(err, errcode.Conflict):
		return outcome{gone: true}
	case err != nil:
		return outcome{err: err}
	case kept == "":
		return mended("removed: its records are read from the archive, which was verified")
	}
	return mended("set aside as %s: its records are read from the archive, which was verified", kept)
}

// repairObject gets a damaged or missing object back from the local file.
func (s *Scrubber) repairObject(ctx context.Context, u *unit, bad string) outcome {
	x := &u.seg
	// Somebody may have merged or trimmed it since it was found in the chain.
	if err := s.o.Archive.Refresh(ctx, u.id); err != nil {
		return outcome{err: err}
	}
	switch now, ok, err := s.o.Archive.Next(ctx, u.id, x.Base); {
	case err != nil:
		return outcome{err: err}
	case !ok || now != *x:
		return outcome{gone: true}
	}
	list := s.o.Partitions.Files(u.id, x.Base, 1)
	if len(list) == 0 || !same(x, &list[0]) {
		return todo("this node has no file with its bytes: put the object back from the bucket's versions or a replica")
	}
	good := unit{tier: local, id: u.id, file: list[0]}
	switch v := s.check(ctx, &good); {
	case v.err != nil:
		return outcome{err: v.err}
	case v.gone:
		return todo("the local file left this node meanwhile: put the object back from the bucket's versions or a replica")
	case v.bad != "":
		s.suspect(place{local, u.id, x.Base})
		return todo("both copies are bad, the file %s as well (%s): put one of them back from a backup or from the bucket's versions", list[0].Path, v.bad)
	}
	if bad == missing {
		return s.putBack(ctx, u, &good.file)
	}
	return s.putAnew(ctx, u, &good.file)
}

// putBack puts a missing object under its own key, which the chain names.
func (s *Scrubber) putBack(ctx context.Context, u *unit, f *File) outcome {
	// Exists: an earlier try whose answer was lost, or somebody put it back. What
	// stands there is verified in any case.
	if err := s.put(ctx, u.seg.Key(), f); err != nil && !errcode.Is(err, errcode.Exists) {
		return outcome{err: err}
	}
	switch v := s.checkObject(ctx, u); {
	case v.err != nil:
		return outcome{err: v.err}
	case v.bad != "":
		return outcome{err: errcode.New(errcode.Transient, "the store took %s, but %s", u.seg.Key(), v.bad)}
	}
	return mended("put again from %s", f.Path)
}

// putAnew puts the file's bytes under a new key and that key into the chain. The
// damaged object is given up only when the chain does not name it any more.
func (s *Scrubber) putAnew(ctx context.Context, u *unit, f *File) outcome {
	chain, err := s.o.Archive.Own(ctx, u.id)
	if err != nil {
		return outcome{err: err}
	}
	if chain.Paged(u.seg.Base) {
		return todo("the chain lists it in a page, where it cannot be replaced: copy the file %s, which is good, over the object by hand", f.Path)
	}
	anew := unit{tier: archived, id: u.id, seg: u.seg}
	anew.seg.Generation, anew.seg.Nonce = chain.Generation(), s.o.Nonce()
	key := anew.seg.Key()
	if err := s.put(ctx, key, f); err != nil {
		return outcome{err: err}
	}
	switch v := s.checkObject(ctx, &anew); {
	case v.err != nil:
		return outcome{err: v.err}
	case v.bad != "":
		return outcome{err: errcode.New(errcode.Transient, "the store took %s, but %s", key, v.bad)}
	}
	err = chain.Replace(ctx, u.seg, anew.seg)
	switch {
	case errcode.Is(err, errcode.Conflict):
		return outcome{gone: true} // merged or trimmed meanwhile; what was put is an orphan
	case err != nil:
		return outcome{err: err}
	}
	s.o.Discard(u.id, []manifest.Segment{u.seg})
	return mended("uploaded again from %s as %s; the chain names that one now", f.Path, key)
}

// put uploads a file that was verified just now. The store compares what arrives
// with the sums.
func (s *Scrubber) put(ctx context.Context, key string, f *File) error {
	file, err := s.o.FS.Open(f.Path, vfs.SequentialReadsOption)
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "open %s", f.Path)
	}
	defer file.Close()
	return s.o.Store.Put(ctx, key, io.NewSectionReader(file, 0, f.Bytes), f.Bytes,
		objstore.PutOptions{CreateOnly: true, SHA256: &f.FileSHA256, CRC32C: &f.FileCRC32C})
}

func randomNonce() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails: the runtime ends the process instead
	return binary.BigEndian.Uint32(b[:])
}
