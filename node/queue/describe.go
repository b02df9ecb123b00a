package queue

import (
	"fmt"
	"time"
)

// Described is one operation of a journal entry, for people and tools. Fields
// that an operation does not have are zero.
type Described struct {
	Op       string `json:"op"` // settle, return, seek, delete, skip, extend, cut
	From     int64  `json:"from"`
	Next     int64  `json:"next,omitempty"` // settle and skip: exclusive end
	Attempts uint32 `json:"attempts,omitempty"`
	DueMS    int64  `json:"due_ms,omitempty"`
	Deadline int64  `json:"deadline_us,omitempty"` // of an extended lease
}

var opNames = map[opKind]string{
	opSettle: "settle", opReturn: "return", opSeek: "seek", opDelete: "delete", opSkip: "skip", opExtend: "extend", opCut: "cut",
}

// Describe decodes a journal entry. Errors: Corrupt, UnsupportedVersion.
func Describe(ops []byte) (out []Described, err error) {
	err = decodeOps(ops, func(o op) error {
		d := Described{Op: opNames[o.kind], From: o.from, Attempts: o.attempts, DueMS: o.dueMS, Deadline: o.deadline}
		if o.kind == opSettle || o.kind == opSkip {
			d.Next = o.to
		}
		out = append(out, d)
		return nil
	})
	return out, err
}

// String is the operation in a few words.
func (d Described) String() string {
	switch d.Op {
	case "settle", "skip":
		if d.Next == d.From+1 {
			return fmt.Sprintf("%s %d", d.Op, d.From)
		}
		return fmt.Sprintf("%s %d..%d", d.Op, d.From, d.Next-1)
	case "return":
		if d.DueMS == 0 {
			return fmt.Sprintf("return %d after %d deliveries", d.From, d.Attempts)
		}
		return fmt.Sprintf("return %d after %d deliveries, due %s", d.From, d.Attempts, time.UnixMilli(d.DueMS).UTC().Format(time.RFC3339Nano))
	case "extend":
		return fmt.Sprintf("extend %d until %s", d.From, time.UnixMicro(d.Deadline).UTC().Format(time.RFC3339Nano))
	case "seek":
		return fmt.Sprintf("seek to %d", d.From)
	case "cut":
		return fmt.Sprintf("cut at %d", d.From)
	default:
		return d.Op
	}
}
