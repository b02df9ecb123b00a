package s3

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/s3server"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

func put(s objstore.Store, key string, data []byte, opts objstore.PutOptions) error {
	return s.Put(context.Background(), key, bytes.NewReader(data), int64(len(data)), opts)
}

// everyCall runs each method of the store once and returns the errors by name.
func everyCall(ctx context.Context, s objstore.Store) map[string]error {
	errs := map[string]error{}
	errs["put"] = s.Put(ctx, "k", strings.NewReader("v"), 1, objstore.PutOptions{CreateOnly: true})
	_, _, errs["get"] = s.Get(ctx, "k")
	_, errs["range"] = s.GetRange(ctx, "k", make([]byte, 4), 0)
	_, errs["head"] = s.Head(ctx, "k")
	_, errs["list"] = s.List(ctx, "", "", 0)
	errs["delete"] = s.Delete(ctx, []string{"k"})
	return errs
}

// Proves what each spelling of a failure means, for every call, in one attempt
// each: nothing is retried below the decorators, and no SDK type comes out.
func TestErrorCodes(t *testing.T) {
	for _, c := range []struct {
		status int
		code   string
		want   errcode.Code
	}{
		{409, "ConditionalRequestConflict", errcode.Transient},
		{409, "OperationAborted", errcode.Transient},
		{503, "SlowDown", errcode.Throttled},
		{503, "", errcode.Throttled},
		{429, "", errcode.Throttled},
		{400, "ThrottlingException", errcode.Throttled},
		{503, "RequestLimitExceeded", errcode.Throttled},
		{429, "TooManyRequests", errcode.Throttled},
		{200, "RequestLimitExceeded", errcode.Throttled},
		{409, "", errcode.Transient},
		{500, "InternalError", errcode.Transient},
		{500, "", errcode.Transient},
		{502, "", errcode.Transient},
		{200, "InternalError", errcode.Transient}, // B191: only the body says it
		{200, "SlowDown", errcode.Throttled},
		{400, "RequestTimeout", errcode.Transient},
		{403, "AccessDenied", errcode.Denied},
		{403, "", errcode.Denied},
		{401, "", errcode.Denied},
		{404, "XAdminUserNotFound", errcode.Denied},
		{404, "NoSuchBucket", errcode.Internal},
		{404, "", errcode.Internal},
		{404, "NotFound", errcode.Internal},
		{301, "PermanentRedirect", errcode.Internal},
		{501, "NotImplemented", errcode.Internal},
		{400, "InvalidRequest", errcode.Internal},
	} {
		t.Run(fmt.Sprintf("%d%s", c.status, c.code), func(t *testing.T) {
			f := newFake(t, always(c.status, c.code))
			s := open(t, f.options())
			for op, err := range everyCall(t.Context(), s) {
				want := c.want
				switch {
				case c.status == 200 && (op == "get" || op == "range"):
					continue // the document is the object
				case op == "head" && c.status == 200:
					continue // no body
				case op == "head" && (c.code == "ThrottlingException" || c.code == "RequestTimeout"):
					want = errcode.Internal // a bare 400
				}
				if !errcode.Is(err, want) {
					t.Errorf("%s: %v (%v); want %v", op, err, errcode.Of(err), want)
				}
				var api smithy.APIError
				var resp *awshttp.ResponseError
				if errors.As(err, &api) || errors.As(err, &resp) {
					t.Errorf("%s: an SDK type comes out: %#v", op, err)
				}
			}
			// One request a call; a HEAD's 404 is asked again with a GET.
			want := 6
			if c.status == 404 {
				want = 7
			}
			if got := f.requests(); len(got) != want {
				t.Errorf("%d requests: %q; want %d", len(got), got, want)
			}
		})
	}
}

// Proves that "it does not exist" is said for a GET's 404 with NoSuchKey alone,
// and never for a put, a list or a delete.
func TestNotFoundIsSure(t *testing.T) {
	s := open(t, newFake(t, always(404, "NoSuchKey")).options())
	for op, err := range everyCall(t.Context(), s) {
		want := errcode.Internal
		if op == "get" || op == "range" || op == "head" {
			want = errcode.NotFound
		}
		if !errcode.Is(err, want) {
			t.Errorf("%s: %v; want %v", op, err, want)
		}
	}
	// A HEAD says 404 when the access key was withdrawn: the GET tells.
	f := newFake(t, always(404, "XAdminUserNotFound"))
	if _, err := open(t, f.options()).Head(t.Context(), "k"); !errcode.Is(err, errcode.Denied) {
		t.Errorf("head with a withdrawn key: %v", err)
	}
}

