package objstore

import (
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"hash/crc32"
	"io"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// castagnoli is the table of CRC-32C.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CheckBody rewinds body and returns InvalidArgument unless it holds exactly
// size bytes. Every backend calls it first: a length that is believed without
// looking would publish an object that is too short.
func CheckBody(key string, body io.ReadSeeker, size int64) error {
	if size < 0 {
		return errcode.New(errcode.InvalidArgument, "put %s: size %d is negative", key, size)
	}
	end, err := body.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = body.Seek(0, io.SeekStart)
	}
	if err != nil {
		return errcode.Wrap(errcode.Internal, err, "put %s: rewind the body", key)
	}
	if end != size {
		return errcode.New(errcode.InvalidArgument, "put %s: the body holds %d bytes, the caller said %d", key, end, size)
	}
	return nil
}

// Verifier hashes a body on its way and compares it with what PutOptions know.
type Verifier struct {
	opts PutOptions
	sha  hash.Hash
	crc  uint32
}

// NewVerifier returns a verifier for the sums that opts carry.
func NewVerifier(opts PutOptions) *Verifier {
	v := &Verifier{opts: opts}
	if opts.SHA256 != nil {
		v.sha = sha256.New()
	}
	return v
}

// Write implements io.Writer and never fails.
func (v *Verifier) Write(p []byte) (int, error) {
	v.Add(p)
	return len(p), nil
}

// Add hashes the next bytes of the body.
func (v *Verifier) Add(p []byte) {
	if v.sha != nil {
		v.sha.Write(p)
	}
	if v.opts.CRC32C != nil {
		v.crc = crc32.Update(v.crc, castagnoli, p)
	}
}

// Check returns Corrupt when the bytes written so far are not the ones that the
// options describe.
func (v *Verifier) Check(key string) error {
	if v.sha != nil {
		if got := [32]byte(v.sha.Sum(nil)); got != *v.opts.SHA256 {
			return errcode.New(errcode.Corrupt, "put %s: the body's SHA-256 is %x, want %x: the source is damaged", key, got, *v.opts.SHA256)
		}
	}
	if v.opts.CRC32C != nil && v.crc != *v.opts.CRC32C {
		return errcode.New(errcode.Corrupt, "put %s: the body's CRC-32C is %08x, want %08x: the source is damaged", key, v.crc, *v.opts.CRC32C)
	}
	return nil
}

// Ended returns the error of a call whose context is over, else nil.
func Ended(ctx context.Context, op, key string) error {
	if ctx.Err() == nil {
		return nil
	}
	return errcode.Wrap(errcode.Canceled, context.Cause(ctx), "%s %s", op, key)
}

// ExactBody wraps the body of a Get so that it keeps the contract: io.EOF after
// exactly size bytes, Transient when the bytes end early, go on too long or stop
// with an error of the transport, and Canceled when ctx is over.
func ExactBody(ctx context.Context, body io.ReadCloser, key string, size int64) io.ReadCloser {
	return &exactBody{ctx: ctx, body: body, key: key, size: size}
}

type exactBody struct {
	ctx  context.Context
	body io.ReadCloser
	key  string
	size int64
	read int64
	err  error // sticky
}

func (b *exactBody) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if b.err = Ended(b.ctx, "read", b.key); b.err != nil {
		return 0, b.err
	}
	n, err := b.body.Read(p)
	if over := b.read + int64(n) - b.size; over > 0 {
		n -= int(over)
		err = errcode.New(errcode.Transient, "read %s: the store sent more than the %d bytes it announced", b.key, b.size)
	}
	b.read += int64(n)
	b.err = b.judge(err)
	return n, b.err
}

