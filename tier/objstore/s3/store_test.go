package s3

import (
	"crypto/rand"
	"strings"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/testkit/s3server"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/storetest"
)

// options returns how to reach the server, under a prefix that nobody else uses.
func options(srv *s3server.Server) Options {
	return Options{
		Bucket: srv.Bucket, Prefix: "t/" + strings.ToLower(rand.Text()),
		Endpoint: srv.Endpoint, Region: srv.Region, AccessKeyID: srv.AccessKey, SecretAccessKey: srv.SecretKey,
	}
}

func open(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// Proves that the S3 store keeps the contract against a real server, in both
// checksum modes, with bodies that go up in one request and in parts.
func TestConformance(t *testing.T) {
	srv := s3server.Start(t)
	for name, mode := range map[string]func(*Options){
		"auto": func(*Options) {},
		"when_required_in_parts": func(o *Options) {
			o.Checksums, o.SinglePut, o.PartBytes = ChecksumOff, 1<<20, minPart
		},
	} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(t *testing.T) objstore.Store {
				o := options(srv)
				mode(&o)
				return open(t, o)
			})
		})
	}
}
