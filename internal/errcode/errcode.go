// Package errcode is the closed list of error codes that Tidemark speaks on
// the wire, over HTTP and in logs, and the error type that carries one.
//
// A code says what kind of thing went wrong and whether trying again can help
// (its [Retry] class). The text of an [Error] says what happened, to what, and
// what to do; callers decide on the code alone, never on the text. Codes are
// append-only: a number once given never changes its meaning.
package errcode

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"
)

// Retry says whether the same request can succeed later.
type Retry uint8

// Retry classes, in the words that HTTP answers use.
const (
	RetryNever    Retry = iota // the request itself is wrong
	RetryAfter                 // the same request may succeed after a while; it was not applied
	RetryRedirect              // another node has to be asked
	RetryUnknown               // the request may have been applied
)

// String returns "never", "after", "redirect" or "unknown".
func (r Retry) String() string {
	switch r {
	case RetryNever:
		return "never"
	case RetryAfter:
		return "after"
	case RetryRedirect:
		return "redirect"
	default:
		return "unknown"
	}
}

// Code is one kind of failure.
type Code uint16

// The codes. Append only.
const (
	Internal           Code = iota // a bug, or an error that nobody classified
	InvalidArgument                // a field, parameter or body that cannot be accepted
	NotFound                       // the named thing does not exist
	Exists                         // a thing of that name or key exists already
	Conflict                       // the state of the thing forbids this
	Gone                           // it existed and does not any more (lease, trimmed offset)
	OutOfRange                     // an offset above the high watermark
	PreconditionFailed             // a condition of the request does not hold
	TooLarge                       // a body, record or batch over its bound
	UnsupportedType                // a content type or encoding that is not accepted here
	MethodNotAllowed               // the path exists, this verb on it does not
	TooMany                        // the caller is at a limit of its own
	Unauthorized                   // no or wrong credentials
	Denied                         // known, but not allowed
	Unavailable                    // this node cannot serve it now
	Overloaded                     // a bound of the node is reached
	Storage                        // local disk refused, is full, or failed
	ArchiveUnavailable             // the object store cannot be reached or refuses
	NotConfirmed                   // applied perhaps; the wait for confirmation ended
	Fenced                         // somebody else owns it now
	Corrupt                        // bytes do not verify
	UnsupportedVersion             // a format version this build does not know
	Throttled                      // the object store asked for fewer requests
	Transient                      // an I/O failure that may pass
	Closed                         // the component is shutting down
	Canceled                       // the caller went away or its deadline passed
	Poisoned                       // a failed fsync: the node takes no writes until a restart
	HeaderTooLarge                 // request headers over the bound
	numCodes
)

type codeInfo struct {
	name  string
	retry Retry
}

var table = [numCodes]codeInfo{
	Internal:           {"internal", RetryUnknown},
	InvalidArgument:    {"invalid_argument", RetryNever},
	NotFound:           {"not_found", RetryNever},
	Exists:             {"exists", RetryNever},
	Conflict:           {"conflict", RetryNever},
	Gone:               {"gone", RetryNever},
	OutOfRange:         {"out_of_range", RetryNever},
	PreconditionFailed: {"precondition_failed", RetryNever},
	TooLarge:           {"too_large", RetryNever},
	UnsupportedType:    {"unsupported_type", RetryNever},
	MethodNotAllowed:   {"method_not_allowed", RetryNever},
	TooMany:            {"too_many", RetryAfter},
	Unauthorized:       {"unauthorized", RetryNever},
	Denied:             {"denied", RetryNever},
	Unavailable:        {"unavailable", RetryAfter},
	Overloaded:         {"overloaded", RetryAfter},
	Storage:            {"storage", RetryAfter},
	ArchiveUnavailable: {"archive_unavailable", RetryAfter},
	NotConfirmed:       {"not_confirmed", RetryUnknown},
	Fenced:             {"fenced", RetryRedirect},
	Corrupt:            {"corrupt", RetryNever},
	UnsupportedVersion: {"unsupported_version", RetryNever},
	Throttled:          {"throttled", RetryAfter},
	Transient:          {"transient", RetryAfter},
	Closed:             {"closed", RetryAfter},
	Canceled:           {"canceled", RetryUnknown},
	Poisoned:           {"poisoned", RetryAfter},
	HeaderTooLarge:     {"header_too_large", RetryNever},
}

// String returns the code's wire name, for example "not_found".
func (c Code) String() string {
	if c < numCodes {
		return table[c].name
	}
	return fmt.Sprintf("code_%d", uint16(c))
}

// Retry returns the code's retry class; an unknown code is RetryUnknown.
func (c Code) Retry() Retry {
	if c < numCodes {
		return table[c].retry
	}
	return RetryUnknown
}

// Error carries a code, a sentence for people and facts for programs.
type Error struct {
	Code  Code
	Msg   string         // what happened, to what, and what to do
	Facts map[string]any // extra fields of the HTTP answer, for example next_offset
	Wait  time.Duration  // when trying again makes sense; 0 = not said
	Err   error          // cause, may be nil
}

// New returns an error of code c; format and args are as in fmt.Errorf, so %w
// keeps a cause that errors.Is finds.
func New(c Code, format string, args ...any) *Error {
	wrapped := fmt.Errorf(format, args...)
	cause := errors.Unwrap(wrapped)
	if _, several := wrapped.(interface{ Unwrap() []error }); several {
		cause = wrapped
	}
	return &Error{Code: c, Msg: wrapped.Error(), Err: cause}
}

// Wrap returns err with the context prefix and, unless err carries a code of
// its own, with code c. Wrap(c, nil, ...) is nil.
func Wrap(c Code, err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	out := &Error{Code: c, Msg: fmt.Sprintf(format, args...) + ": " + err.Error(), Err: err}
	var inner *Error
	if errors.As(err, &inner) {
		out.Code, out.Facts, out.Wait = inner.Code, inner.Facts, inner.Wait
	}
	return out
}

// With returns a copy of e with one more fact.
func (e *Error) With(key string, value any) *Error {
	out := *e
	out.Facts = maps.Clone(e.Facts)
	if out.Facts == nil {
		out.Facts = make(map[string]any, 2)
	}
	out.Facts[key] = value
	return &out
}

// After returns a copy of e that asks the caller to wait for d.
func (e *Error) After(d time.Duration) *Error {
	out := *e
	out.Wait = d
	return &out
}

// Error implements error.
func (e *Error) Error() string { return e.Msg }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Of returns the code that err carries: Canceled for a context's end, Internal
// when there is none.
func Of(err error) Code {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e.Code
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return Canceled
	default:
		return Internal
	}
}

// Is reports whether err carries code c.
func Is(err error, c Code) bool { return err != nil && Of(err) == c }
