package partition

import (
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	iofs "io/fs"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/segment"
)

const (
	damagedExt = ".damaged" // evidence: what stood there before a file was mended
	mendExt    = ".mend"    // the copy while it is fetched

	// maxDamaged bounds the damaged files that are kept of one partition. What
	// comes after them is not kept: the first ones tell what began.
	maxDamaged = 4
)

// File is a sealed segment file as the local state describes it; what the disk
// has may differ, which is for its reader to find out.
type File struct {
	state.Sealed
	Path string
}

// Files returns up to limit sealed segment files of p that begin at or above from,
// ascending. Of a partition that is out of service because of its files they are
// those that the local state names.
func (p *Partition) Files(from int64, limit int) (out []File) {
	p.files.RLock()
	defer p.files.RUnlock()
	list := p.files.sealed
	if p.files.unopened != nil {
		list = p.files.unopened
	}
	for i := range list {
		if len(out) == limit {
			break
		}
		if s := &list[i]; s.Base >= from {
			out = append(out, File{Sealed: *s, Path: p.segmentPath(s.Base)})
		}
	}
	return out
}

// named says whether the segment info is one of p's files still.
func (p *Partition) named(info *segment.Info) bool {
	for _, f := range p.Files(info.Base, 1) {
		return f.Base == info.Base && f.FileSHA256 == info.FileSHA256
	}
	return false
}

// Mend puts what fetch writes in the place of p's sealed segment file info, which
// is damaged or missing. fetch has to write exactly the bytes that were sealed;
// nothing is changed unless it does. Who reads the old file finishes with it, the
// next one opens the new one. What stood there is kept under the name that is
// returned, "" when there was nothing or enough is kept already.
//
// Errors: Corrupt (fetch wrote something else), Conflict (the segment is not p's
// any more: evicted or trimmed meanwhile), fetch's, Storage. Mend serves a
// partition that is out of service too; it goes back into service at a restart.
func (e *Engine) Mend(p *Partition, info *segment.Info, fetch func(w io.Writer) error) (kept string, err error) {
	path := p.segmentPath(info.Base)
	tmp := path + mendExt
	if err := e.fetchTo(tmp, path, info, fetch); err != nil {
		_ = e.opts.FS.Remove(tmp) // the next start removes it, if this does not
		return "", err
	}
	p.flush.Lock() // an eviction or a trim now would leave a file that nothing names
	defer p.flush.Unlock()
	if !p.named(info) || errcode.Is(p.Refused(), errcode.NotFound) {
		_ = e.opts.FS.Remove(tmp)
		return "", errcode.New(errcode.Conflict, "segment %s left this node while it was mended", path)
	}
	kept = e.keepDamaged(p, path)
	// The copy is synced: from the rename on, whatever a crash leaves under the
	// name is whole, or the damaged file again.
	if err := e.opts.FS.Rename(tmp, path); err != nil {
		return kept, errcode.Wrap(errcode.Storage, err, "rename %s", tmp)
	}
	err = e.syncNames(p.dir)
	e.handles.forgetFile(path)
	return kept, err
}

// SetAside takes the damaged file of a segment that the archive confirmed out of
// p, as an eviction does: reads of it go to the archive from then on. The file is
// kept under the name that is returned, unless enough is kept already. Conflict:
// it is not confirmed, or not p's any more.
func (e *Engine) SetAside(p *Partition, info *segment.Info) (kept string, err error) {
	p.flush.Lock()
	defer p.flush.Unlock()
	if err := p.Refused(); err != nil {
		return "", err
	}
	gone := slices.DeleteFunc(p.evictable(info.Next), func(s state.Sealed) bool {
		return s.Base != info.Base || s.FileSHA256 != info.FileSHA256
	})
	if len(gone) == 0 {
		return "", errcode.New(errcode.Conflict, "segment %s is not confirmed in the archive, or left this node meanwhile", p.segmentPath(info.Base))
	}
	if err := e.commitFiles(p, gone, func(*state.Partition) {}); err != nil {
		return "", err
	}
	kept = e.keepDamaged(p, p.segmentPath(info.Base))
	e.unlink(p, gone, nil)
	return kept, nil
}

