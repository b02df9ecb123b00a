package raftmeta

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// A command is one byte version, one byte op and a JSON body with the fields
// of the op's struct. Ops are append-only. A struct gains a field only with
// omitempty: a build that does not know the field stops at the first command
// that uses it, as at an unknown op, instead of skipping it and differing. Time
// and randomness are chosen by the proposer and stand in the command, so that
// every node applies the same.
const (
	commandVersion  = 1
	maxCommandBytes = 1 << 20                     // every op but adopt
	maxAdoptBytes   = MaxExportBytes + (64 << 10) // an export and what is around it
)

type op uint8

// The ops. Append only.
const (
	opInitCluster op = iota + 1
	opAdopt
	opRegisterIncarnation
	opCreateTopic
	opDeleteTopic
	opSetAssignment
	opPutSetting
	opFenceIncarnation
	opUpdateTopic
	opPurgeTopic
	opRetireIncarnation
)

// command is one decoded command. apply changes s, which the caller owns, and
// returns what the proposer gets; with an error or changed == false it has not
// touched s. It is deterministic: it reads nothing but s, the command and the
// index.
type command interface {
	op() op
	apply(s *State, index uint64) (result any, changed bool, err error)
}

// newCommand returns an empty command of op o; nil for an op this build does not know.
func newCommand(o op) command {
	switch o {
	case opInitCluster:
		return &initCluster{}
	case opAdopt:
		return &adopt{}
	case opRegisterIncarnation:
		return &registerIncarnation{}
	case opCreateTopic:
		return &createTopic{}
	case opDeleteTopic:
		return &deleteTopic{}
	case opSetAssignment:
		return &setAssignment{}
	case opPutSetting:
		return &putSetting{}
	case opFenceIncarnation:
		return &fenceIncarnation{}
	case opUpdateTopic:
		return &updateTopic{}
	case opPurgeTopic:
		return &purgeTopic{}
	case opRetireIncarnation:
		return &retireIncarnation{}
	}
	return nil
}

// String returns the op's name in metrics and messages.
func (o op) String() string {
	names := [...]string{"unknown", "init_cluster", "adopt", "register_incarnation", "create_topic", "delete_topic",
		"set_assignment", "put_setting", "fence_incarnation", "update_topic",
		"purge_topic", "retire_incarnation"}
	if int(o) < len(names) {
		return names[o]
	}
	return names[0]
}

type initCluster struct {
	Cluster Cluster `json:"cluster"`
}

type adopt struct {
	Generation uint64          `json:"generation"` // cluster generation of the takeover
	Export     json.RawMessage `json:"export"`
}

type registerIncarnation struct {
	Node        string            `json:"node"`
	Incarnation Incarnation       `json:"incarnation"`
	Addresses   map[string]string `json:"addresses"`
}

type createTopic struct {
	Topic            Topic       `json:"topic"` // changed_index is 0 here
	Owner            string      `json:"owner"`
	OwnerIncarnation Incarnation `json:"owner_incarnation"`
}

type updateTopic struct {
	ID           broker.TopicID `json:"id"`
	ChangedIndex uint64         `json:"changed_index"` // compare: the topic as the proposer read it
	Settings     TopicSettings  `json:"settings"`
}

type deleteTopic struct {
	ID        broker.TopicID `json:"id"`
	DeletedMs int64          `json:"deleted_ms"`
}

type setAssignment struct {
	Topic            broker.TopicID `json:"topic"`
	Partition        uint32         `json:"partition"`
	ExpectOwner      string         `json:"expect_owner"`
	ExpectGeneration uint32         `json:"expect_generation"`
	Next             Assignment     `json:"next"`
}

type putSetting struct {
	Key   string `json:"key"`
	Value string `json:"value"` // empty removes
}

type fenceIncarnation struct {
	Fenced Fenced `json:"fenced"`
}

type purgeTopic struct {
	ID broker.TopicID `json:"id"`
}

type retireIncarnation struct {
	Node        string      `json:"node"`
	Incarnation Incarnation `json:"incarnation"`
	RetiredMs   int64       `json:"retired_ms"`
}

func (*initCluster) op() op         { return opInitCluster }
func (*adopt) op() op               { return opAdopt }
func (*registerIncarnation) op() op { return opRegisterIncarnation }
func (*createTopic) op() op         { return opCreateTopic }
func (*deleteTopic) op() op         { return opDeleteTopic }
func (*setAssignment) op() op       { return opSetAssignment }
func (*putSetting) op() op          { return opPutSetting }
func (*fenceIncarnation) op() op    { return opFenceIncarnation }
func (*updateTopic) op() op         { return opUpdateTopic }
func (*purgeTopic) op() op          { return opPurgeTopic }
func (*retireIncarnation) op() op   { return opRetireIncarnation }

// encodeCommand returns the bytes that go into the Raft log.
func encodeCommand(c command) ([]byte, error) {
	buf := bytes.NewBuffer([]byte{commandVersion, byte(c.op())})
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(c); err != nil {
		return nil, errcode.Wrap(errcode.Internal, err, "encode %s", c.op())
	}
	out := bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
	if limit := commandLimit(c.op()); len(out) > limit {
		return nil, errcode.New(errcode.TooLarge, "%s takes %d bytes; at most %d fit into one command", c.op(), len(out), limit)
	}
	return out, nil
}

func commandLimit(o op) int {
	if o == opAdopt {
		return maxAdoptBytes
	}
	return maxCommandBytes
}

// decodeCommand reads what encodeCommand wrote. An unknown version or op has
// code unsupported_version; anything else that does not decode is corrupt.
func decodeCommand(b []byte) (command, error) {
	if len(b) < 2 {
		return nil, errcode.New(errcode.Corrupt, "command of %d bytes has no version and op", len(b))
	}
	if b[0] != commandVersion {
		return nil, errcode.New(errcode.UnsupportedVersion, "command version %d is not known, this build knows version %d: run the tidemark version that wrote it, or a newer one", b[0], commandVersion)
	}
	o := op(b[1])
	c := newCommand(o)
	if c == nil {
		return nil, errcode.New(errcode.UnsupportedVersion, "command op %d is not known to this build: run the tidemark version that wrote it, or a newer one", b[1])
	}
	if limit := commandLimit(o); len(b) > limit {
		return nil, errcode.New(errcode.Corrupt, "%s command has %d bytes; at most %d are written", o, len(b), limit)
	}
	if err := decodeStrict(b[2:], c); err != nil {
		return nil, errcode.Wrap(errcode.Corrupt, err, "%s command does not decode", o)
	}
	return c, nil
}

// decodeStrict reads exactly one JSON value into v and accepts no unknown
// field: that is how a newer build's data shows (unsupported_version).
func decodeStrict(b []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := strictError(dec.Decode(v)); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errcode.New(errcode.Corrupt, "bytes follow the JSON value")
	}
	return nil
}

// strictError gives an unknown field its code; encoding/json has no type for it.
func strictError(err error) error {
	if err != nil && strings.HasPrefix(err.Error(), "json: unknown field ") {
		return errcode.New(errcode.UnsupportedVersion, "it has a field that this build does not know; use the tidemark version that wrote it, or a newer one: %w", err)
	}
	return err
}
