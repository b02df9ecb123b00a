package queue

import (
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Answers that are frequent under load stand here once, so that a storm of
// stale acks allocates nothing.
var (
	errNotHandle = errcode.New(errcode.InvalidArgument,
		"this is not a receipt handle; send the receipt_handle of a consume as it came")
	errGoneForeign = errcode.New(errcode.Gone,
		"the receipt handle is not one of this topic and group: the topic may have been created anew; consume again")
	errGoneSettled = errcode.New(errcode.Gone,
		"the lease is gone: the record is settled already, or retention has passed it")
	errGoneExpired = errcode.New(errcode.Gone,
		"the lease is gone: it expired, was given back, or the record is leased anew; the record is or will be delivered again")
	errClosed = errcode.New(errcode.Closed, "the node is shutting down; ask another one or try again")
)

func errNotServed(topic broker.TopicID, partition int) error {
	if partition < 0 {
		return errcode.New(errcode.Unavailable, "no partition of topic %v is served by this node now; try again or ask its owner", topic)
	}
	return errcode.New(errcode.Unavailable, "partition %d of topic %v is not served by this node now; try again or ask its owner", partition, topic)
}
