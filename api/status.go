package api

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// statusOf is the HTTP status of a code. Codes that are no client's fault and
// that a while may cure are 503; what nobody can cure by waiting is 500.
func statusOf(c errcode.Code) int {
	switch c {
	case errcode.InvalidArgument:
		return http.StatusBadRequest
	case errcode.NotFound:
		return http.StatusNotFound
	case errcode.Exists, errcode.Conflict:
		return http.StatusConflict
	case errcode.Gone:
		return http.StatusGone
	case errcode.OutOfRange:
		return http.StatusRequestedRangeNotSatisfiable
	case errcode.PreconditionFailed:
		return http.StatusPreconditionFailed
	case errcode.TooLarge:
		return http.StatusRequestEntityTooLarge
	case errcode.UnsupportedType:
		return http.StatusUnsupportedMediaType
	case errcode.MethodNotAllowed:
		return http.StatusMethodNotAllowed
	case errcode.TooMany:
		return http.StatusTooManyRequests
	case errcode.Unauthorized:
		return http.StatusUnauthorized
	case errcode.Denied:
		return http.StatusForbidden
	case errcode.NotConfirmed:
		return http.StatusGatewayTimeout
	case errcode.Canceled:
		return http.StatusRequestTimeout
	case errcode.HeaderTooLarge:
		return http.StatusRequestHeaderFieldsTooLarge
	case errcode.Unavailable, errcode.Overloaded, errcode.Storage, errcode.ArchiveUnavailable, errcode.Fenced,
		errcode.Throttled, errcode.Transient, errcode.Closed, errcode.Poisoned:
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}

// failure is an error in the parts that an answer shows.
type failure struct {
	code  errcode.Code
	msg   string
	facts map[string]any
	wait  time.Duration
}

func failureOf(err error) failure {
	f := failure{code: errcode.Of(err), msg: err.Error()}
	var e *errcode.Error
	if errors.As(err, &e) {
		f.facts, f.wait = e.Facts, e.Wait
	}
	return f
}

// retryAfter is the value of Retry-After in whole seconds, 0 for none. Waiting
// helps where the code says so, and where the error itself names a time.
func (f failure) retryAfter() int64 {
	if f.wait > 0 {
		return int64((f.wait + time.Second - 1) / time.Second)
	}
	if f.code.Retry() == errcode.RetryAfter {
		return 1
	}
	return 0
}

// appendJSON appends the error object. Facts follow in the order of their
// names and never replace the three fields that every error has.
func (f failure) appendJSON(b []byte) []byte {
	b = append(b, `{"error":`...)
	b = appendText(b, f.msg)
	b = append(b, `,"code":"`...)
	b = append(b, f.code.String()...)
	b = append(b, `","retry":"`...)
	b = append(b, f.code.Retry().String()...)
	b = append(b, '"')
	names := make([]string, 0, len(f.facts))
	for name := range f.facts {
		if name != "error" && name != "code" && name != "retry" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		value, err := json.Marshal(f.facts[name])
		if err != nil {
			continue // a fact that has no JSON form says nothing to a program
		}
		b = append(b, ',')
		b = appendText(b, name)
		b = append(b, ':')
		b = append(b, value...)
	}
	return append(b, '}')
}

// fail answers with err. When the answer has begun already the connection is
// aborted, so that what was sent never looks complete.
func (x *exchange) fail(err error) {
	f := failureOf(err)
	x.s.metrics.refused(areaOf(x.template()), f.code)
	if (f.code == errcode.Internal || f.code == errcode.Corrupt) && x.s.faults.Allow() {
		// Nobody above sees these again, and they are the node's fault. Who asks
		// again and again does not fill the log: all of them are counted.
		x.s.log.Error("request failed", slog.String("route", x.template()), slog.String("code", f.code.String()), slog.String("error", f.msg))
	}
	if x.wroteHeader {
		panic(http.ErrAbortHandler)
	}
	x.giveUpBody()
	h := x.Header()
	if after := f.retryAfter(); after > 0 {
		h.Set("Retry-After", strconv.FormatInt(after, 10))
	}
	if f.code == errcode.Unauthorized {
		h["Www-Authenticate"] = challenge
	}
	out := x.buffer()
	out.b = append(f.appendJSON(out.b), '\n')
	x.reply(statusOf(f.code), typeJSON, out.b)
}

var challenge = []string{`Basic realm="tidemark"`}

// laterf is the answer to what is named but not built: kind says what it is.
func laterf(code errcode.Code, kind, name string) error {
	return errcode.New(code, "%s %q is not in this build; leave it out", kind, name)
}
