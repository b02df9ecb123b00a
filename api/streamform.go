package api

import (
	"encoding/binary"
	"strconv"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// streamForm is one way to write the log as a stream.
type streamForm struct {
	contentType []string
	// record appends a record. Nil: the batches go out as they are stored.
	record func(b []byte, r *broker.Record) []byte
	// end appends what says that the stream is whole, and where to read on. Nil:
	// the trailer resumeTrailer does.
	end func(b []byte, resume int64) []byte
	// alive is written when nothing has come for a while. Nil: nothing is.
	alive []byte
}

var resumeTrailer = []string{"Tidemark-Resume-Offset"}

var (
	typeFrames = []string{mediaFrames}
	typeBatch  = []string{mediaBatch}
	typeEvents = []string{mediaEvents}
)

// The forms of a stream, by the media type that asks for them.
var (
	lineForm    = &streamForm{contentType: typeNDJSON, record: AppendRecordLine, end: appendEndLine}
	eventForm   = &streamForm{contentType: typeEvents, record: appendEvent, end: appendEndEvent, alive: []byte(":\n\n")}
	frameForm   = &streamForm{contentType: typeFrames, record: appendRecordFrame}
	batchForm   = &streamForm{contentType: typeBatch}
	streamForms = map[string]*streamForm{mediaNDJSON: lineForm, mediaEvents: eventForm, mediaFrames: frameForm, mediaBatch: batchForm}
)

// appendEnd appends the object that ends a stream of JSON.
func appendEnd(b []byte, resume int64) []byte {
	b = append(b, `{"end":true,"resume_offset":`...)
	b = strconv.AppendInt(b, resume, 10)
	return append(b, '}')
}

func appendEndLine(b []byte, resume int64) []byte { return append(appendEnd(b, resume), '\n') }

// appendEvent appends a record as an event. Its id is what a client sends as
// Last-Event-ID when it comes again. A record's line has no line break inside.
func appendEvent(b []byte, r *broker.Record) []byte {
	b = append(b, "id: "...)
	b = strconv.AppendInt(b, r.Offset, 10)
	b = append(b, "\ndata: "...)
	b = appendRecord(b, r, true)
	return append(b, "\n\n"...)
}

func appendEndEvent(b []byte, resume int64) []byte {
	b = append(b, "event: end\ndata: "...)
	return append(appendEnd(b, resume), "\n\n"...)
}

// appendRecordFrame appends a record of the log as a frame.
func appendRecordFrame(b []byte, r *broker.Record) []byte {
	b, at := beginFrame(b)
	b = appendRecordHead(b, r)
	b = appendHeaders(b, r.Headers)
	return endFrame(append(b, '}'), at, r.Value)
}

// appendMessageFrame appends a delivered record as a frame.
func appendMessageFrame(b []byte, topic string, m *Message, lease bool) []byte {
	b, at := beginFrame(b)
	b = appendMessageHead(b, topic, m)
	b = appendMessageTail(b, m, lease)
	return endFrame(b, at, m.Value)
}

// A frame is the length of the metadata, the metadata as JSON, the length of
// the value, and the value; lengths are big-endian u32. A record is far smaller
// than they can say.

func beginFrame(b []byte) (out []byte, at int) { return append(b, 0, 0, 0, 0), len(b) }

func endFrame(b []byte, at int, value []byte) []byte {
	binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	b = binary.BigEndian.AppendUint32(b, uint32(len(value)))
	return append(b, value...)
}
