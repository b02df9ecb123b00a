package s3

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// abortPatience bounds the abort of an upload whose own context may be over.
const abortPatience = 10 * time.Second

// putParts sends the body in parts. Parts that are never joined are billed and
// invisible, so every way out except success aborts the upload.
func (s *Store) putParts(ctx context.Context, key string, body io.ReadSeeker, size int64, opts objstore.PutOptions) (err error) {
	in := &sdk.CreateMultipartUploadInput{Bucket: &s.opts.Bucket, Key: s.key(key), ContentType: aws.String(contentType)}
	in.ServerSideEncryption, in.SSEKMSKeyId = s.encryption()
	created, err := s.client.CreateMultipartUpload(ctx, in)
	if err != nil {
		return s.fail(ctx, "begin the upload of", key, err)
	}
	id := aws.ToString(created.UploadId)
	if id == "" {
		return errcode.New(errcode.Transient, "begin the upload of %s: the store gave no upload id", key)
	}
	defer func() {
		if err != nil {
			err = s.abortAfter(ctx, key, id, err)
		}
	}()
	check := objstore.NewVerifier(opts)
	parts, err := s.sendParts(ctx, key, id, body, size, check)
	if err != nil {
		return err
	}
	// All bytes have passed: compare their sum before they become an object.
	if err := check.Check(key); err != nil {
		return err
	}
	_, err = s.client.CompleteMultipartUpload(ctx, &sdk.CompleteMultipartUploadInput{
		Bucket: &s.opts.Bucket, Key: s.key(key), UploadId: &id,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
		IfNoneMatch:     ifNew(opts.CreateOnly),
	})
	if err != nil {
		return s.fail(ctx, "put", key, err)
	}
	return nil
}

// sendParts sends the parts one after the other. Each is read twice, for its
// hash and for the wire; in return a store without checksums verifies it too,
// and memory stays flat.
func (s *Store) sendParts(ctx context.Context, key, id string, body io.ReadSeeker, size int64, check io.Writer) ([]types.CompletedPart, error) {
	step := s.partBytes(size)
	parts := make([]types.CompletedPart, 0, (size+step-1)/step)
	for off := int64(0); off < size; off += step {
		n := min(step, size-off)
		sum, err := hashWindow(ctx, key, body, off, n, check)
		if err != nil {
			return nil, err
		}
		src := newSource(key, body, off, n, objstore.PutOptions{})
		if _, err := src.Seek(0, io.SeekStart); err != nil {
			return nil, err
		}
		number := int32(len(parts) + 1)
		out, err := s.client.UploadPart(ctx, &sdk.UploadPartInput{
			Bucket: &s.opts.Bucket, Key: s.key(key), UploadId: &id, PartNumber: &number,
			Body: src, ContentLength: &n,
		}, withPayloadHash(sum))
		if berr := src.detach(); berr != nil && err != nil {
			return nil, berr
		}
		if err != nil {
			return nil, s.fail(ctx, "put", key, err)
		}
		parts = append(parts, types.CompletedPart{PartNumber: &number, ETag: out.ETag})
	}
	return parts, nil
}

// partBytes returns the part size that needs at most maxParts for size bytes.
func (s *Store) partBytes(size int64) int64 {
	least := (size + maxParts - 1) / maxParts
	return max(s.opts.PartBytes, (least+1<<20-1)>>20<<20)
}

// abortAfter aborts an upload that ended with err, also when ctx is over, and
// returns err with what the abort said. When a join's answer was lost and the
// object exists, the store does not know the upload any more, which is as good.
func (s *Store) abortAfter(ctx context.Context, key, id string, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortPatience)
	defer cancel()
	if aerr := s.abort(ctx, s.prefix+key, id); aerr != nil {
		return errcode.Wrap(errcode.Of(err), err, "parts of the upload stay until they are swept (%s)", aerr.Error())
	}
	return err
}

func (s *Store) abort(ctx context.Context, fullKey, id string) error {
	_, err := s.client.AbortMultipartUpload(ctx, &sdk.AbortMultipartUploadInput{Bucket: &s.opts.Bucket, Key: &fullKey, UploadId: &id})
	if err != nil && spelling(err) != "NoSuchUpload" {
		return s.fail(ctx, "abort the upload of", strings.TrimPrefix(fullKey, s.prefix), err)
	}
	return nil
}

// SweepUploads aborts uploads under the prefix that began before the given time
// of the store's clock, and returns how many. Background work calls it now and
// then, with a time that no living upload is as old as.
func (s *Store) SweepUploads(ctx context.Context, before time.Time) (int, error) {
	swept := 0
	in := &sdk.ListMultipartUploadsInput{Bucket: &s.opts.Bucket}
	if s.prefix != "" {
		in.Prefix = &s.prefix
	}
	for {
		out, err := s.client.ListMultipartUploads(ctx, in)
		if err != nil {
			return swept, s.fail(ctx, "list the uploads under", s.prefix, err)
		}
		for _, u := range out.Uploads {
			key := aws.ToString(u.Key)
			if !strings.HasPrefix(key, s.prefix) || !aws.ToTime(u.Initiated).Before(before) {
				continue
			}
			if err := s.abort(ctx, key, aws.ToString(u.UploadId)); err != nil {
				return swept, err
			}
			swept++
		}
		next, nextID := out.NextKeyMarker, out.NextUploadIdMarker
		if !aws.ToBool(out.IsTruncated) || aws.ToString(next) == aws.ToString(in.KeyMarker) && aws.ToString(nextID) == aws.ToString(in.UploadIdMarker) {
			return swept, nil
		}
		in.KeyMarker, in.UploadIdMarker = next, nextID
	}
}
