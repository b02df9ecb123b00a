package api

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

func gzipped(parts ...string) string {
	var out bytes.Buffer
	for _, p := range parts {
		w := gzip.NewWriter(&out)
		_, _ = io.WriteString(w, p)
		_ = w.Close()
	}
	return out.String()
}

// zstdFrame is one frame that declares its size.
func zstdFrame(text string) string {
	w, _ := zstd.NewWriter(nil)
	return string(w.EncodeAll([]byte(text), nil))
}

// zstdStream is one frame that does not.
func zstdStream(text string) string {
	var out bytes.Buffer
	w, _ := zstd.NewWriter(&out)
	for len(text) > 0 {
		n := min(len(text), 1<<20)
		_, _ = io.WriteString(w, text[:n])
		_ = w.Flush()
		text = text[n:]
	}
	_ = w.Close()
	return out.String()
}

// encoded posts an encoded batch to partition 0 of orders.
func (s *site) encoded(kind, encoding, body string, more ...string) answer {
	s.t.Helper()
	return s.do("POST", "/v1/topics/orders/produce/batch?partition=0", body, append([]string{"Content-Type: " + kind, "Content-Encoding: " + encoding}, more...)...)
}

// encodings are the encoded forms of a text, by name.
func encodings(text string) map[string][2]string {
	return map[string][2]string{
		"gzip":              {"gzip", gzipped(text)},
		"gzip, two members": {"GZIP", gzipped(text[:len(text)/2], text[len(text)/2:])},
		"zstd":              {"zstd", zstdFrame(text)},
		"zstd, streamed":    {" zstd ", zstdStream(text)},
		"zstd, two frames":  {"zstd", zstdStream(text[:len(text)/3]) + zstdFrame(text[len(text)/3:])},
		"identity":          {"identity", text},
	}
}

// Batches of every kind are taken in gzip and zstd, however their frames are laid
// out, and are stored as if they had come plain.
func TestEncodedBatches(t *testing.T) {
	long := strings.Repeat("long ", 60_000) // more than the first buffers
	bodies := map[string]string{
		mediaJSON:   `{"messages":[{"payload":"a"},{"payload":"` + long + `"}]}`,
		mediaNDJSON: "1\n" + `"` + long + `"` + "\n",
		mediaFrames: frame("-", "a") + frame("k", long),
	}
	for kind, body := range bodies {
		s := start(t)
		for name, e := range encodings(body) {
			before := len(s.values())
			s.want(s.encoded(kind, e[0], e[1]), 202, "")
			got := s.values()[before:]
			if len(got) != 2 || !strings.Contains(got[1], long) {
				t.Errorf("%s, %s: %d records", kind, name, len(got))
			}
		}
	}
}

// B28: a small body that decodes to 200 MB is refused at the cap, in every encoding, with
// memory that does not follow the bomb, and the budget of bodies is given back.
func TestB28Bombs(t *testing.T) {
	s := start(t)
	zeros := strings.Repeat("\x00", 200<<20)
	bombs := map[string][2]string{
		"gzip": {"gzip", gzipped(zeros)}, "zstd": {"zstd", zstdFrame(zeros)}, "zstd, streamed": {"zstd", zstdStream(zeros)},
		"gzip of many members": {"gzip", strings.Repeat(gzipped(zeros[:1<<20]), 200)},
	}
	runtime.GC()
	var before, after runtime.MemStats
	for name, bomb := range bombs {
		if len(bomb[1]) > 400<<10 {
			t.Fatalf("%s has %d bytes", name, len(bomb[1]))
		}
		s.want(s.encoded(mediaNDJSON, bomb[0], bomb[1]), 413, "too_large") // fills the pools
		runtime.ReadMemStats(&before)
		const times = 4
		for range times {
			a := s.want(s.encoded(mediaNDJSON, bomb[0], bomb[1]), 413, "too_large")
			if !strings.Contains(a.body, `"limit":16777216`) {
				t.Errorf("%s: %s", name, a.body)
			}
		}
		runtime.ReadMemStats(&after)
		// The buffers on the way to the cap, 4 KiB to 16 MiB, are 22 MiB together; the
		// zstd decoder may go a block beyond each of them, in a larger copy.
		if n := (after.TotalAlloc - before.TotalAlloc) / times; n > 72<<20 {
			t.Errorf("%s: %d bytes are allocated for each", name, n)
		}
	}
	if n := s.s.largeBodies.Load(); n != 0 || s.f.produces != 0 {
		t.Errorf("%d bytes are still counted, %d produces", n, s.f.produces)
	}
}