// Proves what a real server's answers to wrong credentials and a missing bucket
// mean; an unknown access key is a 404 there.
func TestRealRefusals(t *testing.T) {
	srv := s3server.Start(t)
	for name, c := range map[string]struct {
		change func(*Options)
		want   errcode.Code
	}{
		"secret": {func(o *Options) { o.SecretAccessKey = "wrong" }, errcode.Denied},
		"key":    {func(o *Options) { o.AccessKeyID = "nobody" }, errcode.Denied},
		"bucket": {func(o *Options) { o.Bucket = "no-such-bucket" }, errcode.Internal},
	} {
		o := options(srv)
		c.change(&o)
		for op, err := range everyCall(t.Context(), open(t, o)) {
			if !errcode.Is(err, c.want) {
				t.Errorf("wrong %s: %s: %v (%v); want %v", name, op, err, errcode.Of(err), c.want)
			}
		}
	}
}

// Proves that a store that is down is Transient, that opening does not need it,
// and that it works again when it is back, without a new store.
func TestDownAndBack(t *testing.T) {
	srv := s3server.Start(t)
	o := options(srv)
	srv.Kill()
	s := open(t, o)
	for op, err := range everyCall(t.Context(), s) {
		if !errcode.Is(err, errcode.Transient) {
			t.Errorf("down: %s: %v (%v)", op, err, errcode.Of(err))
		}
	}
	srv.Restart()
	if err := put(s, "k", []byte("v"), objstore.PutOptions{CreateOnly: true}); err != nil {
		t.Fatalf("back: %v", err)
	}
	srv.Kill()
	srv.Restart()
	if data, _, err := objstore.ReadAll(t.Context(), s, "k", 10); err != nil || string(data) != "v" {
		t.Fatalf("after another kill: %q, %v", data, err)
	}
}

// Proves that a store which refuses all checksum headers and trailers is usable
// in the mode for it: put, parts, read, delete. B178.
func TestNoChecksumHeaders(t *testing.T) {
	p := newParts()
	p.noChecksums = true
	f := newFake(t, p.answer)
	o := f.options()
	o.Checksums, o.SinglePut, o.PartBytes = ChecksumOff, minPart, minPart
	s := open(t, o)
	crc := uint32(0)
	for name, size := range map[string]int{"small": 100, "big": 12 << 20} {
		data := bytes.Repeat([]byte{7, 1, 9}, size/3+1)[:size]
		if err := put(s, name, data, objstore.PutOptions{CreateOnly: true}); err != nil {
			t.Fatalf("put %s: %v", name, err)
		}
		if got, _, err := objstore.ReadAll(t.Context(), s, name, 64<<20); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("get %s: %d bytes, %v", name, len(got), err)
		}
	}
	if err := s.Delete(t.Context(), []string{"small", "big"}); err != nil || len(p.objects) != 0 {
		t.Fatalf("delete: %v, %d objects left", err, len(p.objects))
	}
	// The sum is compared here all the same.
	if err := put(s, "sum", []byte("x"), objstore.PutOptions{CRC32C: &crc}); !errcode.Is(err, errcode.Corrupt) {
		t.Errorf("wrong sum: %v", err)
	}
}

