package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/tier/objstore/storeurl"
)

// config is what `serve` runs with.
type config struct {
	Dev               bool
	DataDir           string
	HTTPAddr          string
	RaftAddr          string
	MetricsAddr       string // "" = none
	PprofAddr         string // "" = none
	NodeID            string
	Archive           string // "" = none
	AdminPasswordFile string
	TLSCertFile       string // "" = plain HTTP
	TLSKeyFile        string
	TLSMinVersion     uint16 // of package crypto/tls
	SegmentBytes      int64
	SealAge           time.Duration
	SealMinBytes      int64
	WALInterval       time.Duration
	WALMaxBytes       int64
	StateInterval     time.Duration
	FlushBytes        int64
	MemoryBudget      int64 // 0 = by the machine's memory
	CacheBytes        int64
	DiskReserve       int64 // 0 = by the disk's size
	GarbageGrace      time.Duration
	GarbageInterval   time.Duration
	ScrubInterval     time.Duration // 0 = only what is asked for
	PITRWindow        time.Duration
	OrphanInterval    time.Duration
	MergeInterval     time.Duration // 0 = small segments are not merged
	MergeMinSegments  int64
	RetentionInterval time.Duration
	ShutdownGrace     time.Duration
	LogFormat         string
	LogLevel          slog.Level
}

// setting is one line of the table that flags, variables, keys of the file,
// help and documentation come from.
type setting struct {
	name  string // of the flag; the key has underscores, the variable TIDEMARK_ before it
	kind  string // shown in help
	def   string // as text; "" = none
	dev   string // default with --dev where it differs
	usage string
	// reload says that SIGHUP takes a new value over; the others need a restart.
	reload bool
	parse  func(c *config, text string) error
}

func (s *setting) flag() string { return "--" + s.name }

func (s *setting) key() string { return strings.ReplaceAll(s.name, "-", "_") }

func (s *setting) variable() string { return "TIDEMARK_" + strings.ToUpper(s.key()) }

// automatic is the value of a size that the node chooses itself.
const automatic = "auto"

