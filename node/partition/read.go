package partition

import (
	"context"
	"errors"
	"io"
	iofs "io/fs"
	"slices"
	"sort"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/segment"
)

// Read returns a run of whole batches in offset order, wherever they are: in
// memory, in local segment files or in the archive. The first one holds from,
// or is the first after it when from lies in no batch; about maxBytes at most,
// at least one batch. Batches may reach below the start of the
// log, and above the high watermark of the moment
// when the call began, never above that of its end. An empty run means that
// from is at or above the high watermark. buf is memory for reads and may be
// nil; the batches are valid until it is used again or released, and must not be
// changed.
//
// Errors: Gone below the start of the log (fact "oldest_offset"), Storage,
// Corrupt (the file says where), ArchiveUnavailable, or why the partition
// refuses service.
func (p *Partition) Read(ctx context.Context, from int64, maxBytes int, buf *Buffer) ([][]byte, error) {
	if err := p.Refused(); err != nil {
		return nil, err
	}
	if buf == nil {
		buf = new(Buffer)
	}
	buf.Release()
	for {
		if from >= p.HighWatermark() {
			return nil, nil
		}
		if oldest := p.Oldest(); from < oldest {
			return nil, p.trimmed(from, oldest)
		}
		if run := p.readTail(from, maxBytes, buf); len(run) > 0 {
			return run, nil
		}
		run, err := p.readFiles(from, maxBytes, buf)
		if p.elsewhere(from, err) {
			run, err = nil, nil
		}
		if err != nil || len(run) > 0 {
			return run, p.judge(from, run, err)
		}
		run, next, err := p.readArchive(ctx, from, maxBytes, buf)
		if err != nil || len(run) > 0 {
			return run, p.judge(from, run, err)
		}
		from = next
	}
}

// judge says what a read at offset from came to. The start is raised before a
// file goes: records that were found then count, but not to find them, or to
// find only what follows, means that they were trimmed meanwhile.
func (p *Partition) judge(from int64, run [][]byte, err error) error {
	if oldest := p.Oldest(); from < oldest && (err != nil || !begins(run, from)) {
		return p.trimmed(from, oldest)
	}
	return p.because(err)
}

// begins says whether the first batch of run holds offset.
func begins(run [][]byte, offset int64) bool {
	if len(run) == 0 {
		return false
	}
	h, err := segment.ParseHeader(run[0])
	return err == nil && h.BaseOffset <= offset && offset < h.NextOffset()
}

// reaches says whether a batch of run ends above offset: a reader gets on with it.
func reaches(run [][]byte, offset int64) bool {
	if len(run) == 0 {
		return false
	}
	h, err := segment.ParseHeader(run[len(run)-1])
	return err == nil && h.NextOffset() > offset
}

// trimmed answers a read below the start of the log.
func (p *Partition) trimmed(offset, oldest int64) error {
	hw := p.HighWatermark()
	return errcode.New(errcode.Gone, "offset %d was trimmed: the log of partition %d begins at %d and ends at %d", offset, p.ID.Partition, oldest, hw).
		With("oldest_offset", oldest).With("high_watermark", hw)
}

// because gives the reason of a read that failed when the partition went out
// of service meanwhile: its files are gone then, and that is no damage.
func (p *Partition) because(err error) error {
	if err == nil {
		return nil
	}
	if refused := p.Refused(); refused != nil {
		return refused
	}
	return err
}

// Buffer is memory that reads reuse, and what the archive has lent to the last
// of them.
type Buffer struct {
	data []byte
	run  [][]byte
	lent func() // gives the archive's batches back; nil: there are none
}

// Release ends the use of what the last read returned. A buffer that is
// forgotten instead costs the archive's cache the reuse of some memory.
func (b *Buffer) Release() {
	if b.lent != nil {
		b.lent()
		b.lent = nil
	}
}

// Shrink is Release that keeps no more than so many bytes for the next read.
func (b *Buffer) Shrink(most int) {
	b.Release()
	b.run = nil
	if cap(b.data) > most {
		b.data = nil
	}
}

// copyAtOnce is about how many bytes a read copies under the partition's lock.
const copyAtOnce = 256 << 10