// Proves that every put carries a sum that the store compares: a known SHA-256 as
// the signed payload hash, else the CRC as a header, else a hash made here; and
// that the body is read once when a sum is known.
func TestPayloadHash(t *testing.T) {
	var sha, crc string
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, _ []byte) {
		sha, crc = r.Header.Get("X-Amz-Content-Sha256"), r.Header.Get("X-Amz-Checksum-Crc32c")
	})
	s := open(t, f.options())
	data := bytes.Repeat([]byte("tide"), 1<<20)
	known := [32]byte{1, 2, 3}
	sum := uint32(0x12345678)
	own := sha256.Sum256(data)
	for _, c := range []struct {
		opts    objstore.PutOptions
		wantSHA string
		wantCRC string
		reads   int64
	}{
		{objstore.PutOptions{SHA256: &known}, hex.EncodeToString(known[:]), "", 1},
		{objstore.PutOptions{}, hex.EncodeToString(own[:]), "", 2},
		{objstore.PutOptions{CRC32C: crcOf(data)}, "UNSIGNED-PAYLOAD", "set", 1},
		{objstore.PutOptions{SHA256: &known, CRC32C: crcOf(data)}, hex.EncodeToString(known[:]), "set", 1},
	} {
		body := &counting{Reader: bytes.NewReader(data)}
		if err := s.Put(t.Context(), "k", body, int64(len(data)), c.opts); err != nil {
			t.Fatal(err)
		}
		if sha != c.wantSHA || (crc == "") != (c.wantCRC == "") {
			t.Errorf("%+v: payload hash %s, checksum header %q", c.opts, sha, crc)
		}
		if body.n != c.reads*int64(len(data)) {
			t.Errorf("%+v: read %d bytes of a body of %d", c.opts, body.n, len(data))
		}
	}
	if err := put(s, "k", data, objstore.PutOptions{CRC32C: &sum}); !errcode.Is(err, errcode.Corrupt) {
		t.Errorf("a body that differs from its CRC: %v", err)
	}
}

// counting counts the bytes read from it.
type counting struct {
	*bytes.Reader
	n int64
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	return n, err
}

func (c *counting) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, struct{ io.Reader }{c}) }

// Proves that an answer that is cut, and one of the right length with a flipped
// bit, never look like the object. B202.
func TestTornAnswers(t *testing.T) {
	p := newParts()
	s := open(t, newFake(t, p.answer).options())
	data := bytes.Repeat([]byte("0123456789"), 100_000)
	if err := put(s, "k", data, objstore.PutOptions{CRC32C: crcOf(data)}); err != nil {
		t.Fatal(err)
	}
	read := func() error {
		body, _, err := s.Get(t.Context(), "k")
		if err != nil {
			return err
		}
		defer body.Close()
		_, err = io.Copy(io.Discard, body)
		return err
	}
	p.cut = true
	if err := read(); !errcode.Is(err, errcode.Transient) {
		t.Errorf("cut: %v; want transient", err)
	}
	p.cut, p.flip = false, true
	if err := read(); !errcode.Is(err, errcode.Corrupt) {
		t.Errorf("flipped bit: %v; want corrupt", err)
	}
	p.flip = false
	if err := read(); err != nil {
		t.Errorf("sound: %v", err)
	}
}