// settings is the table, in the order of help.
var settings = []setting{
	{name: "dev", kind: "bool", def: "false", usage: "for trying out: loopback, no authentication, data and archive in the working directory",
		parse: boolean(func(c *config) *bool { return &c.Dev })},
	{name: "data-dir", kind: "dir", dev: "./tidemark-data", usage: "directory of everything that the node keeps",
		parse: plain(func(c *config) *string { return &c.DataDir })},
	{name: "archive", kind: "url", dev: "file://./tidemark-archive", usage: "object store of the cluster: s3://bucket/prefix?endpoint=..&region=.. or file:///dir; none = no archive",
		parse: parseArchive},
	{name: "node-id", kind: "name", def: "node-1", usage: "name of the node, fixed for the life of its data directory",
		parse: parseNodeID},
	{name: "http-addr", kind: "host:port", def: "0.0.0.0:7942", dev: "127.0.0.1:7942", usage: "where the HTTP API listens; port 0 takes a free one",
		parse: address(func(c *config) *string { return &c.HTTPAddr }, false)},
	{name: "raft-addr", kind: "host:port", def: "127.0.0.1:0", usage: "where the metadata plane listens, on loopback; port 0 takes a free one",
		parse: address(func(c *config) *string { return &c.RaftAddr }, false)},
	{name: "metrics-addr", kind: "host:port", usage: "one more listener, without authentication, for /metrics, /healthz and /readyz; empty = none",
		parse: address(func(c *config) *string { return &c.MetricsAddr }, true)},
	{name: "pprof-addr", kind: "host:port", usage: "listener for Go profiles, without authentication; empty = none",
		parse: address(func(c *config) *string { return &c.PprofAddr }, true)},
	{name: "admin-password-file", kind: "file", usage: "file that holds the password of the user admin; or the password itself in TIDEMARK_ADMIN_PASSWORD",
		reload: true, parse: plain(func(c *config) *string { return &c.AdminPasswordFile })},
	{name: "tls-cert-file", kind: "file", usage: "certificate of the HTTP API in PEM, with its chain; with it the API speaks TLS alone",
		reload: true, parse: plain(func(c *config) *string { return &c.TLSCertFile })},
	{name: "tls-key-file", kind: "file", usage: "private key of the certificate, in PEM",
		reload: true, parse: plain(func(c *config) *string { return &c.TLSKeyFile })},
	{name: "tls-min-version", kind: "1.2|1.3", def: "1.2", usage: "oldest version of TLS that is spoken",
		reload: true, parse: parseTLSVersion},
	{name: "segment-bytes", kind: "size", def: "64MiB", usage: "size at which a segment is sealed",
		parse: size(func(c *config) *int64 { return &c.SegmentBytes }, 64<<10, 1<<30)},
	{name: "seal-age", kind: "duration", def: "10m", usage: "age at which a segment of at least seal-min-bytes is sealed",
		parse: duration(func(c *config) *time.Duration { return &c.SealAge }, 10*time.Millisecond)},
	{name: "seal-min-bytes", kind: "size", def: "1MiB", usage: "smaller segments wait for more records",
		parse: size(func(c *config) *int64 { return &c.SealMinBytes }, 1, 1<<30)},
	{name: "flush-bytes", kind: "size", def: "512KiB", usage: "size of a partition's tail at which it is written to its segment",
		parse: size(func(c *config) *int64 { return &c.FlushBytes }, 1, 64<<20)},
	{name: "wal-interval", kind: "duration", def: "1s", usage: "time between two shipped pieces of the write-ahead log: how far the archive trails the node",
		parse: duration(func(c *config) *time.Duration { return &c.WALInterval }, 10*time.Millisecond)},
	{name: "wal-max-bytes", kind: "size", def: "2GiB", usage: "size of the write-ahead log above which tails are flushed to free it",
		parse: size(func(c *config) *int64 { return &c.WALMaxBytes }, 1<<20, 1<<40)},
	{name: "state-interval", kind: "duration", def: "10m", usage: "time between two state objects in the archive, from which a restore begins",
		parse: duration(func(c *config) *time.Duration { return &c.StateInterval }, 10*time.Millisecond)},
	{name: "memory-budget", kind: "size", def: automatic, usage: "memory for the newest records of all partitions, of which twice as much is taken before producers wait for the flush; auto = a sixteenth of the memory, at most 256 MiB",
		parse: autoSize(func(c *config) *int64 { return &c.MemoryBudget }, 1<<20, 1<<40)},
	{name: "cache-bytes", kind: "size", def: "1GiB", usage: "local disk for archived records that were read",
		parse: size(func(c *config) *int64 { return &c.CacheBytes }, 1<<20, 1<<50)},
	{name: "disk-reserve", kind: "size", def: automatic, usage: "free disk space below which produce is refused; auto = 5 % of the disk, at least 1 GiB",
		parse: autoSize(func(c *config) *int64 { return &c.DiskReserve }, 1, 1<<50)},
	{name: "garbage-grace", kind: "duration", def: "1h", usage: "time between the end of an object's use in the archive and its deletion",
		parse: duration(func(c *config) *time.Duration { return &c.GarbageGrace }, 10*time.Millisecond)},
	{name: "garbage-interval", kind: "duration", def: "5m", usage: "time between two turns of deleting from the archive",
		parse: duration(func(c *config) *time.Duration { return &c.GarbageInterval }, 10*time.Millisecond)},
	{name: "pitr-window", kind: "duration", def: "1h", usage: "how far back the archive keeps shipped log and states that a restore of the newest does not need",
		parse: duration(func(c *config) *time.Duration { return &c.PITRWindow }, 10*time.Millisecond)},
	{name: "orphan-interval", kind: "duration", def: "24h", usage: "time between two looks for segments in the archive that nothing names, per partition",
		parse: duration(func(c *config) *time.Duration { return &c.OrphanInterval }, 10*time.Millisecond)},
	{name: "merge-interval", kind: "duration", def: "5m", usage: "time between two looks for small archived segments to merge into larger ones; 0 = they are not merged",
		parse: duration(func(c *config) *time.Duration { return &c.MergeInterval }, 0)},
	{name: "merge-min-segments", kind: "number", def: "8", usage: "adjacent small archived segments that a merge needs at least",
		parse: number(func(c *config) *int64 { return &c.MergeMinSegments }, 2, 256)},
	{name: "retention-interval", kind: "duration", def: "10s", usage: "time between two looks at what may leave the disk or the archive by retention",
		parse: duration(func(c *config) *time.Duration { return &c.RetentionInterval }, 10*time.Millisecond)},
	{name: "scrub-interval", kind: "duration", def: "336h", usage: "time in which every stored segment, on disk and in the archive, is read again once and verified; 0 = only what is asked for",
		parse: duration(func(c *config) *time.Duration { return &c.ScrubInterval }, 0)},
	{name: "shutdown-grace", kind: "duration", def: "10s", usage: "time for requests to end after SIGTERM",
		reload: true, parse: duration(func(c *config) *time.Duration { return &c.ShutdownGrace }, 0)},
	{name: "log-format", kind: "json|text", def: "json", dev: "text", usage: "form of the log on stderr",
		reload: true, parse: choice(func(c *config) *string { return &c.LogFormat }, "json", "text")},
	{name: "log-level", kind: "level", def: "info", usage: "least level that is logged: debug, info, warn or error",
		reload: true, parse: parseLevel},
}

