package api

import (
	"net/http"
	"strings"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// The media types of bodies and answers.
const (
	mediaJSON   = "application/json"
	mediaBytes  = "application/octet-stream"
	mediaNDJSON = "application/x-ndjson"
	mediaFrames = "application/vnd.tidemark.frames"
	mediaBatch  = "application/vnd.kafka.record-batch"
	mediaEvents = "text/event-stream"
)

// authenticate finds out who asks.
func (s *Server) authenticate(x *exchange) error {
	if s.opts.Authenticate == nil {
		return nil
	}
	if user, password, ok := x.r.BasicAuth(); ok {
		if identity, ok := s.opts.Authenticate(user, password); ok {
			x.identity = identity
			return nil
		}
	}
	return errcode.New(errcode.Unauthorized, "user and password are missing or wrong; send them by Basic authentication")
}

// guard refuses what a page of another site can make a browser send with the
// user's credentials: such a request can carry neither one of the media types
// below nor a header of our own without asking first, and asking (CORS) is
// never approved.
func guard(r *http.Request) error {
	switch r.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch:
	default:
		return nil
	}
	if len(r.Header["Content-Type"]) > 1 {
		return errcode.New(errcode.InvalidArgument, "the header Content-Type is given twice")
	}
	switch mediaType(r.Header.Get("Content-Type")) {
	case mediaJSON, mediaBytes, mediaNDJSON, mediaFrames, mediaBatch:
		return nil
	}
	if namesClient(r) {
		return nil
	}
	return errcode.New(errcode.UnsupportedType,
		"Content-Type %.60q is not accepted by itself; send application/json, application/octet-stream, application/x-ndjson, application/vnd.tidemark.frames or application/vnd.kafka.record-batch, or add a header X-Tidemark-Client with any value",
		r.Header.Get("Content-Type"))
}

// namesClient reports whether the request has the header that only programs
// can send.
func namesClient(r *http.Request) bool {
	return r.Header["X-Tidemark-Client"] != nil || r.Header["X-Narad-Client"] != nil
}

// mediaType is the type of a Content-Type, lower-cased, without parameters.
func mediaType(header string) string {
	if at := strings.IndexByte(header, ';'); at >= 0 {
		header = header[:at]
	}
	return strings.ToLower(strings.TrimSpace(header))
}

// accepted returns the first of the known media types that an Accept header
// names, "" when it names none of them.
func accepted(r *http.Request, known ...string) string {
	for _, line := range r.Header["Accept"] {
		for line != "" {
			var item string
			item, line, _ = strings.Cut(line, ",")
			item = mediaType(item)
			for _, k := range known {
				if item == k {
					return k
				}
			}
		}
	}
	return ""
}

// answerType chooses the form of an answer: one of known, or JSON. Forms that
// are not built are refused when nothing else is named before them.
func answerType(r *http.Request, known ...string) (string, error) {
	if r.Header["Accept"] == nil {
		return mediaJSON, nil
	}
	all := append([]string{mediaJSON, "*/*", mediaFrames, mediaBatch, mediaEvents}, known...)
	switch got := accepted(r, all...); got {
	case "", mediaJSON, "*/*":
		return mediaJSON, nil
	default:
		for _, k := range known {
			if got == k {
				return got, nil
			}
		}
		return "", errcode.New(errcode.UnsupportedType, "answers of type %s are not in this build; accept one of %s", got, listOf(append([]string{mediaJSON}, known...)))
	}
}
