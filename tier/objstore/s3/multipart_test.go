package s3

import (
	"bytes"
	"context"
	"crypto/sha256"
	"net/http"
	"strings"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/s3server"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// partStore opens a store that sends everything above 5 MiB in parts of 5 MiB.
func partStore(t *testing.T, p *parts) *Store {
	t.Helper()
	o := newFake(t, p.answer).options()
	o.SinglePut, o.PartBytes = minPart, minPart
	return open(t, o)
}

// Proves that no way out of an upload in parts leaves parts behind: a part that
// fails, a context that ends, a join that fails by status or by a 200 with an
// error in it, a taken key, a sum that differs. B191 B192 B193.
func TestPartsAreAborted(t *testing.T) {
	data := bytes.Repeat([]byte("parts"), 3<<20)
	sum := sha256.Sum256(data)
	isPart := func(r *http.Request, n string) bool { return r.URL.Query().Get("partNumber") == n }
	isJoin := func(r *http.Request) bool { return r.Method == http.MethodPost && r.URL.Query().Has("uploadId") }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, c := range []struct {
		name string
		trip func(p *parts, w http.ResponseWriter, r *http.Request) bool
		opts objstore.PutOptions
		ctx  context.Context
		want errcode.Code
	}{
		{name: "part 3 fails", want: errcode.Transient, trip: func(_ *parts, w http.ResponseWriter, r *http.Request) bool {
			if isPart(r, "3") {
				answerError(w, 500, "InternalError", "")
			}
			return isPart(r, "3")
		}},
		{name: "the context ends", ctx: ctx, want: errcode.Canceled, trip: func(_ *parts, w http.ResponseWriter, r *http.Request) bool {
			if isPart(r, "2") {
				cancel()
			}
			return false
		}},
		{name: "the join fails", want: errcode.Throttled, trip: func(_ *parts, w http.ResponseWriter, r *http.Request) bool {
			if isJoin(r) {
				answerError(w, 503, "SlowDown", "")
			}
			return isJoin(r)
		}},
		{name: "the join fails with 200", want: errcode.Transient, trip: func(_ *parts, w http.ResponseWriter, r *http.Request) bool {
			if isJoin(r) {
				answerError(w, 200, "InternalError", "")
			}
			return isJoin(r)
		}},
		{name: "the quota ends at the join", want: errcode.Transient, trip: func(_ *parts, w http.ResponseWriter, r *http.Request) bool {
			if isJoin(r) {
				answerError(w, 200, "QuotaExceeded", "")
			}
			return isJoin(r)
		}},
		{name: "the key is taken", want: errcode.Exists, trip: func(p *parts, _ http.ResponseWriter, r *http.Request) bool {
			p.objects["root/big"] = []byte("first")
			return false
		}},
		{name: "the sum differs", want: errcode.Corrupt, opts: objstore.PutOptions{SHA256: new([32]byte)}},
		{name: "the sum holds", opts: objstore.PutOptions{SHA256: &sum, CRC32C: crcOf(data)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newParts()
			if c.trip != nil {
				p.trip = func(w http.ResponseWriter, r *http.Request) bool { return c.trip(p, w, r) }
			}
			s := partStore(t, p)
			opts := c.opts
			opts.CreateOnly = true
			if c.ctx == nil {
				c.ctx = t.Context()
			}
			err := s.Put(c.ctx, "big", bytes.NewReader(data), int64(len(data)), opts)
			if c.want == 0 {
				if err != nil || !bytes.Equal(p.objects["root/big"], data) {
					t.Fatalf("put: %v", err)
				}
			} else if !errcode.Is(err, c.want) {
				t.Fatalf("put: %v (%v); want %v", err, errcode.Of(err), c.want)
			}
			if len(p.uploads) != 0 {
				t.Errorf("%d uploads are left", len(p.uploads))
			}
			if got := p.objects["root/big"]; c.want != 0 && got != nil && string(got) != "first" {
				t.Errorf("an object of %d bytes is there", len(got))
			}
		})
	}
}

// Proves that an abort that fails is told, and that the sweep finds what it and
// crashes left: uploads of our prefix, old enough, and no others.
func TestSweepUploads(t *testing.T) {
	p := newParts()
	p.trip = func(w http.ResponseWriter, r *http.Request) bool {
		broken := r.URL.Query().Get("partNumber") == "2" || r.Method == http.MethodDelete
		if broken {
			answerError(w, 500, "InternalError", "")
		}
		return broken
	}
	s := partStore(t, p)
	err := put(s, "big", make([]byte, 12<<20), objstore.PutOptions{})
	if !errcode.Is(err, errcode.Transient) || !strings.Contains(err.Error(), "swept") || len(p.uploads) != 1 {
		t.Fatalf("put: %v, %d uploads", err, len(p.uploads))
	}
	p.trip = nil
	began := time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
	if n, err := s.SweepUploads(t.Context(), began); n != 0 || err != nil || len(p.uploads) != 1 {
		t.Errorf("sweep of what is older: %d, %v", n, err)
	}
	if n, err := s.SweepUploads(t.Context(), began.Add(time.Second)); n != 1 || err != nil || len(p.uploads) != 0 {
		t.Errorf("sweep: %d, %v, %d uploads left", n, err, len(p.uploads))
	}
}

// Proves against a real server that parts are joined under the condition, that
// nothing is left after it failed, and that a sweep of another prefix leaves an
// upload alone.
func TestPartsOnRealServer(t *testing.T) {
	srv := s3server.Start(t)
	o := options(srv)
	o.SinglePut, o.PartBytes = minPart, minPart
	s := open(t, o)
	data := bytes.Repeat([]byte("real"), 3<<20)
	for i, want := range []errcode.Code{0, errcode.Exists} {
		err := put(s, "big", data, objstore.PutOptions{CreateOnly: true})
		if i == 0 && err != nil || i == 1 && !errcode.Is(err, want) {
			t.Fatalf("put %d: %v", i, err)
		}
	}
	soon := time.Now().Add(time.Hour)
	if n, err := s.SweepUploads(t.Context(), soon); n != 0 || err != nil {
		t.Errorf("uploads left after the puts: %d, %v", n, err)
	}
	other := open(t, options(srv))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	begun, err := s.client.CreateMultipartUpload(ctx, &sdk.CreateMultipartUploadInput{Bucket: &o.Bucket, Key: s.key("left")})
	if err != nil || begun.UploadId == nil {
		t.Fatal(err)
	}
	if n, err := other.SweepUploads(t.Context(), soon); n != 0 || err != nil {
		t.Errorf("the sweep of another prefix took %d, %v", n, err)
	}
	if n, err := s.SweepUploads(t.Context(), soon); n != 1 || err != nil {
		t.Errorf("sweep: %d, %v; want the one that was left", n, err)
	}
}

// Proves the size of parts: never more than S3 takes, never smaller than asked.
func TestPartBytes(t *testing.T) {
	s := &Store{opts: Options{PartBytes: 16 << 20}}
	for _, size := range []int64{1, 64 << 20, 160 << 30, 1 << 40, maxObject} {
		step := s.partBytes(size)
		if n := (size + step - 1) / step; n > maxParts || step < 16<<20 {
			t.Errorf("%d bytes: %d parts of %d", size, n, step)
		}
	}
}