func (p *Partition) readTail(from int64, maxBytes int, buf *Buffer) [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := &p.mu.tail
	i, ok := t.find(from)
	if !ok {
		return nil
	}
	buf.run, buf.data = buf.run[:0], buf.data[:0]
	for size := 0; i < t.visible; i++ {
		data := t.at(i).data
		if size > 0 && (size+len(data) > maxBytes || len(buf.data) > copyAtOnce) {
			break
		}
		size += len(data)
		if len(data) <= SmallBatch {
			// What was copied before stays where it is if this moves buf.data.
			at := len(buf.data)
			buf.data = append(buf.data, data...)
			data = buf.data[at:len(buf.data):len(buf.data)]
		}
		buf.run = append(buf.run, data)
	}
	return buf.run
}

// readFiles reads from the local segment that holds from or, when from lies
// between two of them, from the later one if nothing archived lies between.
func (p *Partition) readFiles(from int64, maxBytes int, buf *Buffer) ([][]byte, error) {
	s, err := p.segmentFor(from)
	if err != nil || s.Reader == nil {
		return nil, err
	}
	defer s.release()
	return s.readRun(from, maxBytes, buf)
}

// source is a local segment file that is open for reading.
type source struct {
	*segment.Reader // nil: there is no such file
	bytes           io.ReaderAt
	path            string
	release         func()
}

// segmentFor returns the local segment that holds from.
func (p *Partition) segmentFor(from int64) (source, error) {
	for {
		p.files.RLock()
		if w := p.files.active; w != nil && from >= p.files.meta.Base {
			r := w.Reader()
			if from < r.Next() {
				// The lock stays held, so that nobody closes the writer.
				return source{r, w, w.Path(), p.files.RUnlock}, nil
			}
		}
		sealed := p.files.sealed
		i := sort.Search(len(sealed), func(i int) bool { return sealed[i].Next > from })
		if i == len(sealed) || from < sealed[i].Base && p.archivedAbove(from) {
			p.files.RUnlock()
			return source{}, nil
		}
		s := sealed[i] // Confirm changes it in place
		path := p.segmentPath(s.Base)
		p.files.RUnlock()
		h, err := p.openSealed(&s)
		if errors.Is(err, iofs.ErrNotExist) && p.forgetMissing(path) {
			continue // look again: evicted since, or the archive has it
		}
		if err != nil {
			return source{}, err
		}
		return source{h.Reader, h.file, path, func() { p.e.handles.release(h) }}, nil
	}
}

// archivedAbove says whether the archive may hold offsets from from on.
func (p *Partition) archivedAbove(from int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return from < p.mu.archivedEnd
}

// forgetMissing says whether to look again for what a sealed file that is not
// there held: the file is not listed any more, or the archive has its records,
// and it is listed no longer.
func (p *Partition) forgetMissing(path string) bool {
	p.files.Lock()
	defer p.files.Unlock()
	for i := range p.files.sealed {
		s := &p.files.sealed[i]
		if p.segmentPath(s.Base) != path {
			continue
		}
		if !p.covered(s) {
			return false
		}
		p.e.opts.Logger.Warn("local copy of an archived segment is missing, reads go to the archive", "file", path)
		// A new array: readers hold the old one.
		p.files.sealed = slices.Concat(p.files.sealed[:i], p.files.sealed[i+1:])
		return true
	}
	return true
}

// covered says whether what s holds can be read elsewhere, or never will be: the
// chain has it, or it was trimmed.
func (p *Partition) covered(s *state.Sealed) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return s.Confirmed || s.Next <= max(p.mu.archivedEnd, p.mu.oldest)
}

