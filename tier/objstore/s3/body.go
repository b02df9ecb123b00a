package s3

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"sync"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// source lends a window of the caller's body to one request. net/http may read a
// request's body after the request has ended; detach ends that, so that the
// caller can rewind the body and send it again.
type source struct {
	key        string
	base, size int64 // the window
	opts       objstore.PutOptions

	mu struct {
		sync.Mutex
		body  io.ReadSeeker // nil once detached
		off   int64         // within the window
		check *objstore.Verifier
		err   error // what the caller's body said, or a sum that differs
	}
}

var errDetached = errors.New("the request that this body belonged to has ended")

// newSource lends body's bytes [base, base+size). The CRC of opts is compared
// just before the last bytes are handed out, so a body that is damaged never
// becomes a complete request.
func newSource(key string, body io.ReadSeeker, base, size int64, opts objstore.PutOptions) *source {
	opts.SHA256 = nil // the store compares that one
	s := &source{key: key, base: base, size: size, opts: opts}
	s.mu.body = body
	return s
}

func (s *source) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.mu.body == nil:
		return 0, errDetached
	case s.mu.err != nil:
		return 0, s.mu.err
	case s.mu.off == s.size:
		return 0, io.EOF
	}
	n, err := s.mu.body.Read(p[:min(int64(len(p)), s.size-s.mu.off)])
	s.mu.off += int64(n)
	if s.mu.check != nil {
		s.mu.check.Add(p[:n])
		if s.mu.off == s.size {
			s.mu.err = s.mu.check.Check(s.key)
		}
	}
	if errors.Is(err, io.EOF) && s.mu.off < s.size {
		err = io.ErrUnexpectedEOF // it has shrunk since it was measured
	}
	if err != nil && !errors.Is(err, io.EOF) {
		s.mu.err = errcode.Wrap(errcode.Internal, err, "put %s: read the body", s.key)
	}
	if s.mu.err != nil {
		return 0, s.mu.err
	}
	return n, nil
}

func (s *source) Seek(off int64, whence int) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.body == nil {
		return 0, errDetached
	}
	switch whence {
	case io.SeekCurrent:
		off += s.mu.off
	case io.SeekEnd:
		off += s.size
	}
	if off < 0 || off > s.size {
		return s.mu.off, errors.New("seek outside of the body")
	}
	if _, err := s.mu.body.Seek(s.base+off, io.SeekStart); err != nil {
		s.mu.err = errcode.Wrap(errcode.Internal, err, "put %s: rewind the body", s.key)
		return s.mu.off, s.mu.err
	}
	s.mu.off, s.mu.check = off, nil
	if off == 0 && s.opts.CRC32C != nil {
		s.mu.check = objstore.NewVerifier(s.opts)
	}
	return off, nil
}

// detach takes the caller's body away, waiting for a read that is under way, and
// returns the error that reading it gave.
func (s *source) detach() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.body = nil
	return s.mu.err
}

// hashWindow reads body's bytes [base, base+size), writes them to also and
// returns their SHA-256.
func hashWindow(ctx context.Context, key string, body io.ReadSeeker, base, size int64, also io.Writer) (*[32]byte, error) {
	if _, err := body.Seek(base, io.SeekStart); err != nil {
		return nil, errcode.Wrap(errcode.Internal, err, "put %s: rewind the body", key)
	}
	sum := sha256.New()
	to := io.MultiWriter(sum, also)
	for left := size; left > 0; {
		if err := objstore.Ended(ctx, "put", key); err != nil {
			return nil, err
		}
		n, err := io.CopyN(to, body, min(left, 1<<20))
		if err != nil {
			return nil, errcode.Wrap(errcode.Internal, err, "put %s: read the body", key)
		}
		left -= n
	}
	return (*[32]byte)(sum.Sum(nil)), nil
}

// withPayloadHash signs the request with a hash that is known, or without one,
// instead of letting the SDK read the body for it.
func withPayloadHash(sum *[32]byte) func(*sdk.Options) {
	if sum == nil {
		return sdk.WithAPIOptions(v4.SwapComputePayloadSHA256ForUnsignedPayloadMiddleware)
	}
	known := knownHash(hex.EncodeToString(sum[:]))
	return sdk.WithAPIOptions(func(stack *middleware.Stack) error {
		_, err := stack.Finalize.Swap(known.ID(), known)
		return err
	})
}

// knownHash takes the place of the SDK's step that hashes the body.
type knownHash string

func (knownHash) ID() string { return "ComputePayloadHash" }

func (h knownHash) HandleFinalize(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (
	middleware.FinalizeOutput, middleware.Metadata, error,
) {
	return next.HandleFinalize(v4.SetPayloadHash(ctx, string(h)), in)
}

// md5ForDelete gives DeleteObjects, whose body must carry a sum, Content-MD5
// instead of the x-amz-checksum header that the SDK adds even when told not to.
func md5ForDelete(stack *middleware.Stack) error {
	if _, ok := stack.Initialize.Get("AWSChecksum:SetupInputContext"); !ok || stack.ID() != "DeleteObjects" {
		return nil
	}
	for _, drop := range []func() error{
		func() error { _, err := stack.Initialize.Remove("AWSChecksum:SetupInputContext"); return err },
		func() error { _, err := stack.Finalize.Remove("AWSChecksum:ComputeInputPayloadChecksum"); return err },
	} {
		if err := drop(); err != nil {
			return err
		}
	}
	return smithyhttp.AddContentChecksumMiddleware(stack)
}
