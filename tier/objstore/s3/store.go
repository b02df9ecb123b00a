package s3

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Store is one bucket under one prefix.
type Store struct {
	client *sdk.Client
	opts   Options
	prefix string // ends in a slash unless it is empty
	url    string
	idle   *awshttp.BuildableClient
}

var _ objstore.Store = (*Store)(nil)

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, key string) (io.ReadCloser, objstore.Info, error) {
	if err := objstore.CheckKey(key); err != nil {
		return nil, objstore.Info{}, err
	}
	in := &sdk.GetObjectInput{Bucket: &s.opts.Bucket, Key: s.key(key)}
	if s.opts.Checksums == ChecksumAuto {
		in.ChecksumMode = types.ChecksumModeEnabled
	}
	out, err := s.client.GetObject(ctx, in)
	if err != nil {
		return nil, objstore.Info{}, s.fail(ctx, "get", key, err)
	}
	if out.ContentLength == nil || *out.ContentLength < 0 {
		out.Body.Close()
		return nil, objstore.Info{}, errcode.New(errcode.Transient, "get %s: the answer does not say how long it is", key)
	}
	info := objstore.Info{Key: key, Size: *out.ContentLength, Modified: aws.ToTime(out.LastModified)}
	return objstore.ExactBody(ctx, &sumBody{out.Body, key}, key, info.Size), info, nil
}

// sumBody gives the checksum error that the SDK reports at a body's end a code.
// The SDK has no type for it.
type sumBody struct {
	io.ReadCloser
	key string
}

func (b *sumBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && strings.Contains(err.Error(), "checksum did not match") {
		err = errcode.New(errcode.Corrupt, "get %s: the bytes that arrived are not the ones that were put: %s", b.key, err.Error())
	}
	return n, err
}

// GetRange implements objstore.Store.
func (s *Store) GetRange(ctx context.Context, key string, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errcode.New(errcode.InvalidArgument, "get range of %s: offset %d is negative", key, off)
	}
	if err := objstore.CheckKey(key); err != nil {
		return 0, err
	}
	if len(p) == 0 {
		return 0, objstore.Ended(ctx, "get range of", key)
	}
	n, _, err := s.getRange(ctx, key, p, off)
	return n, err
}

// getRange also returns what the answer says of the whole object.
func (s *Store) getRange(ctx context.Context, key string, p []byte, off int64) (int, objstore.Info, error) {
	last := off + int64(len(p)) - 1
	out, err := s.client.GetObject(ctx, &sdk.GetObjectInput{
		Bucket: &s.opts.Bucket, Key: s.key(key),
		Range: aws.String("bytes=" + strconv.FormatInt(off, 10) + "-" + strconv.FormatInt(last, 10)),
	})
	if pastEnd(err) {
		return 0, objstore.Info{Key: key}, nil
	}
	if err != nil {
		return 0, objstore.Info{}, s.fail(ctx, "get range of", key, err)
	}
	defer out.Body.Close()
	first, end, total, err := answered(key, out, off, last)
	if err != nil {
		return 0, objstore.Info{}, err
	}
	info := objstore.Info{Key: key, Size: total, Modified: aws.ToTime(out.LastModified)}
	if first >= end {
		return 0, info, nil
	}
	n, err := readPieces(out.Body, p[:end-first], objstore.Arrival(ctx))
	switch {
	case err == nil:
		return n, info, nil
	case ctx.Err() != nil:
		return n, info, objstore.Ended(ctx, "get range of", key)
	default:
		return n, info, errcode.New(errcode.Transient, "get range of %s: the answer broke after %d of %d bytes: %s", key, n, end-first, err.Error())
	}
}

// pieceBytes is how far apart two announcements are: much less than a core's cache.
const pieceBytes = 256 << 10

