package s3

import (
	"context"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix, startAfter string, limit int) (objstore.Page, error) {
	if err := objstore.CheckPrefix(prefix); err != nil {
		return objstore.Page{}, err
	}
	limit, err := objstore.PageLimit(limit)
	if err != nil {
		return objstore.Page{}, err
	}
	// A page that holds nothing but foreign keys is passed over, so that More
	// always comes with a key to go on from.
	after := s.prefix + startAfter
	for {
		page, last, err := s.listPage(ctx, prefix, after, limit)
		if err != nil || len(page.Objects) > 0 || !page.More {
			return page, err
		}
		after = last
	}
}

// listPage asks for one page after the full key after and returns the last full
// key that it held.
func (s *Store) listPage(ctx context.Context, prefix, after string, limit int) (objstore.Page, string, error) {
	in := &sdk.ListObjectsV2Input{
		Bucket:  &s.opts.Bucket,
		Prefix:  s.key(prefix),
		MaxKeys: aws.Int32(int32(limit)),
	}
	if after != "" && after != s.prefix {
		in.StartAfter = &after
	}
	out, err := s.client.ListObjectsV2(ctx, in)
	if err != nil {
		return objstore.Page{}, "", s.fail(ctx, "list", prefix, err)
	}
	page := objstore.Page{More: aws.ToBool(out.IsTruncated)}
	if page.More && len(out.Contents) == 0 {
		return objstore.Page{}, "", errcode.New(errcode.Transient, "list %s: the store says that more follow and names none", prefix)
	}
	page.Objects = make([]objstore.Info, 0, min(len(out.Contents), limit))
	for _, o := range out.Contents {
		full := aws.ToString(o.Key)
		// A list that is not in order cannot be paged and would hide what it
		// skips; whoever replays from it must not go on.
		if full <= after && !(full == after && full == s.prefix) || !strings.HasPrefix(full, *in.Prefix) {
			return objstore.Page{}, "", errcode.New(errcode.Internal, "list %s: the store names %q after %q; it does not list in order, which an archive needs", prefix, full, after)
		}
		after = full
		key := full[len(s.prefix):]
		if objstore.CheckKey(key) != nil {
			continue // foreign
		}
		page.Objects = append(page.Objects, objstore.Info{Key: key, Size: aws.ToInt64(o.Size), Modified: aws.ToTime(o.LastModified)})
	}
	if len(page.Objects) > limit {
		page.Objects, page.More = page.Objects[:limit], true
	}
	return page, after, nil
}
