package raftmeta

import (
	"encoding/hex"
	"fmt"
	"maps"
	"strconv"
	"unicode/utf8"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Bounds of the state. They may be widened, never tightened: a directory or an
// export written under the wider bound has to stay readable.
const (
	MaxTopics       = 65536
	MaxAssignments  = 262144 // partitions of all topics together
	MaxNodes        = 1024
	MaxFenced       = 65536
	MaxDeleted      = 65536 // confirmations of deletions; the oldest that is purged is forgotten first, and no other
	MaxSettings     = 1024
	MaxSettingBytes = 4 << 10
	maxAddresses    = 8
	maxAddressBytes = 256
)

// Incarnation is the random identity of a data directory. In text it is 16
// lower-case hexadecimal digits, as in archive keys.
type Incarnation uint64

// String returns 16 lower-case hexadecimal digits.
func (i Incarnation) String() string { return fmt.Sprintf("%016x", uint64(i)) }

// MarshalText writes the form of String.
func (i Incarnation) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText reads the form of String.
func (i *Incarnation) UnmarshalText(b []byte) error {
	if !isHex16(string(b)) {
		return errcode.New(errcode.InvalidArgument, "incarnation %.40q is not 16 lower-case hexadecimal digits", b)
	}
	v, err := strconv.ParseUint(string(b), 16, 64)
	*i = Incarnation(v)
	return err
}

// Salt keys the receipt handles of the cluster. It is a secret.
type Salt [32]byte

// MarshalText writes 64 hexadecimal digits.
func (s Salt) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(s[:])), nil }

// UnmarshalText reads the form of MarshalText.
func (s *Salt) UnmarshalText(b []byte) error {
	if len(b) != hex.EncodedLen(len(s)) {
		return errcode.New(errcode.InvalidArgument, "salt has %d characters instead of %d", len(b), hex.EncodedLen(len(s)))
	}
	_, err := hex.Decode(s[:], b)
	return err
}

// Cluster is the identity of the cluster.
type Cluster struct {
	ID         string `json:"id"`         // random u64, 16 lower-case hexadecimal digits
	Generation uint64 `json:"generation"` // +1 at every takeover of the archive; first is 1
	Salt       Salt   `json:"salt"`
	CreatedMs  int64  `json:"created_ms"`
}

// validate checks what every later use relies on.
func (c Cluster) validate() error {
	switch {
	case !isHex16(c.ID):
		return errcode.New(errcode.InvalidArgument, "cluster id %.40q is not 16 lower-case hexadecimal digits", c.ID)
	case c.Generation == 0:
		return errcode.New(errcode.InvalidArgument, "cluster %s has generation 0; the first is 1", c.ID)
	case c.Salt == Salt{}:
		return errcode.New(errcode.InvalidArgument, "cluster %s has no salt", c.ID)
	}
	return nil
}

// NodeState says whether a node's current incarnation may own partitions.
type NodeState string

// Node states.
const (
	NodeActive NodeState = "active"
	NodeFenced NodeState = "fenced" // its current incarnation is fenced
)

// Node is one member. Addresses by plane, for example "http", "raft"; the map
// is shared and must not be changed.
type Node struct {
	ID          string            `json:"id"`
	Incarnation Incarnation       `json:"incarnation"`
	State       NodeState         `json:"state"`
	Addresses   map[string]string `json:"addresses"`
}

func (n Node) validate() error {
	if err := validateMember(n.ID, n.Incarnation, n.Addresses); err != nil {
		return err
	}
	if n.State != NodeActive && n.State != NodeFenced {
		return errcode.New(errcode.InvalidArgument, "node %s has the unknown state %.40q", n.ID, n.State)
	}
	return nil
}

func (n Node) equal(o Node) bool {
	return n.ID == o.ID && n.Incarnation == o.Incarnation && n.State == o.State && maps.Equal(n.Addresses, o.Addresses)
}

