package api

import (
	"errors"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// maxParams is the most parameters that a route has.
const maxParams = 12

// query is the parsed query of a request: values by the position of their name
// in the route's list.
type query struct {
	names  []string
	values [maxParams]string
	has    uint32
}

// parse reads raw strictly: what a gateway in front might read differently is
// an error, never an absent parameter. Unknown names, names of a later build,
// duplicates, semicolons and malformed escapes are refused. Empty pairs ("&&")
// mean nothing to anybody and pass.
func (q *query) parse(raw string, names, later []string) error {
	q.names, q.has = names, 0
	for raw != "" {
		var pair string
		pair, raw, _ = strings.Cut(raw, "&")
		if pair == "" {
			continue
		}
		if strings.IndexByte(pair, ';') >= 0 {
			return errcode.New(errcode.InvalidArgument, "the query has a raw semicolon in %.100q; write %%3B for one in a value and & between parameters", pair)
		}
		rawName, rawValue, _ := strings.Cut(pair, "=")
		name, err := url.QueryUnescape(rawName)
		if err != nil {
			return errcode.New(errcode.InvalidArgument, "the query is malformed at %.100q: %v", pair, err)
		}
		value, err := url.QueryUnescape(rawValue)
		if err != nil {
			return errcode.New(errcode.InvalidArgument, "the query is malformed at %.100q: %v", pair, err)
		}
		at := slices.Index(names, name)
		switch {
		case at < 0 && slices.Contains(later, name):
			return laterf(errcode.InvalidArgument, "parameter", name)
		case at < 0:
			return errcode.New(errcode.InvalidArgument, "unknown parameter %.100q; this route knows %s", name, listOf(names))
		case q.has&(1<<at) != 0:
			return errcode.New(errcode.InvalidArgument, "parameter %q is given twice", name)
		}
		q.has |= 1 << at
		q.values[at] = value
	}
	return nil
}

func listOf(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// get returns the value of a parameter of the route, and whether it is there.
func (q *query) get(name string) (string, bool) {
	at := slices.Index(q.names, name)
	if at < 0 || q.has&(1<<at) == 0 {
		return "", false
	}
	return q.values[at], true
}

// flag reads a parameter that is true when it is named without a value.
func (q *query) flag(name string) (bool, error) {
	text, ok := q.get(name)
	switch {
	case !ok || text == "false" || text == "0":
		return false, nil
	case text == "" || text == "true" || text == "1":
		return true, nil
	default:
		return false, errcode.New(errcode.InvalidArgument, "parameter %s is %.40q; say true or false", name, text)
	}
}

// whole reads a whole number from least to most.
func (q *query) whole(name string, def, least, most int64) (int64, error) {
	text, ok := q.get(name)
	if !ok {
		return def, nil
	}
	n, err := parseWhole(text)
	if err != nil || n < least || n > most {
		return 0, errcode.New(errcode.InvalidArgument, "parameter %s is %.40q; it is a whole number from %d to %d", name, text, least, most)
	}
	return n, nil
}

// duration reads a length of time such as 500ms, 10s or 1m30s.
func (q *query) duration(name string, def time.Duration) (time.Duration, error) {
	text, ok := q.get(name)
	if !ok {
		return def, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, errcode.New(errcode.InvalidArgument, "parameter %s is %.40q; it is a length of time such as 500ms, 10s or 1m30s", name, text)
	}
	return d, nil
}

// instant reads a point in time, RFC 3339 or milliseconds since the Unix
// epoch, as milliseconds.
func (q *query) instant(name string) (ms int64, ok bool, err error) {
	text, ok := q.get(name)
	if !ok {
		return 0, false, nil
	}
	if n, err := parseWhole(text); err == nil {
		return n, true, nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return 0, false, errcode.New(errcode.InvalidArgument, "parameter %s is %.60q; it is a time such as 2026-11-29T08:30:00Z (a plus sign is written %%2B) or milliseconds since 1970", name, text)
	}
	// A record at a fraction of a millisecond is at that millisecond: rounding
	// up keeps "at or after".
	return t.Add(time.Millisecond - 1).UnixMilli(), true, nil
}

// group accepts the one group of this build.
func (q *query) group() error {
	name, ok := q.get("group")
	if !ok || name == broker.DefaultGroup {
		return nil
	}
	if err := broker.ValidateName("group", name); err != nil {
		return err
	}
	return errcode.New(errcode.InvalidArgument, "named groups are not in this build: group %q; leave the parameter out or say %s", name, broker.DefaultGroup)
}

var errNotWhole = errors.New("not a whole number from 0 on")

// parseWhole reads decimal digits and nothing else: no sign, no exponent, no
// spaces. The largest value is that of an int64.
func parseWhole(text string) (int64, error) {
	if text == "" {
		return 0, errNotWhole
	}
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return 0, errNotWhole
		}
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > math.MaxInt64 {
		return 0, errNotWhole
	}
	return int64(n), nil
}

func parsePartition(text string, count uint32) (int32, error) {
	n, err := parseWhole(text)
	if err != nil {
		return 0, errcode.New(errcode.InvalidArgument, "partition %.40q is not a whole number from 0 on", text)
	}
	return checkPartition(n, count)
}

func checkPartition(n int64, count uint32) (int32, error) {
	if n < 0 || n >= int64(count) {
		return 0, errcode.New(errcode.InvalidArgument, "there is no partition %d; the topic's partitions are 0 to %d", n, int64(count)-1)
	}
	return int32(n), nil
}

// unescapeSegment undoes the percent-encoding of one path segment, once.
func unescapeSegment(segment string) (string, error) {
	text, err := url.PathUnescape(segment)
	if err != nil {
		return "", errcode.New(errcode.InvalidArgument, "the path is malformed at %.100q: %v", segment, err)
	}
	return text, nil
}
