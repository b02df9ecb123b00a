// Package crash runs crash histories: random operations on a file system that
// keeps its disk and its page cache apart, a power loss or the death of the
// process between any two of its changes, a reopening, and a comparison with
// what had been acknowledged. Only tests import it.
//
// # Parts
//
//	FS       an in-memory file system; Kill and Losses say what a crash leaves
//	Camera   stops a file system at some of its changes, with the model's state of that moment
//	Run      runs a model's histories on all cores, counts them and fails a run that made too few
//	T        what one history sees of the test: a seed, a source of random numbers, a trace
//
// # What a crash leaves
//
// The death of a process loses nothing that it wrote, and makes nothing
// durable: [FS.Kill]. A loss of power keeps what was synced. Of the rest it
// keeps any part ([FS.Losses]): each page of 4 KiB that was written since the
// last sync of its file, the file's new length, each name that was created,
// renamed or removed since the last sync of its directory. A page may be torn
// at a sector of 512 bytes. Where these choices are few, all their
// combinations are tried. A sync that was made to fail ([Forget]) behaves as a
// kernel does: the pages count as clean from then on and are never written.
//
// # Histories and their number
//
// A history is one way to get from an empty file system over one or more
// crashes to a reopened one that was compared with the model. One run of
// random operations gives many of them, because it is stopped at many changes
// and each leaves many disks.
//
// TIDEMARK_HISTORIES is the number for all models together, of which each
// makes its share (see shares.go); without it, 12,000, and 3,000 under -short.
// TIDEMARK_SEED replays: the first run of each model has exactly this seed, and
// what a failing history prints names it. Background goroutines of the code
// under test may interleave differently; models that have them say so.
//
// # Goroutines
//
// Run starts one worker for each processor and waits for all of them. FS and
// Camera are safe for concurrent use and start nothing.
package crash
