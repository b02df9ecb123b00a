package cold

import (
	"context"
	"errors"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// missing is the error for an object that the chain names and the store does
// not have. The reader passes the range, or looks at the chain again: a trim
// or a merge may have come in between.
func missing(seg *manifest.Segment, cause error) error {
	return errcode.New(errcode.Gone, "archived offsets %d to %d of %s are lost: the store does not have %s: %w", seg.Base, seg.Next, seg.Partition, seg.Key(), cause).
		With("from_offset", seg.Base).With("next_offset", seg.Next)
}

// unreachable is the error for a store that does not answer, or refuses.
func unreachable(seg *manifest.Segment, cause error) error {
	e := errcode.New(errcode.ArchiveUnavailable, "archived offsets %d to %d of %s cannot be read now: %w", seg.Base, seg.Next, seg.Partition, cause)
	var inner *errcode.Error
	if errors.As(cause, &inner) {
		e.Wait = inner.Wait
	}
	return e
}

func corrupt(seg *manifest.Segment, pos int64, cause error) error {
	return errcode.New(errcode.Corrupt, "archived object %s: position %d: %w", seg.Key(), pos, cause).
		With("from_offset", seg.Base).With("next_offset", seg.Next)
}

// judge gives a failed request the code that readers act on.
func judge(seg *manifest.Segment, pos int64, err error) error {
	switch errcode.Of(err) {
	case errcode.NotFound:
		return missing(seg, err)
	case errcode.Corrupt:
		return corrupt(seg, pos, err)
	case errcode.Closed, errcode.Overloaded, errcode.TooLarge:
		return err
	case errcode.Canceled:
		// The download's own deadline, not the reader's: that one has left.
		if errors.Is(err, context.Canceled) {
			return errcode.New(errcode.Closed, "the cache of archived chunks is closed")
		}
	}
	return unreachable(seg, err)
}
