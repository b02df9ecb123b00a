package main

import (
	"os"
	"os/signal"
	"syscall"
)

// version is set at build time with -X main.version.
var version = "dev"

func main() {
	// Two places: the second signal must not be lost while the first one's work
	// is under way.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	// A reader of stdout that goes away is an error of the write, so that a
	// command can say what it had done.
	signal.Ignore(syscall.SIGPIPE)
	p := &process{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		env: os.Environ(), signals: signals, exit: os.Exit, onHangup: catchHangups,
	}
	os.Exit(p.run(os.Args[1:]))
}

// catchHangups has one place: signals that come while one is worked on are one
// more together.
func catchHangups() (<-chan os.Signal, func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	return signals, func() { signal.Stop(signals) }
}