// B28's neighbours: the cap holds to the byte, on what arrives and on what it
// decodes to, and both count in the budget of bodies in flight.
func TestEncodedBounds(t *testing.T) {
	s := start(t, limits(func(l *Limits) { l.BatchBytes = 300 << 10 }))
	for name, encode := range map[string]func(string) string{"gzip": func(b string) string { return gzipped(b) }, "zstd": zstdFrame} {
		fits := frame("-", strings.Repeat("x", 300<<10-8))
		s.want(s.encoded(mediaFrames, name, encode(fits[:4]+"\x00\x04\xaf\xf7"+fits[8:len(fits)-1])), 202, "") // one byte below
		s.want(s.encoded(mediaFrames, name, encode(fits)), 202, "")
		s.want(s.encoded(mediaFrames, name, encode(fits+"x")), 413, "too_large")
	}
	s.want(s.encoded(mediaFrames, "gzip", gzipped(frame("-", "x"))+strings.Repeat("\x00", 300<<10)), 413, "too_large")

	s = start(t, limits(func(l *Limits) { l.LargeBody, l.LargeBodyBytes = 64<<10, 1<<20 }))
	for name, encode := range map[string]func(string) string{"gzip": func(b string) string { return gzipped(b) }, "zstd": zstdFrame, "zstd, streamed": zstdStream} {
		encoding, _, _ := strings.Cut(name, ",")
		a := s.want(s.encoded(mediaFrames, encoding, encode(frame("-", strings.Repeat("x", 2<<20)))), 503, "overloaded")
		if a.Header.Get("Retry-After") != "1" {
			t.Errorf("%s: no Retry-After", name)
		}
		s.want(s.encoded(mediaFrames, encoding, encode(frame("-", strings.Repeat("x", 200<<10)))), 202, "")
		if n := s.s.largeBodies.Load(); n != 0 {
			t.Errorf("%s: %d bytes are still counted", name, n)
		}
	}
	// What arrived stays beside what it decodes to, so it counts too: plain, the
	// same bytes fit.
	noise := make([]byte, 900<<10)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	body := frame("-", string(noise))
	for name, e := range encodings(body) {
		// Room comes in steps: 1 MiB is the one that holds the decoded body.
		s = start(t, limits(func(l *Limits) { l.LargeBody, l.LargeBodyBytes = 64<<10, 1<<20+int64(len(e[1]))-1 }))
		if name == "identity" {
			s.want(s.encoded(mediaFrames, e[0], e[1]), 202, "")
			continue
		}
		s.want(s.encoded(mediaFrames, e[0], e[1]), 503, "overloaded")
	}
}

