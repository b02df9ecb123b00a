package s3

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Proves that options that cannot be are refused with a message that names them.
func TestBadOptions(t *testing.T) {
	for says, change := range map[string]func(*Options){
		"bucket name":          func(o *Options) { o.Bucket = "Bucket" },
		"prefix":               func(o *Options) { o.Prefix = "/a" },
		"too long":             func(o *Options) { o.Prefix = strings.Repeat(strings.Repeat("x", 100)+"/", 3) + "x" },
		"rot13":                func(o *Options) { o.SSE = "rot13" },
		"KMS key":              func(o *Options) { o.SSEKMSKeyID = "k" },
		"checksum mode":        func(o *Options) { o.Checksums = "md5" },
		"go together":          func(o *Options) { o.SecretAccessKey = "" },
		"too small":            func(o *Options) { o.PartBytes = 1 },
		"5 GiB":                func(o *Options) { o.SinglePut = 6 << 30 },
		"endpoint \"ftp://x\"": func(o *Options) { o.Endpoint = "ftp://x" },
		"endpoint \"host\"":    func(o *Options) { o.Endpoint = "host" },
	} {
		o := optionsFor("http://127.0.0.1:1")
		change(&o)
		if _, err := Open(t.Context(), o); !errcode.Is(err, errcode.InvalidArgument) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v; want an error that says %q", err, says)
		}
	}
}

// Proves that encryption is asked for with every way of putting, that the bucket
// is in the path for an own endpoint, and that keys are under the prefix.
func TestRequestShape(t *testing.T) {
	p := newParts()
	var sse []string
	p.trip = func(_ http.ResponseWriter, r *http.Request) bool {
		if v := r.Header.Get("X-Amz-Server-Side-Encryption"); v != "" {
			sse = append(sse, r.Method+" "+v+" "+r.Header.Get("X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id"))
		}
		return false
	}
	f := newFake(t, p.answer)
	o := f.options()
	o.SSE, o.SSEKMSKeyID, o.SinglePut, o.PartBytes = "aws:kms", "key-1", minPart, minPart
	s := open(t, o)
	for key, size := range map[string]int{"small": 10, "big": minPart + 1} {
		if err := put(s, key, make([]byte, size), objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"PUT aws:kms key-1", "POST aws:kms key-1"} {
		if !strings.Contains(strings.Join(sse, "\n"), want) {
			t.Errorf("no request says %q: %q", want, sse)
		}
	}
	for _, r := range f.requests() {
		if !strings.Contains(r, " /bucket/root/") {
			t.Errorf("request %s is not under the prefix", r)
		}
	}
}
