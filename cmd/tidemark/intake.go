package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"sync"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Bounds of a batch, which are the node's.
const (
	maxBatchRecords = 1000
	maxBatchBytes   = 16 << 20
)

// lines is one batch: lines of input and their numbers.
type lines struct {
	body    []byte // with a line break after each
	ends    []int  // in body, behind each line's break
	numbers []int  // in the input, from 1
}

func (l *lines) reset() { l.body, l.ends, l.numbers = l.body[:0], l.ends[:0], l.numbers[:0] }

func (l *lines) count() int { return len(l.ends) }

// line returns the i-th line without its break.
func (l *lines) line(i int) []byte {
	start := 0
	if i > 0 {
		start = l.ends[i-1]
	}
	return l.body[start : l.ends[i]-1]
}

// intake collects lines while a batch is under way. A batch goes out when it is
// full, and when the source makes it wait: a slow source waits for nothing, a
// fast one fills its batches.
type intake struct {
	records int
	mu      struct {
		sync.Mutex
		changed *sync.Cond
		next    lines
		waiting bool  // the next line is not there yet
		full    bool  // the next line is there and has no room
		err     error // io.EOF: the input has ended
		stopped bool
	}
}

func newIntake(records int) *intake {
	in := &intake{records: records}
	in.mu.changed = sync.NewCond(&in.mu)
	return in
}

// read reads r to its end. It returns when the input ends or breaks, or after
// stop at the next line: a read of a terminal or a pipe cannot be interrupted.
func (in *intake) read(r io.Reader) {
	br := bufio.NewReaderSize(r, 256<<10)
	var long []byte // what came of a line that is longer than the buffer
	for number := 1; ; {
		if ahead, _ := br.Peek(br.Buffered()); bytes.IndexByte(ahead, '\n') < 0 {
			in.wait()
		}
		part, err := br.ReadSlice('\n')
		line := part
		if len(long) > 0 || errors.Is(err, bufio.ErrBufferFull) {
			long = append(long, part...)
			line = long
		}
		if len(line) > maxBatchBytes {
			in.end(errcode.New(errcode.TooLarge, "line %d is longer than %s", number, formatBytes(maxBatchBytes)))
			return
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if line = bytes.TrimSpace(line); len(line) > 0 && !in.add(line, number) {
			return
		}
		if err != nil {
			in.end(err)
			return
		}
		long = long[:0]
		number++
	}
}

// wait says that the reader is about to wait for its source.
func (in *intake) wait() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.mu.waiting = true
	in.mu.changed.Broadcast()
}

// add waits until there is room for the line; false: nobody takes lines any
// more.
func (in *intake) add(line []byte, number int) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	next := &in.mu.next
	in.mu.waiting = false
	for !in.mu.stopped && next.count() > 0 && (next.count() >= in.records || len(next.body)+len(line)+1 > maxBatchBytes) {
		in.mu.full = true
		in.mu.changed.Broadcast()
		in.mu.changed.Wait()
	}
	if in.mu.stopped {
		return false
	}
	next.body = append(append(next.body, line...), '\n')
	next.ends = append(next.ends, len(next.body))
	next.numbers = append(next.numbers, number)
	return true
}

func (in *intake) end(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.mu.err = err
	in.mu.changed.Broadcast()
}

// stop ends waits on both sides.
func (in *intake) stop() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.mu.stopped = true
	in.mu.changed.Broadcast()
}

// take swaps the next batch into b, which is used up. io.EOF: there is none.
// After stop it is Canceled.
func (in *intake) take(b *lines) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	for !in.mu.stopped && in.mu.err == nil && (in.mu.next.count() == 0 || !in.mu.waiting && !in.mu.full) {
		in.mu.changed.Wait()
	}
	switch {
	case in.mu.stopped:
		return errcode.New(errcode.Canceled, "interrupted")
	case in.mu.next.count() == 0:
		return in.mu.err
	}
	b.reset()
	*b, in.mu.next, in.mu.full = in.mu.next, *b, false
	in.mu.changed.Broadcast()
	return nil
}
