package storeurl

import (
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// URL is a store's address, taken apart and checked.
type URL struct {
	Scheme string // "s3", "file" or "mem"
	Bucket string // of s3
	Prefix string // of s3, without slashes at its ends
	Dir    string // of file, absolute and clean
	Name   string // of mem

	Endpoint  string // of s3, the rest too
	Region    string
	PathStyle *bool
	Profile   string
	SSE       string
	KMSKeyID  string
	Checksums string
}

// maxURLBytes bounds what is parsed.
const maxURLBytes = 4096

// Parse reads a store's URL:
//
//	s3://bucket/prefix?endpoint=http://host:port&region=R&path_style=true
//	     &profile=P&sse=AES256|aws:kms&kms_key=ID&checksum=auto|when_required
//	file:///dir
//	mem://name
//
// What it does not know it refuses by name: a parameter that is misspelled must
// not be left out in silence. Credentials do not belong into a URL, which is
// logged and shown.
func Parse(raw string) (URL, error) {
	if len(raw) > maxURLBytes {
		return URL{}, bad("the URL has %d bytes; at most %d", len(raw), maxURLBytes)
	}
	u, err := url.Parse(raw)
	if err != nil {
		return URL{}, bad("%q is not a URL; use s3://bucket/prefix or file:///dir", redact(raw))
	}
	if u.User != nil {
		return URL{}, bad("the URL holds credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead")
	}
	if u.Fragment != "" || u.Opaque != "" {
		return URL{}, bad("%q is not a store's URL; use s3://bucket/prefix or file:///dir", redact(raw))
	}
	params, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return URL{}, bad("the parameters of %q cannot be read", redact(raw))
	}
	switch u.Scheme {
	case "s3":
		return parseS3(u, params)
	case "file":
		return parseFile(u, params)
	case "mem":
		return parseMem(u, params)
	case "gs":
		return URL{}, bad("gs:// is not in this build yet; use s3://bucket/prefix or file:///dir")
	case "":
		return URL{}, bad("%q has no scheme; use s3://bucket/prefix or file:///dir", redact(raw))
	default:
		return URL{}, bad("the scheme %q is unknown; use s3://bucket/prefix or file:///dir", u.Scheme)
	}
}

func parseS3(u *url.URL, params url.Values) (URL, error) {
	out := URL{Scheme: "s3", Bucket: u.Host, Prefix: strings.Trim(u.Path, "/")}
	if u.Host == "" {
		return URL{}, bad("the URL names no bucket; use s3://bucket/prefix")
	}
	if out.Prefix != "" && objstore.CheckKey(out.Prefix) != nil {
		return URL{}, bad("the prefix %q cannot begin a key; use letters, digits and /._-", out.Prefix)
	}
	err := each(params, func(name, value string) error {
		switch name {
		case "endpoint":
			out.Endpoint = value
		case "region":
			out.Region = value
		case "profile":
			out.Profile = value
		case "sse":
			out.SSE = value
		case "kms_key":
			out.KMSKeyID = value
		case "checksum":
			out.Checksums = value
		case "path_style":
			on, err := strconv.ParseBool(value)
			if err != nil {
				return bad("path_style=%s is neither true nor false", value)
			}
			out.PathStyle = &on
		default:
			return unknown("s3", name, "endpoint, region, path_style, profile, sse, kms_key, checksum")
		}
		return nil
	})
	return out, err
}

func parseFile(u *url.URL, params url.Values) (URL, error) {
	if u.Host != "" && u.Host != "localhost" {
		return URL{}, bad("file://%s names a host; a directory needs three slashes: file:///%s%s", u.Host, u.Host, u.Path)
	}
	if !filepath.IsAbs(u.Path) || strings.IndexByte(u.Path, 0) >= 0 {
		return URL{}, bad("the directory %q is not absolute; use file:///dir", u.Path)
	}
	dir := filepath.Clean(u.Path)
	if dir == "/" {
		return URL{}, bad("the root directory cannot be an archive; name a directory of its own")
	}
	return URL{Scheme: "file", Dir: dir}, each(params, func(name, _ string) error { return unknown("file", name, "none") })
}

func parseMem(u *url.URL, params url.Values) (URL, error) {
	if u.Host == "" || u.Path != "" && u.Path != "/" {
		return URL{}, bad("a memory store is mem://name")
	}
	return URL{Scheme: "mem", Name: u.Host}, each(params, func(name, _ string) error { return unknown("mem", name, "none") })
}

// each calls set for every parameter, which must have one value that is not
// empty.
func each(params url.Values, set func(name, value string) error) error {
	for name, values := range params {
		if len(values) != 1 || values[0] == "" {
			return bad("the parameter %q needs exactly one value", name)
		}
		if err := set(name, values[0]); err != nil {
			return err
		}
	}
	return nil
}

func unknown(scheme, name, known string) error {
	return bad("the parameter %q of %s:// is unknown; known: %s", name, scheme, known)
}

// redact cuts what may be a secret from a URL that could not be read: all before
// an '@' and all after a '?'.
func redact(raw string) string {
	if i := strings.LastIndexByte(raw, '@'); i >= 0 {
		raw = "..." + raw[i:]
	}
	raw, _, _ = strings.Cut(raw, "?")
	if len(raw) > 100 {
		raw = raw[:100] + "..."
	}
	return raw
}

func bad(format string, args ...any) error {
	return errcode.New(errcode.InvalidArgument, "archive URL: "+format, args...)
}
