// Package s3server runs a real S3 server for tests: versitygw, a process of its
// own that keeps objects in a directory.
//
// The binary is built once from its module, pinned, into $TIDEMARK_TOOLS or the
// repository's .cache/tools/bin; the first test that needs it waits about two
// minutes. A file lock keeps test processes that start together from building it
// twice. No test is skipped because it is missing.
//
// A server listens on a free port of the loopback, is stopped by its process id
// when its test ends, and dies with the test process. Stop, Kill and Restart let
// a test take the store away and bring it back: same port, same objects.
//
// One goroutine per running process waits for its end.
package s3server
