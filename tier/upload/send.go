package upload

import (
	"context"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/time/rate"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// sendTries bounds how often Send asks the store: a put, one more when the store
// does not have what it took, and the comparison with what it then has.
const sendTries = 3

// Send brings one sealed file into store under the key of an attempt that was not
// used before, and returns what a chain may say about it. The store took it with
// its sums and returned its end, or all of it, as it was sent. limit may be nil;
// its burst is at least 64 KiB.
//
// After an error the object may be there or not, and its key must not be used
// again: nothing names it. Errors: Corrupt or NotFound for a file that is not what
// was sealed, Storage, or what the store said.
func Send(ctx context.Context, fs vfs.FS, store objstore.Store, limit *rate.Limiter, pid broker.PartitionID, s Sealed, a Attempt) (manifest.Segment, error) {
	to := sender{fs: fs, store: store, limit: limit, taken: func(int64) {}}
	it := &item{sealed: s, attempt: a}
	var err error
	for range sendTries {
		taken := it.sent
		if err = to.put(ctx, pid, it); err == nil {
			return segmentOf(pid, &s, a), nil
		}
		if taken == it.sent || errcode.Is(err, errcode.Canceled) || ctx.Err() != nil {
			break // nothing is known that the next try would do otherwise
		}
	}
	return manifest.Segment{}, err
}
