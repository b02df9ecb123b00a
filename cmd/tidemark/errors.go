package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	// exitPipe is what a shell shows of a program that SIGPIPE has ended: whoever
	// read stdout went away. It is no success, because what a command found may
	// not have been said, and scripts know it.
	exitPipe = 128 + int(syscall.SIGPIPE)
)

// usageError is a command line or a configuration that cannot work.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// usagef returns a usage error.
func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

// errReported ends a command whose result, already printed, is a failure.
var errReported = errors.New("reported")

// report prints err and returns its exit code. A configuration may have several
// errors, each with a line; everything else has one.
func (p *process) report(err error) int {
	if errors.Is(err, errReported) {
		return exitFailed
	}
	if readerGone(err) {
		return exitPipe
	}
	var several *configErrors
	if errors.As(err, &several) {
		for _, e := range several.errs {
			p.say("%s", oneLine(e.Error()))
		}
		return exitUsage
	}
	p.say("%s", oneLine(err.Error()))
	var usage usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailed
}

// readerGone says whether err is nothing but that the reader of stdout is gone, as
// that of "tidemark consume | head -1" is: it has what it wanted. What failed
// besides is an error.
func readerGone(err error) bool {
	var several interface{ Unwrap() []error }
	if errors.As(err, &several) {
		return !slices.ContainsFunc(several.Unwrap(), func(e error) bool { return !readerGone(e) })
	}
	var path *fs.PathError
	return errors.As(err, &path) && path.Path == os.Stdout.Name() && errors.Is(path.Err, syscall.EPIPE)
}

// oneLine joins the lines of a message: scripts read one line per error.
func oneLine(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	return strings.Join(lines, "; ")
}

// explain says what a caller of a node can do about an error, where the node
// cannot say it itself.
func explain(err error, server string) error {
	var op *net.OpError
	var untrusted *tls.CertificateVerificationError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return errcode.Wrap(errcode.Canceled, err, "interrupted")
	case errors.As(err, &untrusted):
		return errcode.New(errcode.Unavailable, "the certificate of %s is not trusted (%v): name the authority that signed it with --ca-file or TIDEMARK_CA_FILE, and the server as its certificate does", server, untrusted.Err)
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"): // net/http has no type for it
		return errcode.New(errcode.Unavailable, "%s speaks plain HTTP: write its address as http://, or turn on TLS there", server)
	case errors.As(err, &op) && op.Op == "dial":
		return errcode.New(errcode.Unavailable, "no node answers at %s (%v): start one with `tidemark serve`, or name another with --server or TIDEMARK_SERVER", server, op.Err)
	case errcode.Is(err, errcode.Unauthorized):
		return errcode.New(errcode.Unauthorized, "%s does not accept these credentials: give --user, and the password in TIDEMARK_PASSWORD or --password-file", server)
	default:
		return err
	}
}
