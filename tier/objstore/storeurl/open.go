// Package storeurl opens an object store by its URL. It links every backend, so
// only what builds a program imports it.
package storeurl

import (
	"context"
	"log/slog"
	"time"

	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/file"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
	"github.com/tidemark-mq/tidemark/tier/objstore/s3"
)

// Options of Open. What a URL does not say and options do not either comes from
// the AWS environment variables and shared files.
type Options struct {
	Logger *slog.Logger     // nil: silent
	Now    func() time.Time // nil: the system's clock
	Mem    *mem.Space       // where mem:// finds its stores; nil refuses mem://

	// For s3. The URL's word on endpoint and region goes before these.
	Endpoint        string
	Region          string
	AccessKeyID     string
	SecretAccessKey string
	SessionToken    string
}

// Open returns the backend that raw names, without decorators: see
// objstore.Stack. A store that cannot be reached is no error here, so that a node
// starts while its archive is down; a directory is opened, and made.
func Open(ctx context.Context, raw string, o Options) (objstore.Store, error) {
	u, err := Parse(raw)
	if err != nil {
		return nil, err
	}
	switch u.Scheme {
	case "file":
		return file.Open(u.Dir, file.Options{Logger: o.Logger, Now: o.Now})
	case "mem":
		if o.Mem == nil {
			return nil, bad("mem:// keeps nothing and is for tests only; use file:///dir")
		}
		return o.Mem.Store(u.Name), nil
	default:
		return s3.Open(ctx, s3Options(u, o))
	}
}

func s3Options(u URL, o Options) s3.Options {
	out := s3.Options{
		Bucket: u.Bucket, Prefix: u.Prefix,
		Endpoint: u.Endpoint, Region: u.Region, PathStyle: u.PathStyle,
		AccessKeyID: o.AccessKeyID, SecretAccessKey: o.SecretAccessKey, SessionToken: o.SessionToken,
		Profile: u.Profile, SSE: u.SSE, SSEKMSKeyID: u.KMSKeyID, Checksums: u.Checksums,
	}
	if out.Endpoint == "" {
		out.Endpoint = o.Endpoint
	}
	if out.Region == "" {
		out.Region = o.Region
	}
	return out
}
