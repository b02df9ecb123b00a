package objstore

import (
	"strings"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Bounds of a key. A backend's own prefix comes on top; S3 allows 1024 bytes
// in all, file systems 255 bytes for one component.
const (
	MaxKeyBytes       = 800
	MaxComponentBytes = 200
)

// PageSize is the most objects that one List returns, and what a limit of 0
// means.
const PageSize = 1000

// CheckKey returns InvalidArgument unless key may name an object: components
// of [A-Za-z0-9._-] separated by single slashes, none of them "." or "..",
// within [MaxKeyBytes] and [MaxComponentBytes]. Keys are derived from ids and
// never come from a client, so a bad one is a bug; it must not reach a file
// system or break a request's signature all the same.
func CheckKey(key string) error {
	if len(key) == 0 || len(key) > MaxKeyBytes {
		return errcode.New(errcode.InvalidArgument, "object key %.40q has %d bytes; use 1 to %d", key, len(key), MaxKeyBytes)
	}
	start := 0
	for i := 0; i <= len(key); i++ {
		if i < len(key) && key[i] != '/' {
			if !keyByte(key[i]) {
				return errcode.New(errcode.InvalidArgument, "object key %q has the byte %q; use letters, digits and /._-", key, key[i])
			}
			continue
		}
		part := key[start:i]
		if part == "" || part == "." || part == ".." || len(part) > MaxComponentBytes {
			return errcode.New(errcode.InvalidArgument, "object key %q has the component %q; use 1 to %d bytes, not . or ..", key, part, MaxComponentBytes)
		}
		start = i + 1
	}
	return nil
}

// CheckPrefix returns InvalidArgument unless prefix can begin a key. The empty
// prefix matches every key.
func CheckPrefix(prefix string) error {
	if len(prefix) > MaxKeyBytes {
		return errcode.New(errcode.InvalidArgument, "list prefix %.40q has %d bytes; use at most %d", prefix, len(prefix), MaxKeyBytes)
	}
	for i := 0; i < len(prefix); i++ {
		if prefix[i] != '/' && !keyByte(prefix[i]) {
			return errcode.New(errcode.InvalidArgument, "list prefix %q has the byte %q; use letters, digits and /._-", prefix, prefix[i])
		}
	}
	// What cannot begin a key must not walk out of a directory either.
	if strings.HasPrefix(prefix, "/") || strings.Contains(prefix, "//") || strings.Contains("/"+prefix, "/../") || strings.Contains("/"+prefix, "/./") {
		return errcode.New(errcode.InvalidArgument, "list prefix %q has an empty component, . or ..", prefix)
	}
	return nil
}

// CheckKeys checks every key of a Delete.
func CheckKeys(keys []string) error {
	for _, k := range keys {
		if err := CheckKey(k); err != nil {
			return err
		}
	}
	return nil
}

// PageLimit returns the number of objects that List's limit asks for.
func PageLimit(limit int) (int, error) {
	if limit < 0 {
		return 0, errcode.New(errcode.InvalidArgument, "list limit %d is negative; use 0 for the store's page size", limit)
	}
	if limit == 0 || limit > PageSize {
		return PageSize, nil
	}
	return limit, nil
}

func keyByte(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || c == '.' || c == '_' || c == '-'
}
