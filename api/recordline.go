package api

import "github.com/tidemark-mq/tidemark/internal/broker"

// AppendRecordLine appends r as the line that a stream of records has for it,
// with its line break: {"offset":..., "timestamp_ms":..., "payload":...}. Tools that
// print records without a node print them alike.
func AppendRecordLine(b []byte, r *broker.Record) []byte {
	return append(appendRecord(b, r, true), '\n')
}