// Proves that a range is taken only when the answer is that range: not the whole
// object, not other bytes, not fewer, not a body that was cut.
func TestRangeAnswers(t *testing.T) {
	var status int
	var header, body string
	s := open(t, newFake(t, func(w http.ResponseWriter, r *http.Request, _ []byte) {
		if header != "" {
			w.Header().Set("Content-Range", header)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}).options())
	for _, c := range []struct {
		name         string
		status       int
		header, body string
		off          int64
		want         string
		code         errcode.Code
	}{
		{"right", 206, "bytes 10-13/100", "abcd", 10, "abcd", 0},
		{"short at the end", 206, "bytes 10-11/12", "ab", 10, "ab", 0},
		{"whole object from 0", 200, "", "abcdefgh", 0, "abcd", 0},
		{"shorter whole object", 200, "", "ab", 0, "ab", 0},
		{"past the end", 416, "bytes */5", "", 10, "", 0},
		{"ranges ignored", 200, "", "abcdefgh", 4, "", errcode.Internal},
		{"other bytes", 206, "bytes 9-12/100", "abcd", 10, "", errcode.Transient},
		{"fewer inside", 206, "bytes 10-11/100", "ab", 10, "", errcode.Transient},
		{"more", 206, "bytes 10-14/100", "abcde", 10, "", errcode.Transient},
		{"nonsense", 206, "bytes ten-13/100", "abcd", 10, "", errcode.Transient},
		{"cut", 206, "bytes 10-13/100", "ab", 10, "", errcode.Transient},
	} {
		status, header, body = c.status, c.header, c.body
		p := make([]byte, 4)
		n, err := s.GetRange(t.Context(), "k", p, c.off)
		if c.want == "" && c.code != 0 || err != nil {
			if !errcode.Is(err, c.code) {
				t.Errorf("%s: %d, %v; want %v", c.name, n, err, c.code)
			}
		} else if string(p[:n]) != c.want {
			t.Errorf("%s: %q; want %q", c.name, p[:n], c.want)
		}
	}
}

// Proves that a list out of order, outside of what was asked for, or without an
// end is refused, and that foreign keys are passed over.
func TestListAnswers(t *testing.T) {
	var keys []string
	var more bool
	s := open(t, newFake(t, func(w http.ResponseWriter, r *http.Request, _ []byte) {
		fmt.Fprintf(w, "<ListBucketResult><IsTruncated>%v</IsTruncated>", more)
		after := r.URL.Query().Get("start-after")
		for _, k := range keys {
			if k > after || strings.HasPrefix(k, "!") {
				fmt.Fprintf(w, "<Contents><Key>%s</Key><Size>3</Size></Contents>", strings.TrimPrefix(k, "!"))
			}
		}
		fmt.Fprint(w, "</ListBucketResult>")
	}).options())
	for _, c := range []struct {
		name string
		keys []string
		more bool
		ok   bool
	}{
		{"in order", []string{"root/a", "root/b"}, false, true},
		{"foreign", []string{"root/", "root/A b", "root/b", "root/c~"}, false, true},
		{"nothing", nil, false, true},
		{"out of order", []string{"root/b", "root/a"}, false, false},
		{"twice", []string{"root/a", "root/a"}, false, false},
		{"outside", []string{"root/a", "rooted"}, false, false},
		{"more of nothing", nil, true, false},
	} {
		keys, more = c.keys, c.more
		page, err := s.List(t.Context(), "", "", 0)
		if (err == nil) != c.ok {
			t.Errorf("%s: %+v, %v", c.name, page, err)
		}
		for _, o := range page.Objects {
			if o.Key != "a" && o.Key != "b" {
				t.Errorf("%s: lists %q", c.name, o.Key)
			}
		}
	}
}

// Proves that the answer 200 of a delete is read: single keys fail in it.
func TestDeleteAnswers(t *testing.T) {
	s := open(t, newFake(t, func(w http.ResponseWriter, r *http.Request, _ []byte) {
		fmt.Fprint(w, "<DeleteResult><Error><Key>root/b</Key><Code>AccessDenied</Code><Message>locked</Message></Error></DeleteResult>")
	}).options())
	err := s.Delete(t.Context(), []string{"a", "b"})
	if !errcode.Is(err, errcode.Denied) || !strings.Contains(err.Error(), "delete b") {
		t.Errorf("delete: %v; want denied, naming b", err)
	}
}

// Proves that the time a store asks for is handed on, and bounded.
func TestRetryAfter(t *testing.T) {
	header := "7"
	s := open(t, newFake(t, func(w http.ResponseWriter, r *http.Request, _ []byte) {
		w.Header().Set("Retry-After", header)
		answerError(w, 503, "SlowDown", "")
	}).options())
	for h, want := range map[string]time.Duration{"7": 7 * time.Second, "100000": time.Minute, "-1": 0, "soon": 0} {
		header = h
		_, _, err := s.Get(t.Context(), "k")
		var e *errcode.Error
		if !errors.As(err, &e) || e.Wait != want {
			t.Errorf("Retry-After %q: %v", h, err)
		}
	}
}

// Proves that a put that returned does not touch the caller's body again, though
// the transport may still want to read it: the caller sends it anew. Run with the
// race detector it also proves that the two never meet.
func TestBodyIsGivenBack(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			// Answers before the body was sent, and goes on reading slowly.
			go func() {
				defer c.Close()
				_, _ = c.Read(make([]byte, 4096))
				_, _ = io.WriteString(c, "HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
				_, _ = io.Copy(io.Discard, c)
			}()
		}
	}()
	s := open(t, optionsFor("http://"+l.Addr().String()))
	const size = 2<<20 - 1 // from 2 MiB on the SDK waits for an answer before it sends
	body := &owned{Reader: bytes.NewReader(make([]byte, size))}
	for range 50 {
		body.lent = true
		err := s.Put(t.Context(), "k", body, size, objstore.PutOptions{SHA256: new([32]byte)})
		body.lent = false
		if err == nil {
			t.Fatal("the put succeeded")
		}
	}
}

// owned fails the race detector when it is read while it is not lent.
type owned struct {
	*bytes.Reader
	lent bool
}

func (o *owned) Read(p []byte) (int, error) {
	if !o.lent {
		panic("read after it was given back")
	}
	return o.Reader.Read(p)
}

func (o *owned) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, struct{ io.Reader }{o}) }
