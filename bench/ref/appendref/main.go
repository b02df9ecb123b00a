// Command appendref is the append reference: one writer that appends a block
// and syncs it, over and over, on a file whose blocks are written already.
//
//	appendref -file F -block 4096 -seconds 3
//
// It prints one JSON object: bytes a second (1 MB = 1,000,000 bytes), appends,
// and quantiles of the time that one append with its fdatasync takes, in
// milliseconds. Blocks hold random bytes, so that no layer below can compress
// them. F becomes a ring of -size bytes that later runs use again.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"
)

func main() {
	var o options
	var seconds, warmup float64
	flag.StringVar(&o.file, "file", "", "`file` to append to; it is created and filled when needed")
	flag.Int64Var(&o.size, "size", 256<<20, "`bytes` of the ring in the file")
	flag.Int64Var(&o.block, "block", 1<<20, "`bytes` per append, a multiple of 4096")
	flag.Float64Var(&seconds, "seconds", 3, "measured `seconds`, at most 600")
	flag.Float64Var(&warmup, "warmup", 0.3, "`seconds` before the measurement")
	flag.Parse()
	o.duration = time.Duration(seconds * float64(time.Second))
	o.warmup = time.Duration(warmup * float64(time.Second))
	err := o.validate()
	if flag.NArg() > 0 {
		err = errors.Join(err, fmt.Errorf("appendref takes flags only, not %q", flag.Args()))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%v\nsee appendref -help\n", err)
		os.Exit(2)
	}
	res, err := measure(o)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(res)
	}
	if err != nil {
		slog.Error("appendref failed", "err", err)
		os.Exit(1)
	}
}
