package upload

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"
	"io"

	"golang.org/x/time/rate"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// rateStep is the most that one read takes from the rate limiter.
const rateStep = 64 << 10

// body streams a sealed file to the store. While it is read in order it
// computes the CRC-32C, and withholds the last bytes when the whole is not what
// was sealed: a store that checks nothing then has no complete object either.
type body struct {
	ctx   context.Context
	r     io.ReaderAt
	path  string
	size  int64
	want  uint32
	limit *rate.Limiter // nil: none

	pos   int64
	crc   uint32
	order bool  // everything up to pos was read in order
	err   error // what the file had wrong, sticky
}

func newBody(ctx context.Context, r io.ReaderAt, path string, size int64, want uint32, limit *rate.Limiter) *body {
	return &body{ctx: ctx, r: r, path: path, size: size, want: want, limit: limit, order: true}
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if b.pos == b.size {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), b.size-b.pos)]
	if b.limit != nil {
		p = p[:min(len(p), rateStep)]
		if err := b.limit.WaitN(b.ctx, len(p)); err != nil {
			return 0, errcode.Wrap(errcode.Canceled, err, "read %s", b.path)
		}
	}
	n, err := b.r.ReadAt(p, b.pos)
	if n < len(p) {
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		b.err = errcode.New(errcode.Storage, "read %s at position %d: %w", b.path, b.pos+int64(n), err)
		return 0, b.err
	}
	b.pos += int64(n)
	if b.order {
		b.crc = crc32.Update(b.crc, castagnoli, p)
		if b.pos == b.size && b.crc != b.want {
			b.err = errcode.New(errcode.Corrupt, "segment file %s is damaged: CRC-32C %08x was sealed, it reads %08x; it is not uploaded", b.path, b.want, b.crc)
			return 0, b.err
		}
	}
	return n, nil
}

// Seek implements io.Seeker.
func (b *body) Seek(off int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		off += b.pos
	case io.SeekEnd:
		off += b.size
	}
	if off < 0 || off > b.size {
		return b.pos, errcode.New(errcode.InvalidArgument, "seek %s to %d of %d", b.path, off, b.size)
	}
	switch {
	case off == 0:
		b.crc, b.order = 0, true
	case off != b.pos:
		b.order = false
	}
	b.pos = off
	return off, nil
}

// checkFile reads a whole file and compares it with what was sealed.
func checkFile(r io.ReaderAt, path string, size int64, crc uint32, sum [32]byte) error {
	h := sha256.New()
	b := newBody(context.Background(), r, path, size, crc, nil)
	if _, err := io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{b}, make([]byte, 256<<10)); err != nil {
		return err
	}
	if got := [32]byte(h.Sum(nil)); got != sum {
		return errcode.New(errcode.Corrupt, "segment file %s is damaged: SHA-256 %x was sealed, it reads %x; it is not uploaded", path, sum, got)
	}
	return nil
}

func randomNonce() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails: the runtime ends the process instead
	return binary.BigEndian.Uint32(b[:])
}
