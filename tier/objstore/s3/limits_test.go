package s3

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Proves that a store which takes at most 5 MiB in one request gets bodies of
// every size around it, and one of 100 MiB, whole, in both checksum modes and
// without a checksum header in the one that promises none. B178 B179 B187.
func TestSinglePutLimit(t *testing.T) {
	for _, mode := range []string{ChecksumAuto, ChecksumOff} {
		for _, size := range []int{minPart - 1, minPart, minPart + 1, 100 << 20} {
			t.Run(fmt.Sprintf("%s %d", mode, size), func(t *testing.T) {
				p := newParts()
				p.noChecksums = mode == ChecksumOff
				p.trip = func(w http.ResponseWriter, r *http.Request) bool {
					tooLarge := r.Method == http.MethodPut && r.ContentLength > minPart
					if tooLarge {
						answerError(w, http.StatusRequestEntityTooLarge, "EntityTooLarge", "at most 5 MiB")
					}
					return tooLarge
				}
				o := newFake(t, p.answer).options()
				o.Checksums, o.SinglePut, o.PartBytes = mode, minPart, minPart
				s := open(t, o)
				data := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
				sum := sha256.Sum256(data)
				if err := put(s, "big", data, objstore.PutOptions{CreateOnly: true, SHA256: &sum, CRC32C: crcOf(data)}); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(p.objects["root/big"], data) || len(p.uploads) != 0 {
					t.Fatalf("%d of %d bytes are there, %d uploads are left", len(p.objects["root/big"]), size, len(p.uploads))
				}
			})
		}
	}
	// Told a limit that is too high, it fails with the store's word and does not retry.
	p := newParts()
	p.trip = func(w http.ResponseWriter, _ *http.Request) bool {
		answerError(w, http.StatusRequestEntityTooLarge, "EntityTooLarge", "at most 5 MiB")
		return true
	}
	if err := put(open(t, newFake(t, p.answer).options()), "k", make([]byte, 10), objstore.PutOptions{}); !errcode.Is(err, errcode.InvalidArgument) {
		t.Errorf("too large: %v", err)
	}
}

// Proves that many small puts at a time take memory for their bytes and not for
// some buffer's default size each, server and client together. B186.
func TestSmallPutsStaySmall(t *testing.T) {
	const puts, size, most = 50, 64 << 10, 64 << 20
	p := newParts()
	s := open(t, newFake(t, p.answer).options())
	data := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var g errgroup.Group
	for i := range puts {
		g.Go(func() error { return put(s, fmt.Sprint("small-", i), data, objstore.PutOptions{CreateOnly: true}) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > most {
		t.Errorf("%d puts of %d bytes allocated %d bytes, want at most %d", puts, size, got, most)
	}
	if len(p.objects) != puts {
		t.Errorf("%d objects, want %d", len(p.objects), puts)
	}
}

// Proves that an upload which a rule of the bucket ends in the middle begins
// again, with an upload of its own, and leaves no part behind. B194.
func TestUploadThatIsSweptBeginsAgain(t *testing.T) {
	p := newParts()
	swept := 0
	p.trip = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("partNumber") == "2" && swept < 2 {
			swept++
			delete(p.uploads, r.URL.Query().Get("uploadId"))
		}
		return false // the store itself answers NoSuchUpload
	}
	s := objstore.Stack(partStore(t, p), objstore.StackOptions{Retry: objstore.RetryPolicy{Base: time.Millisecond}})
	data := bytes.Repeat([]byte("again"), 3<<20)
	if err := put(s, "big", data, objstore.PutOptions{CreateOnly: true}); err != nil {
		t.Fatal(err)
	}
	if swept != 2 || !bytes.Equal(p.objects["root/big"], data) || len(p.uploads) != 0 {
		t.Fatalf("swept %d times, %d bytes are there, %d uploads are left", swept, len(p.objects["root/big"]), len(p.uploads))
	}
}

// Proves that a join which answers 200 with an error, and leaves no object, is no
// success, and that the next try makes one. B191 B192.
func TestJoinThatLies(t *testing.T) {
	p := newParts()
	joins := 0
	p.trip = func(w http.ResponseWriter, r *http.Request) bool {
		join := r.Method == http.MethodPost && r.URL.Query().Has("uploadId")
		if join {
			joins++
		}
		if join && joins == 1 {
			answerError(w, http.StatusOK, "InternalError", "as the test said")
		}
		return join && joins == 1
	}
	s := objstore.Stack(partStore(t, p), objstore.StackOptions{Retry: objstore.RetryPolicy{Base: time.Millisecond}})
	data := bytes.Repeat([]byte("joined"), 1<<20)
	if err := put(s, "big", data, objstore.PutOptions{CreateOnly: true}); err != nil {
		t.Fatal(err)
	}
	if joins != 2 || !bytes.Equal(p.objects["root/big"], data) || len(p.uploads) != 0 {
		t.Fatalf("%d joins, %d bytes are there, %d uploads are left", joins, len(p.objects["root/big"]), len(p.uploads))
	}
}

// Proves that a connection which is reset, before an answer and in the middle of
// one, may pass, for every call.
func TestConnectionReset(t *testing.T) {
	for _, words := range []string{"", "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n<ListBu"} {
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
				go func() {
					_, _ = c.Read(make([]byte, 64<<10))
					_, _ = c.Write([]byte(words))
					_ = c.(*net.TCPConn).SetLinger(0) // a close is a reset then
					_ = c.Close()
				}()
			}
		}()
		s := open(t, optionsFor("http://"+l.Addr().String()))
		for op, err := range everyCall(t.Context(), s) {
			if words != "" && (op == "put" || op == "get" || op == "range" || op == "head") {
				continue // they have what they need by then, or say so at the body's end
			}
			if !errcode.Is(err, errcode.Transient) {
				t.Errorf("%q: %s: %v (%v)", strings.SplitN(words, "\r", 2)[0], op, err, errcode.Of(err))
			}
		}
	}
}

// Proves that nothing but put and delete needs a checksum header: lists, heads
// and reads of a store that refuses them work as they are. B178.
func TestReadsWithoutChecksumHeaders(t *testing.T) {
	o := newFake(t, func(w http.ResponseWriter, r *http.Request, _ []byte) {
		switch {
		case refusesChecksums(w, r):
		case r.URL.Query().Get("list-type") == "2":
			fmt.Fprint(w, "<ListBucketResult><Contents><Key>root/k</Key><Size>4</Size></Contents></ListBucketResult>")
		case r.Header.Get("Range") != "":
			w.Header().Set("Content-Range", "bytes 1-2/4")
			w.WriteHeader(http.StatusPartialContent)
			fmt.Fprint(w, "bc")
		default:
			w.Header().Set("Content-Length", "4")
			if r.Method == http.MethodGet {
				fmt.Fprint(w, "abcd")
			}
		}
	}).options()
	o.Checksums = ChecksumOff
	s := open(t, o)
	if page, err := s.List(t.Context(), "", "", 0); err != nil || len(page.Objects) != 1 {
		t.Errorf("list: %+v %v", page, err)
	}
	if info, err := s.Head(t.Context(), "k"); err != nil || info.Size != 4 {
		t.Errorf("head: %+v %v", info, err)
	}
	if data, _, err := objstore.ReadAll(t.Context(), s, "k", 10); err != nil || string(data) != "abcd" {
		t.Errorf("get: %q %v", data, err)
	}
	var two [2]byte
	if n, err := s.GetRange(t.Context(), "k", two[:], 1); err != nil || string(two[:n]) != "bc" {
		t.Errorf("range: %q %v", two[:n], err)
	}
}