// settingOf finds a setting by the name of its flag.
func settingOf(name string) *setting {
	i := slices.IndexFunc(settings, func(s setting) bool { return s.name == name })
	if i < 0 {
		return nil
	}
	return &settings[i]
}

func plain(field func(*config) *string) func(*config, string) error {
	return func(c *config, text string) error {
		*field(c) = text
		return nil
	}
}

func number(field func(*config) *int64, least, most int64) func(*config, string) error {
	return func(c *config, text string) error {
		v, err := strconv.ParseInt(text, 10, 64)
		if err != nil || v < least || v > most {
			return fmt.Errorf("%q is not a number from %d to %d", text, least, most)
		}
		*field(c) = v
		return nil
	}
}

func boolean(field func(*config) *bool) func(*config, string) error {
	return func(c *config, text string) error {
		v, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", text)
		}
		*field(c) = v
		return nil
	}
}

func address(field func(*config) *string, optional bool) func(*config, string) error {
	return func(c *config, text string) error {
		if text == "" && optional {
			*field(c) = ""
			return nil
		}
		_, port, err := net.SplitHostPort(text)
		if err != nil {
			return fmt.Errorf("%q is not host:port", text)
		}
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return fmt.Errorf("%q has no port between 0 and 65535", text)
		}
		*field(c) = text
		return nil
	}
}

func size(field func(*config) *int64, least, most int64) func(*config, string) error {
	return func(c *config, text string) error {
		n, err := parseBytes(text)
		if err != nil {
			return err
		}
		if n < least || n > most {
			return fmt.Errorf("%q is not between %s and %s", text, formatBytes(least), formatBytes(most))
		}
		*field(c) = n
		return nil
	}
}

func autoSize(field func(*config) *int64, least, most int64) func(*config, string) error {
	sized := size(field, least, most)
	return func(c *config, text string) error {
		if text == automatic {
			*field(c) = 0
			return nil
		}
		return sized(c, text)
	}
}

func duration(field func(*config) *time.Duration, least time.Duration) func(*config, string) error {
	return func(c *config, text string) error {
		d, err := parseDuration(text)
		if err != nil {
			return err
		}
		if d < least {
			return fmt.Errorf("%q is too short: the least is %s", text, least)
		}
		*field(c) = d
		return nil
	}
}

func choice(field func(*config) *string, of ...string) func(*config, string) error {
	return func(c *config, text string) error {
		if !slices.Contains(of, text) {
			return fmt.Errorf("%q is not one of %s", text, strings.Join(of, ", "))
		}
		*field(c) = text
		return nil
	}
}

func parseLevel(c *config, text string) error {
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, text) {
		return fmt.Errorf("%q is not one of debug, info, warn, error", text)
	}
	return c.LogLevel.UnmarshalText([]byte(text))
}

func parseTLSVersion(c *config, text string) error {
	switch text {
	case "1.2":
		c.TLSMinVersion = tls.VersionTLS12
	case "1.3":
		c.TLSMinVersion = tls.VersionTLS13
	default:
		return fmt.Errorf("%q is not one of 1.2, 1.3", text)
	}
	return nil
}

func parseNodeID(c *config, text string) error {
	c.NodeID = text
	return broker.ValidateName("node", text)
}

func parseArchive(c *config, text string) error {
	if text == "none" || text == "" {
		c.Archive = ""
		return nil
	}
	u, err := archiveURL(text)
	if err != nil {
		return err
	}
	if _, err := storeurl.Parse(u); err != nil {
		return err
	}
	c.Archive = u
	return nil
}
