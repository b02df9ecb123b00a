package client

import (
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// What calls take and return. The names stand here so that programs outside
// this module can write them.
type (
	// Record is one message of a log. Key nil means no key; an empty key is a
	// key. Offset and Timestamp (Unix ms) are the broker's, and are ignored in
	// a produce.
	Record = broker.Record
	// Header is one record header. Names that begin with "tm-" are the broker's.
	Header = broker.Header
	// Message is one leased record with its receipt handle.
	Message = broker.Message
	// Ack is a level at which a produce is answered.
	Ack = broker.Ack
	// SettleAction is what happens to a leased record.
	SettleAction = broker.SettleAction
	// TopicSpec are the settings of a new topic; nil means the default.
	TopicSpec = broker.TopicSpec
	// TopicInfo describes a topic.
	TopicInfo = broker.TopicInfo
	// PartitionStats are the numbers of one partition.
	PartitionStats = broker.PartitionStats
	// Placement is the run of offsets that a batch got in one partition.
	Placement = broker.Placement
	// Readiness says whether a node serves, and why not.
	Readiness = broker.Readiness
	// ReadinessCause is one reason, by a word that stays.
	ReadinessCause = broker.ReadinessCause

	// GarbageReport says what the archive holds that nothing needs any more.
	GarbageReport = broker.GarbageReport
	// ScrubReport says what the node has read again of what it stored.
	ScrubReport = broker.ScrubReport

	// Error is what every call fails with: a code for programs, a sentence for
	// people, facts such as oldest_offset, and a cause that errors.Is finds.
	Error = errcode.Error
	// Code is one kind of failure.
	Code = errcode.Code
	// RetryClass says whether the same call can succeed later.
	RetryClass = errcode.Retry
)

// Levels of a produce, weakest first.
const (
	AckDefault   = broker.AckDefault   // the topic's default_ack
	AckAccepted  = broker.AckAccepted  // on stable storage of the node
	AckCommitted = broker.AckCommitted // durable and visible at the partition's owner
	AckArchived  = broker.AckArchived  // in the object store, with all that a restore needs
)

// Actions of Settle.
const (
	SettleAck    = broker.SettleAck
	SettleNack   = broker.SettleNack
	SettleExtend = broker.SettleExtend
)

// Codes that programs act on; docs/errors.md of the project has them all.
const (
	InvalidArgument    = errcode.InvalidArgument    // the call is wrong
	NotFound           = errcode.NotFound           // no such topic
	Exists             = errcode.Exists             // a topic of that name is there already
	Conflict           = errcode.Conflict           // the state of the thing forbids this
	Gone               = errcode.Gone               // a lease that is over, an offset that retention has taken
	OutOfRange         = errcode.OutOfRange         // an offset above the end
	PreconditionFailed = errcode.PreconditionFailed // the log does not go on at the expected offset: NextOffset says where
	TooLarge           = errcode.TooLarge           // a record or batch over its bound
	TooMany            = errcode.TooMany            // a bound of this caller, or of a Producer's buffer
	Unauthorized       = errcode.Unauthorized       // no or wrong credentials
	Denied             = errcode.Denied             // known, but not allowed
	Unavailable        = errcode.Unavailable        // refused for now, or the node cannot be reached
	NotConfirmed       = errcode.NotConfirmed       // applied perhaps: the wait for the ack level ended
	Internal           = errcode.Internal           // also: the answer was lost, so it may have been applied
	Transient          = errcode.Transient          // a stream broke off
	Closed             = errcode.Closed             // the Producer, the Consumer or the node is closed
	Canceled           = errcode.Canceled           // the context ended
)

// The retry classes.
const (
	RetryNever    = errcode.RetryNever    // the call is wrong
	RetryAfter    = errcode.RetryAfter    // it was not applied; the same call may succeed later
	RetryRedirect = errcode.RetryRedirect // it was not applied; ownership moved, ask again
	RetryUnknown  = errcode.RetryUnknown  // it may have been applied
)

// CodeOf returns the code of an error that a call returned: Canceled for a
// context's end, Internal for one without a code.
func CodeOf(err error) Code { return errcode.Of(err) }

// Is reports whether err carries code c.
func Is(err error, c Code) bool { return errcode.Is(err, c) }
