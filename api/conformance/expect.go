package conformance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// expectation is what an answer must be.
type expectation struct {
	status int
	code   string
	exact  *string
	says   []string
	hides  []string
	fields [][2]string
	head   []string
	save   [][2]string
}

// absent is the value of a member that is not there.
const absent = "absent"

// check returns what is wrong with an answer. name replaces names in texts.
func (e *expectation) check(method string, res *http.Response, body []byte, name func(string) string) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if res.StatusCode != e.status {
		fault("the status is %d, not %d", res.StatusCode, e.status)
	}
	faults = append(faults, always(method, res, body)...)
	if code := codeOf(body); e.code != "" && code != e.code && method != http.MethodHead {
		fault("the code is %q, not %q", code, e.code)
	}
	if e.exact != nil && string(body) != name(*e.exact) {
		fault("the body is not %.200q", name(*e.exact))
	}
	for _, text := range e.says {
		if !strings.Contains(string(body), name(text)) {
			fault("the body does not say %q", name(text))
		}
	}
	for _, text := range e.hides {
		if strings.Contains(string(body), name(text)) {
			fault("the body says %q", name(text))
		}
	}
	for _, f := range e.fields {
		if got, want := member(body, f[0]), name(f[1]); got != want {
			fault("the member %s is %.200s, not %.200s", f[0], got, want)
		}
	}
	for _, line := range e.head {
		key, want, _ := strings.Cut(name(line), ":")
		want = strings.TrimSpace(want)
		if got := strings.Join(res.Header.Values(key), ", "); got != want {
			fault("the header %s is %q, not %q", key, got, want)
		}
	}
	return faults
}

// always is what holds for every answer.
func always(method string, res *http.Response, body []byte) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if res.StatusCode >= 300 && res.StatusCode < 400 {
		fault("it is a redirect to %q", res.Header.Get("Location"))
	}
	for key := range res.Header {
		if strings.HasPrefix(key, "Access-Control-") {
			fault("the header %s approves another origin", key)
		}
	}
	kind := res.Header.Get("Content-Type")
	switch {
	case method == http.MethodHead || res.StatusCode == http.StatusNoContent:
		if len(body) > 0 {
			fault("it has a body of %d bytes", len(body))
		}
		return faults
	case res.StatusCode < 400:
		if kind == "application/json" && !json.Valid(body) {
			fault("the body is not JSON")
		}
		return faults
	case res.StatusCode == http.StatusServiceUnavailable && strings.HasPrefix(string(body), `{"ready":`):
		return faults // readyz says it in its own words
	}
	return append(faults, refusal(res, body)...)
}

// refusal is what holds for every error.
func refusal(res *http.Response, body []byte) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	var e struct {
		Error, Code, Retry *string
	}
	if err := json.Unmarshal(body, &e); err != nil || e.Error == nil || e.Code == nil || e.Retry == nil || *e.Error == "" {
		fault("the body is no error object")
		return faults
	}
	if kind := res.Header.Get("Content-Type"); kind != "application/json" {
		fault("the type of an error is %q", kind)
	}
	code, known := codes[*e.Code]
	if !known {
		fault("the code %q is none", *e.Code)
		return faults
	}
	if want := code.Retry().String(); *e.Retry != want {
		fault("retry is %q where %s has %q", *e.Retry, code, want)
	}
	after := res.Header.Get("Retry-After")
	if n, err := strconv.Atoi(after); code.Retry() == errcode.RetryAfter && (err != nil || n < 1) {
		fault("waiting helps, and Retry-After is %q", after)
	}
	if res.StatusCode == http.StatusMethodNotAllowed && !strings.HasSuffix(res.Header.Get("Allow"), "OPTIONS") {
		fault("a 405 has Allow %q", res.Header.Get("Allow"))
	}
	if res.StatusCode == http.StatusUnauthorized && !strings.HasPrefix(res.Header.Get("WWW-Authenticate"), "Basic ") {
		fault("a 401 has no challenge")
	}
	return faults
}

// codes are all error codes by their names.
var codes = func() map[string]errcode.Code {
	m := map[string]errcode.Code{}
	for c := errcode.Code(0); !strings.HasPrefix(c.String(), "code_"); c++ {
		m[c.String()] = c
	}
	return m
}()

func codeOf(body []byte) string {
	var e struct{ Code string }
	if json.Unmarshal(body, &e) != nil {
		return "no JSON"
	}
	return e.Code
}

// member is the JSON text at a path like "messages.0.offset".
func member(body []byte, path string) string {
	raw := json.RawMessage(body)
	for name := range strings.SplitSeq(path, ".") {
		if i, err := strconv.Atoi(name); err == nil {
			var list []json.RawMessage
			if json.Unmarshal(raw, &list) != nil || i >= len(list) {
				return absent
			}
			raw = list[i]
			continue
		}
		var object map[string]json.RawMessage
		if json.Unmarshal(raw, &object) != nil || object[name] == nil {
			return absent
		}
		raw = object[name]
	}
	return string(raw)
}

// saved is what an answer's save asks for, without the quotes of a string.
func saved(res *http.Response, body []byte, from string) (string, bool) {
	if key, ok := strings.CutPrefix(from, "header "); ok {
		return res.Header.Get(key), slices.Contains(headerNames(res.Header), http.CanonicalHeaderKey(key))
	}
	raw := member(body, from)
	var text string
	if json.Unmarshal([]byte(raw), &text) == nil {
		return text, true
	}
	return raw, raw != absent
}

func headerNames(h http.Header) (names []string) {
	for name := range h {
		names = append(names, name)
	}
	return names
}
