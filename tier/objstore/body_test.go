package objstore_test

import (
	"context"
	"errors"
	"hash/crc32"
	"io"
	"path"
	"strings"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// failing ends with an error of the transport.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// Proves how every end of a body is judged: only exactly the announced bytes end
// in io.EOF, and an error stays the error.
func TestExactBody(t *testing.T) {
	reset := errors.New("connection reset")
	coded := errcode.New(errcode.Corrupt, "checksum")
	for _, c := range []struct {
		name string
		body io.Reader
		code errcode.Code
		ok   bool
	}{
		{"exact", strings.NewReader("12345"), 0, true},
		{"short", strings.NewReader("1234"), errcode.Transient, false},
		{"empty", strings.NewReader(""), errcode.Transient, false},
		{"long", strings.NewReader("123456"), errcode.Transient, false},
		{"broken", io.MultiReader(strings.NewReader("123"), failing{reset}), errcode.Transient, false},
		{"broken at the end", io.MultiReader(strings.NewReader("12345"), failing{reset}), errcode.Transient, false},
		{"disowned", io.MultiReader(strings.NewReader("12345"), failing{coded}), errcode.Corrupt, false},
	} {
		b := objstore.ExactBody(t.Context(), io.NopCloser(c.body), "k", 5)
		got, err := io.ReadAll(b)
		if (err == nil) != c.ok || err != nil && !errcode.Is(err, c.code) || len(got) > 5 {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
		if _, again := b.Read(make([]byte, 1)); again == nil || err != nil && again != err {
			t.Errorf("%s: after the end: %v", c.name, again)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	b := objstore.ExactBody(ctx, io.NopCloser(strings.NewReader("12345")), "k", 5)
	cancel()
	if _, err := b.Read(make([]byte, 1)); !errcode.Is(err, errcode.Canceled) {
		t.Errorf("caller gone: %v", err)
	}
}

// Proves that an object larger than expected is refused before it is held. I13.
func TestReadAllIsBounded(t *testing.T) {
	s := mem.New("", nil)
	if err := put(s, "k", "123456"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := objstore.ReadAll(t.Context(), s, "k", 5); !errcode.Is(err, errcode.TooLarge) {
		t.Errorf("%v", err)
	}
	if data, info, err := objstore.ReadAll(t.Context(), s, "k", 6); err != nil || string(data) != "123456" || info.Size != 6 {
		t.Errorf("%q, %+v, %v", data, info, err)
	}
}

// Proves that the sum of an object is that of all its bytes, and of nothing else:
// one that is larger than expected is refused unread, one that is cut or longer
// than its store said is Transient.
func TestSum(t *testing.T) {
	s := mem.New("", nil)
	data := strings.Repeat("tidemark", 100<<10)
	if err := errors.Join(put(s, "k", data), put(s, "empty", "")); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"k": data, "empty": ""} {
		sum, info, err := objstore.Sum(t.Context(), s, key, int64(len(want)))
		if err != nil || sum != crc32.Checksum([]byte(want), crc32.MakeTable(crc32.Castagnoli)) || info.Size != int64(len(want)) {
			t.Errorf("%s: %08x, %+v, %v", key, sum, info, err)
		}
	}
	if _, _, err := objstore.Sum(t.Context(), s, "k", int64(len(data)-1)); !errcode.Is(err, errcode.TooLarge) {
		t.Errorf("too large: %v", err)
	}
	for _, off := range []int64{-1, 1} {
		if _, _, err := objstore.Sum(t.Context(), liar{s, off}, "k", 1<<20); !errcode.Is(err, errcode.Transient) {
			t.Errorf("a size that is %d off: %v", off, err)
		}
	}
}

// liar is a store whose sizes are off.
type liar struct {
	objstore.Store
	off int64
}

func (l liar) Get(ctx context.Context, key string) (io.ReadCloser, objstore.Info, error) {
	b, info, err := l.Store.Get(ctx, key)
	info.Size += l.off
	return b, info, err
}

// Proves that a key which is accepted stays under its root as a path, keeps its
// spelling when the path is cleaned, and fits the file systems' bounds; and that
// what is refused is refused with a typed error.
func FuzzCheckKey(f *testing.F) {
	for _, k := range []string{"a", "a/b", "wal/1/FENCE", "../a", "a//b", "/a", "a/", "a/./b", ".", "...", "~tmp/x", "a\x00"} {
		f.Add(k)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if err := objstore.CheckKey(key); err != nil {
			if !errcode.Is(err, errcode.InvalidArgument) {
				t.Fatalf("%q: %v", key, err)
			}
			return
		}
		if path.Clean(key) != key || path.IsAbs(key) || strings.HasPrefix(key, "../") || key == ".." || strings.ContainsAny(key, "~\\:\x00 %?#") {
			t.Fatalf("%q was accepted", key)
		}
		for _, part := range strings.Split(key, "/") {
			if len(part) == 0 || len(part) > 255 {
				t.Fatalf("%q was accepted", key)
			}
		}
		for i := range len(key) + 1 {
			if err := objstore.CheckPrefix(key[:i]); err != nil {
				t.Fatalf("prefix %q of a key is refused: %v", key[:i], err)
			}
		}
	})
}

// An object is read into the memory that is given, if that is enough, and is as long
// as it is, whatever stood there.
func TestReadIntoUsedMemory(t *testing.T) {
	st := mem.New("", nil)
	if err := st.Put(t.Context(), "k", strings.NewReader("value"), 5, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{0, 4, 5, 9} {
		used := []byte(strings.Repeat("x", size))
		got, _, err := objstore.ReadInto(t.Context(), st, "k", 10, used)
		if err != nil || string(got) != "value" || size >= 5 && &got[0] != &used[0] {
			t.Fatalf("into %d bytes: %q, %v", size, got, err)
		}
	}
	if _, _, err := objstore.ReadInto(t.Context(), st, "k", 4, make([]byte, 9)); !errcode.Is(err, errcode.TooLarge) {
		t.Fatal(err)
	}
}
