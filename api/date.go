package api

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// appendStatus appends the status to the version that an answer begins with.
func appendStatus(b []byte, status int) []byte {
	b = strconv.AppendInt(b, int64(status), 10)
	return append(append(append(b, ' '), http.StatusText(status)...), "\r\n"...)
}

// date is the line that says the time of one second.
type date struct {
	second int64
	line   []byte
}

var lastDate atomic.Pointer[date]

// appendDate appends the header Date, which is put together once a second.
func appendDate(b []byte, now time.Time) []byte {
	d := lastDate.Load()
	if second := now.Unix(); d == nil || d.second != second {
		d = &date{second: second, line: now.UTC().AppendFormat(nil, "Date: "+http.TimeFormat+"\r\n")}
		lastDate.Store(d)
	}
	return append(b, d.line...)
}