// Broken encodings are 400 and store nothing: cut off, damaged, followed by
// something, or lying about their size, which sizes no memory.
func TestB28BrokenEncodings(t *testing.T) {
	s := start(t)
	body := frame("-", strings.Repeat("text that shrinks a little, ", 2000))
	flip := func(b string, at int) string { return b[:at] + string(b[at]^0x40) + b[at+1:] }
	bad := 0
	for name, e := range encodings(body) {
		if e[0] == "identity" {
			continue
		}
		for cut := range len(e[1]) {
			if cut > 40 && cut < len(e[1])-40 && cut%17 != 0 {
				continue
			}
			a := s.encoded(mediaFrames, e[0], e[1][:cut])
			if a.StatusCode != 400 {
				// Between two members or frames a body is whole, and shorter.
				if !strings.Contains(name, "two") {
					t.Errorf("%s cut at %d: %d %s", name, cut, a.StatusCode, a.body)
				}
			} else {
				bad++
			}
		}
		for _, tail := range []string{"x", "\x00", "trailing", gzipped("x")[:9], zstdFrame("x")[:3]} {
			s.want(s.encoded(mediaFrames, e[0], e[1]+tail), 400, "invalid_argument")
		}
		s.want(s.encoded(mediaFrames, e[0], flip(e[1], 0)), 400, "invalid_argument")
		s.want(s.encoded(mediaFrames, e[0], body), 400, "invalid_argument")
		s.want(s.encoded(mediaFrames, e[0], ""), 400, "invalid_argument")
	}
	g := gzipped(body)
	s.want(s.encoded(mediaFrames, "gzip", flip(g, len(g)-6)), 400, "invalid_argument") // its checksum
	z := zstdFrame(body)
	s.want(s.encoded(mediaFrames, "zstd", flip(z, len(z)-2)), 400, "invalid_argument")
	if bad < 200 || s.f.count("orders") > 0 && !onlyWholeFrames(s) {
		t.Errorf("%d refusals; %d records are stored", bad, s.f.count("orders"))
	}
	// A frame that declares 15 MiB in 17 bytes, and one in a second frame.
	lie := string([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0xf0, 0, 0, 0, 0, 0, 9, 0, 0, 'x'})
	var before, after runtime.MemStats
	for _, body := range []string{lie, zstdFrame("x") + lie} {
		s.want(s.encoded(mediaFrames, "zstd", body), 400, "invalid_argument")
		runtime.ReadMemStats(&before)
		s.want(s.encoded(mediaFrames, "zstd", body), 400, "invalid_argument")
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20 {
			t.Errorf("%d bytes are allocated for a declared size", n)
		}
	}
}

// onlyWholeFrames says that what was stored decodes as it was sent.
func onlyWholeFrames(s *site) bool {
	for _, v := range s.values() {
		if !strings.HasPrefix(v, "text that shrinks") {
			return false
		}
	}
	return true
}

// What is not accepted is 415 and says what is: other encodings, several, and any
// on a body that is taken byte for byte.
func TestRefusedEncodings(t *testing.T) {
	s := start(t)
	for _, encoding := range []string{"br", "deflate", "compress", "gzip, zstd", "gzip,gzip", "identity, gzip", "gzip;q=1", "x"} {
		a := s.want(s.encoded(mediaNDJSON, encoding, gzipped("1")), 415, "unsupported_type")
		if a.Header.Get("Accept-Encoding") != "gzip, zstd" {
			t.Errorf("%s: Accept-Encoding %q", encoding, a.Header.Get("Accept-Encoding"))
		}
	}
	a := s.want(s.encoded(mediaNDJSON, "gzip", gzipped("1"), "Content-Encoding: zstd"), 415, "unsupported_type")
	if !strings.Contains(a.body, "several encodings") {
		t.Error(a.body)
	}
	for _, path := range []string{"/v1/topics/orders/produce", "/v1/topics/orders/ack", "/v1/topics", "/v1/topics/orders/partitions/0/trim"} {
		a := s.want(s.post(path, gzipped("x"), "Content-Encoding: gzip"), 415, "unsupported_type")
		if !strings.Contains(a.body, "is for batches") {
			t.Errorf("%s: %s", path, a.body)
		}
	}
	s.want(s.post("/v1/topics/orders/produce", "x", "Content-Encoding: identity"), 202, "")
	if n := s.f.count("orders"); n != 1 {
		t.Error(fmt.Sprint(n, " records are stored"))
	}
}
