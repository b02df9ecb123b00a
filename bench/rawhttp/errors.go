package rawhttp

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"time"
)

// RefusedError is an answer with another status than was hoped for.
type RefusedError struct {
	Request string // method and path
	Status  int
	Retry   string        // what the answer says of trying again: never, after, redirect, unknown; "": nothing
	After   time.Duration // its Retry-After; 0: not said
	Said    string
}

// Error names the request, the status and the server's words.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s: status %d: %s", e.Request, e.Status, e.Said)
}

// NoAnswerError is a request without a whole answer.
type NoAnswerError struct {
	Request string // method and path
	What    string // how far it came
	Sent    bool   // perhaps: the server may have done what it asks for
	Err     error
}

// Error names the request and what came in between.
func (e *NoAnswerError) Error() string { return fmt.Sprintf("%s: %s: %v", e.Request, e.What, e.Err) }

// Unwrap returns the cause.
func (e *NoAnswerError) Unwrap() error { return e.Err }

// Timeout says that the time for the answer was over.
func (e *NoAnswerError) Timeout() bool { return errors.Is(e.Err, os.ErrDeadlineExceeded) }

// noAnswer makes an error of a request without an answer; when the context has
// ended, that is the error.
func (c *Conn) noAnswer(r Request, what string, sent bool, err error) error {
	return &NoAnswerError{Request: r.Method + " " + r.Path, What: what, Sent: sent, Err: c.cause(err)}
}

// Refused makes a [RefusedError] of an answer that is none of the wanted statuses.
func (a *Answer) Refused(r Request, want ...int) error {
	for _, w := range want {
		if a.Status == w {
			return nil
		}
	}
	e := &RefusedError{Request: r.Method + " " + r.Path, Status: a.Status}
	var said struct {
		Error string `json:"error"`
		Retry string `json:"retry"`
	}
	if json.Unmarshal(a.Body, &said) != nil || said.Error == "" {
		said.Error = fmt.Sprintf("%.200q", a.Body)
	}
	e.Said, e.Retry = said.Error, said.Retry
	e.After = retryAfter(a.Header, time.Now())
	return e
}

// retryAfter reads a header in either of its forms.
func retryAfter(h http.Header, now time.Time) time.Duration {
	v := h.Get("Retry-After")
	if n, err := strconv.ParseUint(v, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}
