package merge

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/upload"
)

// inputError is an error about one input.
type inputError struct {
	key   string
	local bool // its local copy
	err   error
}

func (e *inputError) Error() string { return e.err.Error() }

func (e *inputError) Unwrap() error { return e.err }

// build puts the batches of a run into one sealed file. The inputs' local files
// are read where there are any; when one is not what the chain describes the run
// is read from the archive, which is what the output replaces.
func (m *Merger) build(ctx context.Context, run []manifest.Segment) (upload.Sealed, error) {
	sealed, err := m.buildFrom(ctx, run, true)
	var in *inputError
	if errors.As(err, &in) && in.local {
		m.opts.Logger.Warn("a local segment file differs from its object in the archive, a merge reads the object", "file", in.key, "error", err)
		sealed, err = m.buildFrom(ctx, run, false)
	}
	return sealed, err
}

func (m *Merger) buildFrom(ctx context.Context, run []manifest.Segment, local bool) (out upload.Sealed, err error) {
	if err := m.empty(); err != nil {
		return out, err
	}
	first, last := &run[0], &run[len(run)-1]
	w, err := segment.Create(scratch{m.opts.FS}, m.opts.Dir, segment.Options{Topic: first.OriginTopic, Partition: first.Partition.Partition, Base: first.Base})
	if err != nil {
		return out, err
	}
	defer func() {
		if cerr := w.Close(); err == nil {
			err = cerr
		}
	}()
	records := int64(0)
	buf := make([]byte, min(readBytes, m.opts.TargetBytes))
	for i := range run {
		if buf, err = m.copy(ctx, w, &run[i], local, buf); err != nil {
			return out, err
		}
		records += run[i].Records
	}
	in, err := w.Seal()
	if err != nil {
		return out, err
	}
	if in.Base != first.Base || in.Next != last.Next || in.Records != records || in.Bytes > m.opts.TargetBytes {
		return out, errcode.New(errcode.Corrupt, "merge of offsets %d to %d with %d records gave %d to %d with %d records in %d bytes", first.Base, last.Next, records, in.Base, in.Next, in.Records, in.Bytes)
	}
	return upload.Sealed{Path: w.Path(), Info: in, OriginTopic: first.OriginTopic}, nil
}

// copy appends the batches of x to w, as they are. buf is for reading, and
// returned for the next one.
func (m *Merger) copy(ctx context.Context, w *segment.Writer, x *manifest.Segment, local bool, buf []byte) ([]byte, error) {
	src := m.open(ctx, x, local)
	defer src.close()
	fail := func(err error) error { return &inputError{src.name, src.local, err} }
	sum := sha256.New()
	for scan := segment.NewScanner(src.name, src.r, 0, x.DataLength, buf); ; {
		batch, h, err := scan.Next()
		if errors.Is(err, io.EOF) && scan.Pos() == x.DataLength {
			break
		}
		if err == nil && (h.BaseOffset < x.Base || h.NextOffset() > x.Next) {
			err = errcode.New(errcode.Corrupt, "%s: batch of offsets %d to %d, the chain says %d to %d", src.name, h.BaseOffset, h.NextOffset(), x.Base, x.Next)
		}
		if err != nil {
			return buf, fail(err)
		}
		sum.Write(batch)
		if err := w.Append(batch, x.MinAppend, x.MaxAppend); err != nil {
			if errcode.Is(err, errcode.Conflict) || errcode.Is(err, errcode.Corrupt) {
				// Its order contradicts what the chain says about it.
				err = fail(errcode.New(errcode.Corrupt, "%s: %w", src.name, err))
			}
			return buf, err
		}
	}
	if got := manifest.Hash(sum.Sum(nil)); got != x.DataSHA256 {
		return buf, fail(errcode.New(errcode.Corrupt, "%s: its data have SHA-256 %s, the chain says %s", src.name, got, x.DataSHA256))
	}
	return buf, nil
}

// empty makes the directory an empty one.
func (m *Merger) empty() error {
	fs, dir := m.opts.FS, m.opts.Dir
	if err := fs.RemoveAll(dir); err != nil {
		return errcode.Wrap(errcode.Storage, err, "empty %s", dir)
	}
	return errcode.Wrap(errcode.Storage, fs.MkdirAll(dir, 0o755), "create %s", dir)
}
