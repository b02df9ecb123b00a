package scrub

import (
	"context"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// verdict is what a look at one copy came to. The zero value: it is good.
type verdict struct {
	bad  string // what is wrong with it
	gone bool   // nothing names it any more
	err  error  // it could not be read, so nothing is known of it
}

// unit is one copy of one segment: a file or an object.
type unit struct {
	tier tier
	id   broker.PartitionID
	file File             // local
	seg  manifest.Segment // archive
}

func (u *unit) base() int64 {
	if u.tier == local {
		return u.file.Base
	}
	return u.seg.Base
}

func (u *unit) next() int64 {
	if u.tier == local {
		return u.file.Next
	}
	return u.seg.Next
}

func (u *unit) bytes() int64 {
	if u.tier == local {
		return u.file.Bytes
	}
	return u.seg.Bytes
}

// check looks at a copy, and once more at one that does not verify: memory, a
// cable, a proxy may have damaged what was read and not what is stored.
func (s *Scrubber) check(ctx context.Context, u *unit) verdict {
	look := s.checkFile
	if u.tier == archived {
		look = s.checkObject
	}
	v := look(ctx, u)
	if v.bad != "" {
		v = look(ctx, u)
	}
	return v
}

// checkFile verifies a local file.
func (s *Scrubber) checkFile(ctx context.Context, u *unit) verdict {
	f := &u.file
	file, err := s.o.FS.Open(f.Path, vfs.SequentialReadsOption)
	if errors.Is(err, iofs.ErrNotExist) {
		if !s.named(u) {
			return verdict{gone: true}
		}
		return verdict{bad: missing}
	}
	if err != nil {
		return verdict{err: errcode.Wrap(errcode.Storage, err, "open %s", f.Path)}
	}
	defer file.Close()
	forgetPages(file)
	defer forgetPages(file)
	st, err := file.Stat()
	if err != nil {
		return verdict{err: errcode.Wrap(errcode.Storage, err, "stat %s", f.Path)}
	}
	if st.Size() != f.Bytes {
		return verdict{bad: fmt.Sprintf("it has %d bytes, %d were sealed", st.Size(), f.Bytes)}
	}
	r := &pacedFile{ctx: ctx, f: file, s: s}
	rep, err := segment.Verify(f.Path, r, f.Bytes, false)
	switch {
	case err != nil && ctx.Err() != nil:
		return verdict{err: ctx.Err()}
	case err != nil:
		return verdict{err: err}
	case rep.Err() != nil:
		return verdict{bad: rep.Err().Error()}
	case rep.Info.FileSHA256 != f.FileSHA256:
		return verdict{bad: fmt.Sprintf("SHA-256 %x was sealed, it reads %x", f.FileSHA256, rep.Info.FileSHA256)}
	}
	return verdict{}
}

// named says whether the partition still has the file.
func (s *Scrubber) named(u *unit) bool {
	list := s.o.Partitions.Files(u.id, u.file.Base, 1)
	return len(list) == 1 && list[0].Base == u.file.Base && list[0].FileSHA256 == u.file.FileSHA256
}

// pacedFile pays for what is read of a file.
type pacedFile struct {
	ctx context.Context
	f   io.ReaderAt
	s   *Scrubber
}

// ReadAt implements io.ReaderAt.
func (p *pacedFile) ReadAt(b []byte, off int64) (int, error) {
	if err := p.s.pace.spend(p.ctx, len(b)); err != nil {
		return 0, err
	}
	return p.f.ReadAt(b, off)
}

// checkObject verifies an object against the chain's entry.
func (s *Scrubber) checkObject(ctx context.Context, u *unit) verdict {
	x := &u.seg
	obj := s.object(ctx, x)
	rep, err := segment.Verify(obj.key, obj, x.Bytes, false)
	switch {
	case obj.failed != nil:
		return verdict{err: obj.failed}
	case obj.wrong != "":
		return verdict{bad: obj.wrong}
	case err != nil:
		return verdict{err: err}
	case rep.Err() != nil:
		return verdict{bad: rep.Err().Error()}
	}
	in := &rep.Info
	if in.Base != x.Base || in.Next != x.Next || in.Records != x.Records || in.DataLength != x.DataLength || in.FooterPosition != x.FooterPosition || manifest.Hash(in.DataSHA256) != x.DataSHA256 {
		return verdict{bad: fmt.Sprintf("it is another segment: offsets %d to %d, %d records, SHA-256 of the data %x; the chain says %d to %d, %d, %s",
			in.Base, in.Next, in.Records, in.DataSHA256, x.Base, x.Next, x.Records, x.DataSHA256)}
	}
	return verdict{}
}

func (s *Scrubber) object(ctx context.Context, x *manifest.Segment) *object {
	return newObject(ctx, s.o.Store, x.Key(), x.Bytes, func(n int) error { return s.pace.spend(ctx, n) })
}

// same says whether a chain's segment is exactly a file.
func same(x *manifest.Segment, f *File) bool {
	return x.Base == f.Base && x.Next == f.Next && x.Records == f.Records && x.Bytes == f.Bytes && x.DataSHA256 == manifest.Hash(f.DataSHA256)
}

// lostBytes says whether a read that failed again and again means that the disk
// has lost the bytes, and not that it cannot be asked.
func lostBytes(err error) bool { return errors.Is(err, syscall.EIO) }
