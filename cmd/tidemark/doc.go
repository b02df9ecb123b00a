// Command tidemark is the broker and everything that is done to it: `serve`
// runs a node, the other commands are its clients, its restore and the offline
// tools of an archive.
//
// One file holds one family of commands. [process] is the surrounding world
// (standard streams, environment, signals), so that a test runs a command as a
// shell does. Settings of `serve` are one table (settings.go): flags, variables,
// keys of the file, help and docs/configuration.md all come from it.
//
// # Exit codes
//
// 0 done; 1 it failed; 2 it was asked for in a way that cannot work (an unknown
// flag, a missing argument, a bad value). Errors are one line on stderr each.
//
// # Signals
//
// The first SIGINT or SIGTERM ends a command in order, the second at once.
package main