// readRun reads whole batches of one segment with one read and verifies them.
func (s source) readRun(from int64, maxBytes int, buf *Buffer) ([][]byte, error) {
	x := s.Index()
	first := x.SeekOffset(from)
	if first+1 < x.Len() && x.At(first+1).Base <= from {
		first++
	}
	start := x.At(first).Position
	last := first
	for last+1 < x.Len() && x.At(last+1).End()-start <= int64(maxBytes) {
		last++
	}
	size := int(x.At(last).End() - start)
	if cap(buf.data) < size {
		buf.data = make([]byte, size)
	}
	data := buf.data[:size]
	if n, err := s.bytes.ReadAt(data, start); n < size {
		return nil, errcode.New(errcode.Storage, "read %s at position %d: %d of %d bytes: %w", s.path, start, n, size, err)
	}
	buf.run = buf.run[:0]
	for len(data) > 0 {
		batch, rest, err := segment.NextBatch(data)
		if err == nil {
			_, err = segment.VerifyBatch(batch)
		}
		if err != nil && reaches(buf.run, from) {
			break // what stands before the damage is whole; the next read meets it
		}
		if err != nil {
			return nil, errcode.Wrap(errcode.Corrupt, err, "%s: position %d", s.path, start+int64(size-len(data)))
		}
		buf.run = append(buf.run, batch)
		data = rest
	}
	// Because of gaps from may lie behind the first batch's last record.
	if h, err := segment.ParseHeader(buf.run[0]); err == nil && h.NextOffset() <= from && len(buf.run) > 1 {
		return buf.run[1:], nil
	}
	return buf.run, nil
}

// readArchive reads what no local file holds. An empty run says where to go on:
// there, in a later local file or in memory.
func (p *Partition) readArchive(ctx context.Context, from int64, maxBytes int, buf *Buffer) (run [][]byte, next int64, err error) {
	if next := p.afterGap(from); next != from {
		return nil, next, nil // nothing, when that generation has no records yet
	}
	if p.e.opts.Archive == nil {
		return nil, 0, errcode.New(errcode.Corrupt, "partition %s: offset %d is below the high watermark %d and in no local file: restore the node from the archive", p.ID, from, p.HighWatermark())
	}
	run, release, err := p.e.opts.Archive.Read(ctx, p.ID, from, maxBytes, p.localAfter(from))
	if err != nil || len(run) > 0 {
		buf.lent = release
		return run, 0, err
	}
	// Nothing archived at or after from: the records begin behind a gap, in
	// the next local file or in memory.
	if next, ok := p.firstLocalAfter(from); ok {
		return nil, next, nil
	}
	if oldest := p.Oldest(); from < oldest { // trimmed meanwhile
		return nil, 0, p.trimmed(from, oldest)
	}
	return nil, 0, errcode.New(errcode.Corrupt, "partition %s: offset %d is below the high watermark %d, but neither local files nor the archive have it", p.ID, from, p.HighWatermark())
}

// localAfter is where this node's own records go on above from.
func (p *Partition) localAfter(from int64) int64 {
	if local, ok := p.firstLocalAfter(from); ok {
		return local
	}
	return p.HighWatermark()
}

// firstLocalAfter is the first offset above from that is on this node.
func (p *Partition) firstLocalAfter(from int64) (int64, bool) {
	p.files.RLock()
	defer p.files.RUnlock()
	for i := range p.files.sealed {
		if b := p.files.sealed[i].Base; b > from {
			return b, true
		}
	}
	if p.files.active != nil && p.files.meta.Base > from {
		return p.files.meta.Base, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := &p.mu.tail; t.visible > 0 && t.at(0).base > from {
		return t.at(0).base, true
	}
	return 0, false
}

// afterGap is offset, or the end of the gap around it.
func (p *Partition) afterGap(offset int64) int64 {
	for _, g := range p.Gaps() {
		if g[0] <= offset && offset < g[1] {
			return g[1]
		}
	}
	return offset
}

// Oldest is the start of the log: the lowest offset that is not trimmed.
func (p *Partition) Oldest() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.oldest
}

// localStart is the offset from which on this node holds every record in files,
// or in memory because it is in none yet. Records that are in memory too do not
// count: their file may be gone.
func (p *Partition) localStart() int64 {
	p.files.RLock()
	defer p.files.RUnlock()
	p.mu.Lock()
	start := p.hw.Load()
	if t := &p.mu.tail; t.flushed < t.visible {
		start = t.at(t.flushed).base
	}
	p.mu.Unlock()
	if p.files.active != nil {
		start = p.files.meta.Base
	}
	for i := len(p.files.sealed) - 1; i >= 0; i-- {
		s := &p.files.sealed[i]
		if s.Next < start && p.afterGap(s.Next) < start {
			return start
		}
		start = s.Base
	}
	return start
}
