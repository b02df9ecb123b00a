package client

import (
	"net/http"

	"github.com/klauspost/compress/zstd"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// compressFrom is the size of a body from which on compressing is worth it.
const compressFrom = 1 << 10

var zstdEncoding = http.Header{"Content-Encoding": {"zstd"}}

// newEncoder returns an encoder of whole bodies. It has no goroutines.
func newEncoder() (*zstd.Encoder, error) {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
	return e, errcode.Wrap(errcode.Internal, err, "make a zstd encoder")
}

// compress puts the body of r into zstd, when that makes it smaller.
func (p *Producer) compress(r *request) (compressed bool) {
	if p.encoder == nil || len(r.body) < compressFrom {
		return false
	}
	small := p.encoder.EncodeAll(r.body, make([]byte, 0, len(r.body)/2))
	if len(small) >= len(r.body) {
		return false
	}
	r.body, r.header = small, zstdEncoding
	return true
}