// judge turns what the transport said into what the contract says.
func (b *exactBody) judge(err error) error {
	var coded *errcode.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &coded):
		return err
	case errors.Is(err, io.EOF) && b.read == b.size:
		return io.EOF
	case errors.Is(err, io.EOF):
		return errcode.New(errcode.Transient, "read %s: the answer ended after %d of %d bytes", b.key, b.read, b.size)
	case b.ctx.Err() != nil:
		return Ended(b.ctx, "read", b.key)
	default:
		return errcode.Wrap(errcode.Transient, err, "read %s: the answer broke after %d of %d bytes", b.key, b.read, b.size)
	}
}

func (b *exactBody) Close() error { return b.body.Close() }

// ReadAll returns the bytes of one object, at most max of them: a larger one is
// TooLarge and is not read. Bytes that the store's checksum disowns are asked for
// once more, for they may have been damaged on the way, before it is Corrupt.
func ReadAll(ctx context.Context, s Store, key string, max int64) ([]byte, Info, error) {
	return ReadInto(ctx, s, key, max, nil)
}

// ReadInto is ReadAll into the memory of buf, whatever its length, if its capacity
// is enough.
func ReadInto(ctx context.Context, s Store, key string, max int64, buf []byte) ([]byte, Info, error) {
	data, info, err := readInto(ctx, s, key, max, buf)
	if errcode.Is(err, errcode.Corrupt) {
		data, info, err = readInto(ctx, s, key, max, buf)
	}
	return data, info, err
}

func readInto(ctx context.Context, s Store, key string, max int64, buf []byte) ([]byte, Info, error) {
	var data []byte
	info, err := readWhole(ctx, s, key, max, func(body io.Reader, size int64) error {
		if int64(cap(buf)) < size {
			buf = make([]byte, size)
		}
		data = buf[:size]
		_, err := io.ReadFull(body, data)
		return err
	})
	if err != nil {
		return nil, Info{}, err
	}
	return data, info, nil
}

// Sum reads one object, of at most max bytes, for its CRC-32C alone: it needs no
// memory for the bytes. Its errors are those of ReadAll.
func Sum(ctx context.Context, s Store, key string, max int64) (uint32, Info, error) {
	sum, info, err := readSum(ctx, s, key, max)
	if errcode.Is(err, errcode.Corrupt) {
		sum, info, err = readSum(ctx, s, key, max)
	}
	return sum, info, err
}

const sumBytes = 256 << 10 // that a sum is taken of at a time

func readSum(ctx context.Context, s Store, key string, most int64) (uint32, Info, error) {
	h := crc32.New(castagnoli)
	info, err := readWhole(ctx, s, key, most, func(body io.Reader, size int64) error {
		n, err := io.CopyBuffer(h, io.LimitReader(body, size), make([]byte, max(1, min(size, sumBytes))))
		if err == nil && n < size {
			err = io.ErrUnexpectedEOF
		}
		return err
	})
	return h.Sum32(), info, err
}

// readWhole lets read take the bytes of one object, of at most max, and sees that
// there are no more.
func readWhole(ctx context.Context, s Store, key string, most int64, read func(body io.Reader, size int64) error) (Info, error) {
	body, info, err := s.Get(ctx, key)
	if err != nil {
		return Info{}, err
	}
	defer body.Close()
	if info.Size < 0 || info.Size > most {
		return Info{}, errcode.New(errcode.TooLarge, "object %s has %d bytes, at most %d are expected here", key, info.Size, most)
	}
	if err := read(body, info.Size); err != nil {
		return Info{}, asRead(key, err)
	}
	// The end must be said too: that is where a body that was cut, or whose
	// checksum differs, reports it.
	var one [1]byte
	if _, err := io.ReadFull(body, one[:]); !errors.Is(err, io.EOF) {
		return Info{}, asRead(key, err)
	}
	return info, nil
}

// asRead gives what io.ReadFull said of a body a code, unless it has one: an end
// that came too early, or too late (nil), may pass.
func asRead(key string, err error) error {
	var coded *errcode.Error
	if !errors.As(err, &coded) {
		return errcode.New(errcode.Transient, "read %s: the body is not as long as the store said", key)
	}
	return err
}
