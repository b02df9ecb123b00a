// Package e2e tests brokers as processes of their own: the binary that ships,
// on a disk, with an archive, ended by SIGKILL.
//
// Everything is in its tests. The binary is built once per run. Clients load a
// broker and record what they are told in a history (package history); after
// each fault the complete log of every partition is held against it. A random
// choice is made by a generator whose seed a failing test prints.
//
// TIDEMARK_KILL_ROUNDS sets how often the kill loops kill: 5 without it, 2
// with -short; `make crash` sets it. From 30 on the restart with 1 GiB of
// segments runs at its full size. TIDEMARK_OUTAGE sets how long the archive is
// away in TestOutage: 6 s without it; `make outage` sets it. Then a stopped
// archive also stays stopped for longer than an attempt may take.
// TIDEMARK_SCALE=full makes the tests of many topics and segments ten times as
// large as they are without it; `make scale` sets it.
package e2e
