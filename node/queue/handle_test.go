package queue

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

var sampleHandle = handle{partition: 3, offset: 1 << 40, attempt: 2, expiry: 1_785_000_000_000_001}

// The mac is HMAC-SHA256 as the standard library computes it, for keys below,
// at and above the block size.
func TestHandleMacIsHMAC(t *testing.T) {
	for _, n := range []int{0, 1, 32, 63, 64, 65, 200} {
		key := []byte(strings.Repeat("k", n))
		for _, group := range []string{"default", strings.Repeat("g", broker.MaxNameLen)} {
			var fields [handleFields]byte
			sampleHandle.put(&fields)
			m := hmac.New(sha256.New, key)
			m.Write(fields[:])
			m.Write(binary.BigEndian.AppendUint64(nil, 0xabc))
			m.Write([]byte(group))
			got := newSigner(key).mac(&fields, 0xabc, group)
			if string(got[:]) != string(m.Sum(nil)[:macLen]) {
				t.Errorf("key of %d bytes, group of %d: mac differs", n, len(group))
			}
		}
	}
}

// Handles given out by earlier releases stay valid across an upgrade.
func TestGoldenHandle(t *testing.T) {
	s := newSigner([]byte("golden key"))
	text := s.sign(sampleHandle, 0xabc, "default")
	want := golden(t, "handle-v1.hex", []byte(text))
	h, err := s.open(string(want), 0xabc, "default")
	if err != nil || h != sampleHandle {
		t.Fatal(h, err)
	}
	if p, err := HandlePartition(text); err != nil || p != 3 {
		t.Fatal(p, err)
	}
}

// Text that is no handle is the caller's mistake (400); a handle of another
// topic, group or key is a lease that does not exist here (410), which is what
// a consumer of a topic that was deleted and created anew is told (B114).
func TestHandleRefused(t *testing.T) {
	s := newSigner([]byte("key"))
	good := s.sign(sampleHandle, 1, "default")
	raw, err := base64.RawURLEncoding.DecodeString(good)
	if err != nil {
		t.Fatal(err)
	}
	edit := func(i int, v byte) string {
		b := append([]byte(nil), raw...)
		b[i] = v
		return base64.RawURLEncoding.EncodeToString(b)
	}
	for name, text := range map[string]string{
		"empty": "", "short": good[:54], "long": good + "A", "not base64": strings.Repeat("!", handleLen),
		"standard alphabet": strings.Repeat("+", handleLen), "line break": good[:54] + "\n",
		"loose last bits": good[:54] + "B", "version": edit(0, 2), "partition": edit(1, 1), "offset": edit(5, 0x80),
		"other system": "0:17:8123456789", "1 MiB": strings.Repeat("A", 1<<20),
	} {
		if name == "loose last bits" && good[54] == 'B' {
			continue
		}
		if _, err := s.open(text, 1, "default"); !errcode.Is(err, errcode.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for i := 5; i < len(raw); i++ { // any bit of what is signed, or of the mac
		if i == 5 || i == 13 {
			continue // would not be a handle: negative offset, refused above
		}
		_, err := s.open(edit(i, raw[i]^1), 1, "default")
		if !errcode.Is(err, errcode.Gone) && !errcode.Is(err, errcode.InvalidArgument) {
			t.Errorf("byte %d changed: %v", i, err)
		}
	}
	for name, err := range map[string]error{
		"topic": second(s.open(good, 2, "default")),
		"group": second(s.open(good, 1, "defaulu")),
		"key":   second(newSigner([]byte("kez")).open(good, 1, "default")),
	} {
		if !errcode.Is(err, errcode.Gone) {
			t.Errorf("other %s: %v", name, err)
		}
	}
}

func second(_ handle, err error) error { return err }

// No text opens but the one that was signed.
func FuzzHandle(f *testing.F) {
	s := newSigner([]byte("key"))
	f.Add(s.sign(sampleHandle, 1, "default"))
	f.Add("")
	f.Add(strings.Repeat("A", handleLen))
	f.Fuzz(func(t *testing.T, text string) {
		h, err := s.open(text, 1, "default")
		if err == nil && s.sign(h, 1, "default") != text {
			t.Fatalf("%q opens as %+v", text, h)
		}
		if _, perr := HandlePartition(text); err == nil && perr != nil {
			t.Fatalf("%q: %v", text, perr)
		}
	})
}
