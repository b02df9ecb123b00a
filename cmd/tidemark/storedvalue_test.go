package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidemark-mq/tidemark/node/archive"
)

// B217: metadata in the bucket with a value that today's checks refuse is not
// just invalid: verify names the object and the field, and so does a restore,
// before it changes anything. B226, B227: a cut or damaged export is named.
func TestStoredValueThatIsRefused(t *testing.T) {
	t.Parallel()
	dir := lived(t)
	url := "file://" + dir + "/archive"
	exports, err := filepath.Glob(dir + "/archive/meta/*")
	if err != nil || len(exports) == 0 {
		t.Fatal(exports, err)
	}
	newest := exports[len(exports)-1]
	stored, err := os.ReadFile(newest)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := archive.Unpack(stored)
	if err != nil {
		t.Fatal(err)
	}
	swap := func(old, new string) []byte {
		if !strings.Contains(string(plain), old) {
			t.Fatalf("no %s in %s", old, plain)
		}
		packed, err := archive.Pack([]byte(strings.Replace(string(plain), old, new, 1)))
		if err != nil {
			t.Fatal(err)
		}
		return packed
	}
	for _, x := range []struct {
		name string
		body []byte
		says string
	}{
		{"a value that is not allowed", swap(`"compression":"zstd"`, `"compression":"lzma"`), "compression"},
		{"a newer version", swap(`"version":1`, `"version":99`), "99"},
		{"cut to nothing", nil, "export"},
		{"cut in the middle", stored[:len(stored)/2], "checksum"},
	} {
		if err := os.WriteFile(newest, x.body, 0o600); err != nil {
			t.Fatal(err)
		}
		r := command{}.run("bucket", "verify", url)
		if r.code != exitFailed || !strings.Contains(r.out, "export corrupt") || !strings.Contains(r.out, filepath.Base(newest)) || !strings.Contains(r.out, x.says) {
			t.Errorf("%s: verify exits %d: %s", x.name, r.code, r.out)
		}
		wrong{args: "restore --archive " + url + " --data-dir " + dir + "/restored --dry-run", code: exitFailed, says: []string{filepath.Base(newest), x.says}}.check(t, command{})
	}
}