// fetchTo makes tmp a durable file of exactly the sealed bytes.
func (e *Engine) fetchTo(tmp, path string, info *segment.Info, fetch func(w io.Writer) error) error {
	if err := e.opts.DiskOK(); err != nil {
		return err
	}
	f, err := e.opts.FS.Create(tmp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "create %s", tmp)
	}
	w := &mendWriter{f: f, left: info.Bytes, sum: sha256.New(), path: path}
	err = fetch(w)
	if err == nil && (w.left != 0 || [32]byte(w.sum.Sum(nil)) != info.FileSHA256) {
		err = errcode.New(errcode.Corrupt, "the copy for segment %s is not what was sealed: SHA-256 %x, want %x, %d bytes are missing", path, w.sum.Sum(nil), info.FileSHA256, w.left)
	}
	if err == nil {
		// Before the rename: the sealed name promises that the content is there.
		err = errcode.Wrap(errcode.Storage, f.Sync(), "sync %s", tmp)
	}
	if closeErr := f.Close(); err == nil {
		err = errcode.Wrap(errcode.Storage, closeErr, "close %s", tmp)
	}
	return err
}

// mendWriter writes a copy, no longer than it may be, and computes its sum.
type mendWriter struct {
	f    vfs.File
	left int64
	sum  hash.Hash
	path string
}

func (w *mendWriter) Write(b []byte) (int, error) {
	if int64(len(b)) > w.left {
		return 0, errcode.New(errcode.Corrupt, "the copy for segment %s is longer than what was sealed", w.path)
	}
	_, _ = w.sum.Write(b) // never fails; before the file, which may do with b as it likes
	n, err := w.f.Write(b)
	w.left -= int64(n)
	return n, errcode.Wrap(errcode.Storage, err, "write a copy for segment %s", w.path)
}

// keepDamaged gives the file at path a second name, under which it stays. It is
// evidence and no data: a failure costs nothing but that.
func (e *Engine) keepDamaged(p *Partition, path string) string {
	names, err := e.opts.FS.List(p.dir)
	if err != nil {
		return ""
	}
	kept := path + damagedExt
	n := 0
	for _, name := range names {
		if strings.HasSuffix(name, damagedExt) {
			n++
		}
		if e.opts.FS.PathJoin(p.dir, name) == kept {
			return kept // of an earlier damage, or of a try that a crash ended
		}
	}
	if n >= maxDamaged {
		return ""
	}
	if err := e.opts.FS.Link(path, kept); err != nil {
		if !errors.Is(err, iofs.ErrNotExist) {
			e.opts.Logger.Warn("a damaged segment file could not be kept for examination", "file", path, "error", err)
		}
		return ""
	}
	return kept
}

// syncNames makes the names in a directory durable.
func (e *Engine) syncNames(dir string) error {
	d, err := e.opts.FS.OpenDir(dir)
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "open directory %s", dir)
	}
	err = d.Sync()
	if closeErr := d.Close(); err == nil {
		err = closeErr
	}
	return errcode.Wrap(errcode.Storage, err, "sync directory %s", dir)
}

// sweepMends removes copies that a crash left half fetched. Nothing else runs yet.
func (p *Partition) sweepMends() {
	names, err := p.e.opts.FS.List(p.dir)
	if err != nil {
		return // whoever needs the directory says so
	}
	for _, name := range names {
		if strings.HasSuffix(name, mendExt) {
			p.e.remove(p.e.opts.FS.PathJoin(p.dir, name))
		}
	}
}

// elsewhere says whether the damage that a read of a local file at offset met is
// no loss: the archive has exactly these bytes, and the read goes on there.
func (p *Partition) elsewhere(offset int64, err error) bool {
	if !errcode.Is(err, errcode.Corrupt) || p.e.opts.Archive == nil {
		return false
	}
	p.files.RLock()
	at := int64(-1)
	for i := range p.files.sealed {
		if s := &p.files.sealed[i]; s.Base <= offset && offset < s.Next && s.Confirmed {
			at = s.Base
		}
	}
	p.files.RUnlock()
	if at >= 0 {
		p.e.metrics.passed.Inc()
		p.e.opts.OnDamaged(p.ID, at, err)
	}
	return at >= 0
}
