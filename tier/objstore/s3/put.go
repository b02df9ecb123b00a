package s3

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"io"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

const contentType = "application/octet-stream"

// Put implements objstore.Store.
func (s *Store) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, opts objstore.PutOptions) error {
	if err := objstore.CheckKey(key); err != nil {
		return err
	}
	if err := objstore.Ended(ctx, "put", key); err != nil {
		return err
	}
	if err := objstore.CheckBody(key, body, size); err != nil {
		return err
	}
	if size > maxObject {
		return errcode.New(errcode.InvalidArgument, "put %s: %d bytes; S3 takes at most %d", key, size, int64(maxObject))
	}
	if size > s.opts.SinglePut {
		return s.putParts(ctx, key, body, size, opts)
	}
	return s.putOnce(ctx, key, body, size, opts)
}

// putOnce sends the body in one request, always with a sum that the store
// compares. Without one, a server whose client goes away in the middle may keep
// what it has got as the whole object (versitygw does): a half that nobody could
// tell from the object.
func (s *Store) putOnce(ctx context.Context, key string, body io.ReadSeeker, size int64, opts objstore.PutOptions) error {
	sendCRC := opts.CRC32C != nil && s.opts.Checksums == ChecksumAuto
	sum := opts.SHA256
	if sum == nil && (size <= hashHere || !sendCRC) {
		check := objstore.NewVerifier(opts)
		var err error
		if sum, err = hashWindow(ctx, key, body, 0, size, check); err != nil {
			return err
		}
		if err := check.Check(key); err != nil {
			return err
		}
	}
	src := newSource(key, body, 0, size, opts)
	if _, err := src.Seek(0, io.SeekStart); err != nil {
		return err
	}
	in := &sdk.PutObjectInput{
		Bucket: &s.opts.Bucket, Key: s.key(key),
		Body: src, ContentLength: &size, ContentType: aws.String(contentType),
		IfNoneMatch: ifNew(opts.CreateOnly),
	}
	in.ServerSideEncryption, in.SSEKMSKeyId = s.encryption()
	if sendCRC {
		in.ChecksumCRC32C = aws.String(base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, *opts.CRC32C)))
	}
	_, err := s.client.PutObject(ctx, in, withPayloadHash(sum))
	if berr := src.detach(); berr != nil && err != nil {
		return berr
	}
	if err != nil {
		return s.fail(ctx, "put", key, err)
	}
	return nil
}

// ifNew returns the condition of a create-only put.
func ifNew(createOnly bool) *string {
	if !createOnly {
		return nil
	}
	return aws.String("*")
}

func (s *Store) encryption() (types.ServerSideEncryption, *string) {
	if s.opts.SSEKMSKeyID == "" {
		return types.ServerSideEncryption(s.opts.SSE), nil
	}
	return types.ServerSideEncryption(s.opts.SSE), &s.opts.SSEKMSKeyID
}