// readPieces fills p and announces each piece of it. Errors as io.ReadFull's.
func readPieces(body io.Reader, p []byte, arrived func(n int)) (n int, err error) {
	if arrived == nil {
		return io.ReadFull(body, p)
	}
	for n < len(p) && err == nil {
		var k int
		k, err = io.ReadFull(body, p[n:min(len(p), n+pieceBytes)])
		n += k
		if k > 0 {
			arrived(n)
		}
	}
	if errors.Is(err, io.EOF) && n > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// answered returns which bytes [first, end) of how many an answer holds, and an
// error unless they are the ones that were asked for: a store or a proxy that
// ignores ranges would otherwise hand out the wrong bytes.
func answered(key string, out *sdk.GetObjectOutput, off, last int64) (first, end, total int64, err error) {
	if out.ContentRange == nil {
		// A whole object, which will do when the range begins with it.
		if off == 0 && out.ContentLength != nil && *out.ContentLength >= 0 {
			return 0, min(last+1, *out.ContentLength), *out.ContentLength, nil
		}
		return 0, 0, 0, errcode.New(errcode.Internal, "get range of %s: the store ignores ranges; an archive needs them", key)
	}
	first, end, total, ok := parseContentRange(*out.ContentRange)
	if !ok || first != off || end-1 > last || end-1 < last && end != total {
		return 0, 0, 0, errcode.New(errcode.Transient, "get range of %s: asked for bytes %d to %d, answered %q", key, off, last, *out.ContentRange)
	}
	return first, end, total, nil
}

// parseContentRange reads "bytes FIRST-LAST/TOTAL"; end is exclusive.
func parseContentRange(s string) (first, end, total int64, ok bool) {
	s, ok = strings.CutPrefix(s, "bytes ")
	span, size, ok2 := strings.Cut(s, "/")
	from, to, ok3 := strings.Cut(span, "-")
	if !ok || !ok2 || !ok3 {
		return 0, 0, 0, false
	}
	first, err1 := strconv.ParseInt(from, 10, 64)
	last, err2 := strconv.ParseInt(to, 10, 64)
	total, err3 := strconv.ParseInt(size, 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || first < 0 || last < first || last >= total {
		return 0, 0, 0, false
	}
	return first, last + 1, total, true
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := objstore.CheckKey(key); err != nil {
		return objstore.Info{}, err
	}
	out, err := s.client.HeadObject(ctx, &sdk.HeadObjectInput{Bucket: &s.opts.Bucket, Key: s.key(key)})
	if err != nil && statusOf(err) == http.StatusNotFound {
		return s.headByGet(ctx, key)
	}
	if err != nil {
		return objstore.Info{}, s.fail(ctx, "head", key, err)
	}
	if out.ContentLength == nil {
		return objstore.Info{}, errcode.New(errcode.Transient, "head %s: the answer does not say how long the object is", key)
	}
	return objstore.Info{Key: key, Size: *out.ContentLength, Modified: aws.ToTime(out.LastModified)}, nil
}

// headByGet decides what a HEAD's 404 means: with a GET the store says why.
func (s *Store) headByGet(ctx context.Context, key string) (objstore.Info, error) {
	var one [1]byte
	_, info, err := s.getRange(ctx, key, one[:], 0)
	return info, err
}

// Delete implements objstore.Store, by batches of 1,000 keys.
func (s *Store) Delete(ctx context.Context, keys []string) error {
	if err := objstore.CheckKeys(keys); err != nil {
		return err
	}
	for len(keys) > 0 {
		n := min(len(keys), 1000)
		if err := s.deleteBatch(ctx, keys[:n]); err != nil {
			return err
		}
		keys = keys[n:]
	}
	return objstore.Ended(ctx, "delete", "objects")
}

func (s *Store) deleteBatch(ctx context.Context, keys []string) error {
	ids := make([]types.ObjectIdentifier, len(keys))
	for i, k := range keys {
		ids[i].Key = s.key(k)
	}
	out, err := s.client.DeleteObjects(ctx, &sdk.DeleteObjectsInput{
		Bucket: &s.opts.Bucket,
		Delete: &types.Delete{Objects: ids, Quiet: aws.Bool(true)},
	})
	if err != nil {
		return s.fail(ctx, "delete", keys[0], err)
	}
	// The answer is 200 even when single keys failed.
	for _, e := range out.Errors {
		code := aws.ToString(e.Code)
		if code == "NoSuchKey" {
			continue
		}
		key := strings.TrimPrefix(aws.ToString(e.Key), s.prefix)
		return errcode.New(codeFor(0, code), "delete %s (and %d other keys of %d): the store answered %s: %s",
			key, len(out.Errors)-1, len(keys), code, aws.ToString(e.Message))
	}
	return nil
}

// Capabilities implements objstore.Store.
func (s *Store) Capabilities() objstore.Capabilities {
	return objstore.Capabilities{Kind: "s3", URL: s.url, CreateOnly: true, MaxPut: maxObject}
}

// Close implements objstore.Store.
func (s *Store) Close() error {
	s.idle.GetTransport().CloseIdleConnections()
	return nil
}

func (s *Store) key(key string) *string { return aws.String(s.prefix + key) }
