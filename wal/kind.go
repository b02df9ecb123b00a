package wal

import "fmt"

// Kind says what a frame's body means. The log itself reads only marks; every
// other body is opaque to it.
type Kind uint8

// The kinds of frames. Append only: a number once given never changes its
// meaning.
const (
	KindCommit       Kind = 1 // records of partitions owned here, offsets assigned
	KindIngress      Kind = 2 // records accepted here for another owner
	KindSettled      Kind = 3 // ranges of ingress that their owners have
	KindGroup        Kind = 4 // change of a group's state
	KindProducer     Kind = 5 // idempotence state of a producer or key
	KindMark         Kind = 6 // time and low-water LSN, written by the log itself
	KindBase         Kind = 7 // a partition begins here
	KindCarry        Kind = 8 // a commit rewritten so that its old file can be recycled
	KindCarryIngress Kind = 9 // an ingress rewritten for the same reason
)

var kindNames = [...]string{
	KindCommit: "commit", KindIngress: "ingress", KindSettled: "settled", KindGroup: "group",
	KindProducer: "producer", KindMark: "mark", KindBase: "base", KindCarry: "carry",
	KindCarryIngress: "carry-ingress",
}

// String returns the kind's name, for example "commit".
func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return fmt.Sprintf("kind-%d", uint8(k))
}

// Frame is one entry of the log. Body is valid only as long as the function
// that handed the frame out says.
type Frame struct {
	LSN  uint64
	Kind Kind
	Body []byte
}
