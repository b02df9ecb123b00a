package main

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
)

// firstBuffer is the body buffer that a request starts with.
const firstBuffer = 4 << 10

// handler reads each body to its end, hands it to append when there is a log,
// and answers 200 without a body.
type handler struct {
	maxBody int64
	append  func([]byte) error // nil: bodies are dropped
	buffers sync.Pool          // *[]byte
	served  atomic.Uint64      // requests answered 200
}

func newHandler(maxBody int64, appendTo func([]byte) error) *handler {
	h := &handler{maxBody: maxBody, append: appendTo}
	h.buffers.New = func() any { b := make([]byte, 0, firstBuffer); return &b }
	return h
}

// ServeHTTP answers 200 when the body was read (and, with a log, is durable),
// 413 over the bound, 400 for a body that ends early, 500 when the log failed.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength > h.maxBody {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return
	}
	buf := h.buffers.Get().(*[]byte)
	defer h.buffers.Put(buf)
	body, err := readBody((*buf)[:0], r.Body, h.maxBody)
	*buf = body
	switch {
	case errors.Is(err, errBodyTooLarge):
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return
	case err != nil:
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if h.append != nil {
		if err := h.append(body); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	h.served.Add(1)
	w.WriteHeader(http.StatusOK)
}

var errBodyTooLarge = errors.New("body over the bound")

// readBody appends src to buf until its end. The buffer grows with what
// arrives, never by a declared length.
func readBody(buf []byte, src io.Reader, limit int64) ([]byte, error) {
	for {
		if int64(len(buf)) > limit {
			return buf, errBodyTooLarge
		}
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := src.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if errors.Is(err, io.EOF) {
			if int64(len(buf)) > limit {
				return buf, errBodyTooLarge
			}
			return buf, nil
		}
		if err != nil {
			return buf, err
		}
	}
}
