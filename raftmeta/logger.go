package raftmeta

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/go-hclog"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// raftLogger gives Raft's messages to slog. What Raft calls info are its own
// steps (states, votes, compactions): debug for an operator of Tidemark.
type raftLogger struct {
	logger *slog.Logger
	name   string
	args   []any
}

var _ hclog.Logger = raftLogger{}

func slogLevel(l hclog.Level) slog.Level {
	switch l {
	case hclog.Warn:
		return slog.LevelWarn
	case hclog.Error:
		return slog.LevelError
	default:
		return slog.LevelDebug
	}
}

func (l raftLogger) Log(level hclog.Level, msg string, args ...any) {
	at := slogLevel(level)
	if level == hclog.Off || !l.logger.Enabled(context.Background(), at) {
		return
	}
	// Raft passes hclog.Format values, a format and its arguments, for lists.
	for i, a := range args {
		if f, ok := a.(hclog.Format); ok && len(f) > 0 {
			args[i] = fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
		}
	}
	l.logger.Log(context.Background(), at, msg, args...)
}

func (l raftLogger) Trace(msg string, args ...any) { l.Log(hclog.Trace, msg, args...) }
func (l raftLogger) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }
func (l raftLogger) Info(msg string, args ...any)  { l.Log(hclog.Info, msg, args...) }
func (l raftLogger) Warn(msg string, args ...any)  { l.Log(hclog.Warn, msg, args...) }
func (l raftLogger) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }

func (l raftLogger) enabled(level hclog.Level) bool {
	return l.logger.Enabled(context.Background(), slogLevel(level))
}

func (l raftLogger) IsTrace() bool         { return l.enabled(hclog.Trace) }
func (l raftLogger) IsDebug() bool         { return l.enabled(hclog.Debug) }
func (l raftLogger) IsInfo() bool          { return l.enabled(hclog.Info) }
func (l raftLogger) IsWarn() bool          { return l.enabled(hclog.Warn) }
func (l raftLogger) IsError() bool         { return l.enabled(hclog.Error) }
func (l raftLogger) ImpliedArgs() []any    { return l.args }
func (l raftLogger) Name() string          { return l.name }
func (l raftLogger) SetLevel(hclog.Level)  {} // the slog handler decides
func (l raftLogger) GetLevel() hclog.Level { return hclog.Debug }
func (l raftLogger) With(args ...any) hclog.Logger {
	return raftLogger{logger: l.logger.With(args...), name: l.name, args: append(l.args[:len(l.args):len(l.args)], args...)}
}

func (l raftLogger) Named(name string) hclog.Logger {
	if l.name != "" {
		name = l.name + "." + name
	}
	return l.ResetNamed(name)
}

func (l raftLogger) ResetNamed(name string) hclog.Logger {
	return raftLogger{logger: l.logger.With("part", name), name: name, args: l.args}
}

func (l raftLogger) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return slog.NewLogLogger(l.logger.Handler(), slog.LevelDebug)
}

func (l raftLogger) StandardWriter(opts *hclog.StandardLoggerOptions) io.Writer {
	return l.StandardLogger(opts).Writer()
}

// pebbleLogger gives Pebble's messages to slog and its fatal errors to the
// plane's switch.
type pebbleLogger struct {
	logger *slog.Logger
	fatal  *fatal
	broken *broken
}

var _ pebble.Logger = pebbleLogger{}

func (l pebbleLogger) Infof(format string, args ...any) {
	l.logger.Debug(fmt.Sprintf(format, args...))
}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.logger.Error(fmt.Sprintf(format, args...))
}

// Fatalf never returns, as Pebble expects: a commit whose fsync failed would
// be reported as done, a failed manifest would be built upon.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	l.fail(fmt.Errorf(format, args...))
	l.fatal.park()
}

// fail stops the plane over a disk that failed for good, or at a moment when
// nobody waits for it.
func (l pebbleLogger) fail(cause error) {
	l.broken.mark()
	l.fatal.trip(errcode.New(errcode.Storage, "the metadata log failed on disk; check the volume (space, errors) and restart: %w", cause))
}

// listener reports damage in files at once, also when a compaction finds it.
// The read that found it gets its error and goes on.
func (l pebbleLogger) listener() *pebble.EventListener {
	return &pebble.EventListener{DataCorruption: func(info pebble.DataCorruptionInfo) {
		l.fatal.trip(errcode.New(errcode.Corrupt, "the metadata log is damaged; restore the data directory's raft folder from a copy or the cluster from its archive: %s", info))
	}}
}
