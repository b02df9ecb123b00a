package storeurl

import (
	"strings"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// Proves what each part of a URL becomes.
func TestParse(t *testing.T) {
	yes := true
	for raw, want := range map[string]URL{
		"s3://bucket":                 {Scheme: "s3", Bucket: "bucket"},
		"s3://bucket/":                {Scheme: "s3", Bucket: "bucket"},
		"s3://bucket/a/b/":            {Scheme: "s3", Bucket: "bucket", Prefix: "a/b"},
		"s3://b-1/p?region=eu-west-1": {Scheme: "s3", Bucket: "b-1", Prefix: "p", Region: "eu-west-1"},
		"s3://bucket/p?endpoint=http://127.0.0.1:9000&path_style=true&profile=x&sse=aws:kms&kms_key=k&checksum=when_required": {
			Scheme: "s3", Bucket: "bucket", Prefix: "p", Endpoint: "http://127.0.0.1:9000", PathStyle: &yes,
			Profile: "x", SSE: "aws:kms", KMSKeyID: "k", Checksums: "when_required"},
		"file:///var/lib/archive":         {Scheme: "file", Dir: "/var/lib/archive"},
		"file:///var/../srv//a/":          {Scheme: "file", Dir: "/srv/a"},
		"file://localhost/srv/with%20gap": {Scheme: "file", Dir: "/srv/with gap"},
		"mem://x":                         {Scheme: "mem", Name: "x"},
	} {
		got, err := Parse(raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if (got.PathStyle == nil) != (want.PathStyle == nil) || got.PathStyle != nil && *got.PathStyle != *want.PathStyle {
			t.Errorf("%s: path style %v", raw, got.PathStyle)
		}
		got.PathStyle, want.PathStyle = nil, nil
		if got != want {
			t.Errorf("%s: got %+v, want %+v", raw, got, want)
		}
	}
}

// Proves that what cannot be meant is refused, and that the message names it.
func TestParseRefuses(t *testing.T) {
	for raw, says := range map[string]string{
		"":                                  "no scheme",
		"/var/lib/archive":                  "no scheme",
		"gs://bucket/p":                     "not in this build yet",
		"http://bucket":                     `"http"`,
		"S3X://bucket":                      `"s3x"`,
		"s3://":                             "no bucket",
		"s3:bucket":                         "not a store's URL",
		"s3://bucket/a//b":                  `"a//b"`,
		"s3://bucket/a b":                   `"a b"`,
		"s3://bucket/../b":                  `"../b"`,
		"s3://bucket#frag":                  "not a store's URL",
		"s3://bucket?regoin=x":              `"regoin"`,
		"s3://bucket?region":                `"region"`,
		"s3://bucket?region=a&region=b":     `"region"`,
		"s3://bucket?path_style=maybe":      "path_style=maybe",
		"s3://key:secret@bucket/p":          "credentials",
		"file://relative/dir":               "three slashes",
		"file://":                           "not absolute",
		"file:///":                          "root directory",
		"file:///d?x=1":                     `"x"`,
		"mem://":                            "mem://name",
		"mem://a/b":                         "mem://name",
		"mem://a?b=c":                       `"b"`,
		"s3://bucket/%zz":                   "not a URL",
		"s3://" + strings.Repeat("x", 5000): "5005 bytes",
	} {
		_, err := Parse(raw)
		if !errcode.Is(err, errcode.InvalidArgument) || !strings.Contains(err.Error(), says) {
			t.Errorf("%.60q: %v; want an error that says %s", raw, err, says)
		}
	}
}

// Proves that a secret in a URL is in no error message, however broken the URL.
func TestSecretsStayOut(t *testing.T) {
	for _, raw := range []string{
		"s3://id:hunter2@bucket/%zz", "s3://id:hunter2@bucket", "id:hunter2@bucket", "bogus://id:hunter2@b", "s3://id:hunter2@b c/", "//id:hunter2@x?y=hunter2", "s3://b/%zz?key=hunter2",
	} {
		if _, err := Parse(raw); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

// Proves that any text is either refused with a typed error or gives an address
// that is safe to use: a clean absolute directory, a prefix that can begin a key.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"s3://bucket/prefix?endpoint=http://h:1&region=r&path_style=true", "file:///dir/a", "mem://name", "gs://b", "s3://b/%2e%2e/x", "file:///a%00b", "s3://[::1]/x", "file://localhost/..",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := Parse(raw)
		if err != nil {
			if !errcode.Is(err, errcode.InvalidArgument) {
				t.Fatalf("%q: %v", raw, err)
			}
			return
		}
		switch u.Scheme {
		case "s3":
			if u.Bucket == "" || u.Prefix != "" && objstore.CheckKey(u.Prefix) != nil {
				t.Fatalf("%q: %+v", raw, u)
			}
		case "file":
			if len(u.Dir) < 2 || u.Dir[0] != '/' || strings.Contains(u.Dir+"/", "/../") || strings.Contains(u.Dir, "\x00") {
				t.Fatalf("%q: %+v", raw, u)
			}
		case "mem":
			if u.Name == "" {
				t.Fatalf("%q: %+v", raw, u)
			}
		default:
			t.Fatalf("%q: scheme %q", raw, u.Scheme)
		}
	})
}

// Proves that each scheme opens its backend, with endpoint, region and
// credentials from where they may come from, and that no store is asked.
func TestOpen(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
	t.Setenv("AWS_CONFIG_FILE", t.TempDir()+"/none")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", t.TempDir()+"/none")
	open := func(raw string, o Options) (objstore.Capabilities, error) {
		s, err := Open(t.Context(), raw, o)
		if err != nil {
			return objstore.Capabilities{}, err
		}
		defer s.Close()
		return s.Capabilities(), nil
	}
	want := func(raw string, o Options, kind, url string) {
		t.Helper()
		c, err := open(raw, o)
		if err != nil || c.Kind != kind || c.URL != url || strings.Contains(c.URL, "SECRET") {
			t.Errorf("%s: %+v, %v; want %s", raw, c, err, url)
		}
	}
	dir := t.TempDir()
	want("file://"+dir+"/x", Options{}, "file", "file://"+dir+"/x")
	want("mem://n", Options{Mem: mem.NewSpace(nil)}, "mem", "mem://n")
	want("s3://bucket/p?region=eu-west-1", Options{}, "s3", "s3://bucket/p?region=eu-west-1")
	want("s3://bucket/p?endpoint=http://127.0.0.1:1", Options{Endpoint: "http://127.0.0.1:2"}, "s3", "s3://bucket/p?endpoint=http%3A%2F%2F127.0.0.1%3A1&region=us-east-1")
	want("s3://bucket", Options{Endpoint: "http://127.0.0.1:2", Region: "r1"}, "s3", "s3://bucket?endpoint=http%3A%2F%2F127.0.0.1%3A2&region=r1")
	for raw, says := range map[string]string{
		"mem://n":                             "for tests",
		"s3://bucket/p":                       "no region",
		"s3://bucket?region=r&sse=rot13":      "rot13",
		"s3://bucket?region=r&checksum=never": "never",
		"s3://bucket?endpoint=host:9000":      "host:9000",
		"s3://b?region=r":                     "bucket name",
	} {
		if _, err := open(raw, Options{}); !errcode.Is(err, errcode.InvalidArgument) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v; want an error that says %s", raw, err, says)
		}
	}
	t.Setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:3")
	t.Setenv("AWS_REGION", "env-1")
	want("s3://bucket", Options{}, "s3", "s3://bucket?endpoint=http%3A%2F%2F127.0.0.1%3A3&region=env-1")
}
