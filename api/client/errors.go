package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// maxError bounds what is read of an error answer.
const maxError = 64 << 10

// ErrNoAnswer is in the error of a call whose answer did not come, or not whole.
// Whether the node applied it is not known; a code of the class [RetryAfter] in
// the same error says that it can be sent again all the same.
var ErrNoAnswer = errors.New("no whole answer")

// transportError is an error without a whole answer. Where it is certain that
// nothing was applied, and where that does not matter, its class says that the
// call can be repeated.
func transportError(ctx context.Context, err error, r *request, notApplied bool) error {
	if ctx.Err() != nil {
		return errcode.New(errcode.Canceled, "%s %s: gave up: %w", r.method, r.path, ended{ctx.Err(), err})
	}
	code, what := errcode.Internal, fmt.Errorf("%w; it may have been applied", ErrNoAnswer)
	var said *errcode.Error
	switch {
	case errors.As(err, &said) && said.Code != errcode.Canceled:
		code, what = said.Code, errors.New("no answer")
	case notApplied:
		code, what = errcode.Unavailable, errors.New("not sent")
	case r.method == http.MethodGet || r.method == http.MethodHead:
		code, what = errcode.Unavailable, ErrNoAnswer
	}
	return errcode.New(code, "%s %s: %w: %w", r.method, r.path, what, err)
}

// ended is what a call met when its context ended. Both can be found in it.
type ended struct{ ctx, err error }

func (e ended) Error() string { return e.ctx.Error() }

func (e ended) Unwrap() []error { return []error{e.ctx, e.err} }

var codes = func() map[string]errcode.Code {
	m := map[string]errcode.Code{}
	for c := errcode.Code(0); !strings.HasPrefix(c.String(), "code_"); c++ {
		m[c.String()] = c
	}
	return m
}()

// answerError turns an error answer into the error that the node meant.
func answerError(res *http.Response, r *request) error {
	body, readErr := io.ReadAll(io.LimitReader(res.Body, maxError))
	var fields map[string]any
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	if readErr != nil || dec.Decode(&fields) != nil {
		e := errcode.New(foreignCode(res.StatusCode), "%s %s: %s, and no JSON error: %.200s", r.method, r.path, res.Status, body)
		return e.After(retryAfter(res.Header))
	}
	text, _ := fields["error"].(string)
	name, _ := fields["code"].(string)
	class, _ := fields["retry"].(string)
	e := errcode.New(codeOf(res.StatusCode, name, class), "%s", text)
	for fact, value := range fields {
		if fact != "error" && fact != "code" && fact != "retry" {
			e = e.With(fact, value)
		}
	}
	return e.After(retryAfter(res.Header))
}

// NextOffset is where the log ended when a produce with an ExpectedOffset was
// refused: what the next one has to expect. ok is false for every other error.
func NextOffset(err error) (next int64, ok bool) {
	var e *errcode.Error
	if !errors.As(err, &e) || e.Code != errcode.PreconditionFailed {
		return 0, false
	}
	number, isNumber := e.Facts["next_offset"].(json.Number)
	if !isNumber {
		return 0, false
	}
	next, bad := number.Int64()
	return next, bad == nil && next >= 0
}

// retryAfter reads the header of that name: seconds, or a date as proxies send it.
func retryAfter(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, time.Until(at))
	}
	return 0
}

// codeOf returns the code of that name. One that this build does not know, of a
// newer node, becomes the nearest of the same retry class.
func codeOf(status int, name, class string) errcode.Code {
	if code, known := codes[name]; known {
		return code
	}
	code := foreignCode(status)
	if class == "" || code.Retry().String() == class {
		return code
	}
	switch class {
	case errcode.RetryAfter.String():
		return errcode.Unavailable
	case errcode.RetryRedirect.String():
		return errcode.Fenced
	case errcode.RetryNever.String():
		return errcode.InvalidArgument
	default:
		return errcode.Internal
	}
}

// foreignCode guesses the code of an answer that a proxy gave, or a newer node.
func foreignCode(status int) errcode.Code {
	switch status {
	case http.StatusUnauthorized:
		return errcode.Unauthorized
	case http.StatusForbidden:
		return errcode.Denied
	case http.StatusNotFound:
		return errcode.NotFound
	case http.StatusGone:
		return errcode.Gone
	case http.StatusRequestEntityTooLarge:
		return errcode.TooLarge
	case http.StatusUnsupportedMediaType:
		return errcode.UnsupportedType
	case http.StatusTooManyRequests:
		return errcode.TooMany
	case http.StatusServiceUnavailable:
		return errcode.Unavailable
	default:
		if status >= 500 {
			return errcode.Internal
		}
		return errcode.InvalidArgument
	}
}
