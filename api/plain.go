package api

import (
	"bytes"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// plainHead ends the head of the answers that net/http gives to what it cannot
// parse. Answers of handlers never look so: theirs have a length or a Date.
var plainHead = []byte("\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n")

// expectHead begins the one answer of net/http to a request that it could parse:
// an Expect header that it does not know. No handler answers 417.
var expectHead = []byte("HTTP/1.1 417 ")

// plainAnswer recognises such an answer and says it anew.
func plainAnswer(b []byte) (status string, f failure, ok bool) {
	const version = "HTTP/1.1 "
	if bytes.HasPrefix(b, expectHead) {
		return "417 Expectation Failed", failureOf(errcode.New(errcode.InvalidArgument, "the header Expect is not known here; send 100-continue, or none")), true
	}
	if len(b) > 512 || !bytes.HasPrefix(b, []byte(version)) || b[len(version)] != '4' && b[len(version)] != '5' {
		return "", failure{}, false
	}
	end := bytes.IndexByte(b, '\r')
	if end < 0 || !bytes.HasPrefix(b[end:], plainHead) {
		return "", failure{}, false
	}
	status = string(b[len(version):end])
	switch status[:min(3, len(status))] {
	case "431":
		f = failureOf(errcode.New(errcode.HeaderTooLarge, "the request line and headers are larger than this server reads; send fewer or shorter ones"))
	case "501":
		f = failureOf(errcode.New(errcode.UnsupportedType, "the transfer encoding is not accepted; send chunked, or a Content-Length"))
	default:
		f = failureOf(errcode.New(errcode.InvalidArgument, "the request is not HTTP as this server reads it: %s", status))
	}
	return status, f, true
}