// validateMember checks what a node says about itself.
func validateMember(id string, inc Incarnation, addresses map[string]string) error {
	if err := broker.ValidateName("node", id); err != nil {
		return err
	}
	if inc == 0 {
		return errcode.New(errcode.InvalidArgument, "node %s has incarnation 0; incarnations are random and not zero", id)
	}
	if len(addresses) > maxAddresses {
		return errcode.New(errcode.InvalidArgument, "node %s has %d addresses; at most %d are kept", id, len(addresses), maxAddresses)
	}
	for plane, addr := range addresses {
		if !utf8.ValidString(plane) || !utf8.ValidString(addr) {
			return errcode.New(errcode.InvalidArgument, "node %s has an address %.40q of %.40q that is not UTF-8", id, addr, plane)
		}
		if plane == "" || len(plane) > broker.MaxNameLen || len(addr) > maxAddressBytes {
			return errcode.New(errcode.InvalidArgument, "node %s has an address with a name of %d and a value of %d bytes; 1 to %d and at most %d are kept",
				id, len(plane), len(addr), broker.MaxNameLen, maxAddressBytes)
		}
	}
	return nil
}

// Fenced is an incarnation that may own nothing any more, for ever.
type Fenced struct {
	Incarnation Incarnation `json:"incarnation"`
	Node        string      `json:"node"`
	FencedMs    int64       `json:"fenced_ms"`
	// RetiredMs is when the heir found everything that the incarnation shipped
	// covered: from then on no restore needs it, and part of it may be gone.
	// 0: it is needed.
	RetiredMs int64 `json:"retired_ms,omitempty"`
}

func (f Fenced) validate() error {
	if f.RetiredMs < 0 {
		return errcode.New(errcode.InvalidArgument, "incarnation %s was retired at %d ms, before 1970", f.Incarnation, f.RetiredMs)
	}
	return validateMember(f.Node, f.Incarnation, nil)
}

// Assignment says who serves a partition now, and from which offset on.
type Assignment struct {
	Owner            string      `json:"owner"`
	OwnerIncarnation Incarnation `json:"owner_incarnation"`
	Generation       uint32      `json:"generation"`   // first is 1, at most MaxInt32 (a batch's leader epoch)
	PreviousEnd      int64       `json:"previous_end"` // exclusive end of the generations before
	Start            int64       `json:"start"`        // first offset this generation may assign
}

func (a Assignment) validate() error {
	if err := validateMember(a.Owner, a.OwnerIncarnation, nil); err != nil {
		return err
	}
	switch {
	case a.Generation == 0 || a.Generation > 1<<31-1:
		return errcode.New(errcode.InvalidArgument, "generation %d is not in 1..2147483647", a.Generation)
	case a.PreviousEnd < 0 || a.Start < a.PreviousEnd:
		return errcode.New(errcode.InvalidArgument, "previous end %d and start %d are not 0 <= previous end <= start", a.PreviousEnd, a.Start)
	}
	return nil
}

// Deleted confirms that a topic was deleted: what is left of it is garbage. A
// topic id that is neither here nor a topic is unknown, not deleted.
type Deleted struct {
	ID           broker.TopicID `json:"id"`
	Name         string         `json:"name"`
	DeletedMs    int64          `json:"deleted_ms"`
	Seq          uint64         `json:"seq"`           // order of deletion, starts at 1
	ChangedIndex uint64         `json:"changed_index"` // raft index of the deletion
	// Purged: the archive was seen to hold nothing of the topic any more.
	Purged bool `json:"purged,omitempty"`
}

func (d Deleted) validate() error {
	if d.ID == 0 || d.Seq == 0 {
		return errcode.New(errcode.InvalidArgument, "deleted topic %.40q has id %s and seq %d; neither may be zero", d.Name, d.ID, d.Seq)
	}
	return broker.ValidateName("topic", d.Name)
}

func validateSetting(key, value string) error {
	if err := broker.ValidateName("setting", key); err != nil {
		return err
	}
	if len(value) > MaxSettingBytes {
		return errcode.New(errcode.TooLarge, "setting %s has %d bytes; at most %d are kept", key, len(value), MaxSettingBytes)
	}
	if !utf8.ValidString(value) {
		return errcode.New(errcode.InvalidArgument, "setting %s is not UTF-8", key)
	}
	return nil
}

func isHex16(s string) bool {
	if len(s) != 16 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
