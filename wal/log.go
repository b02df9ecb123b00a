package wal

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Log is an open write-ahead log. All methods are safe for concurrent use.
type Log struct {
	o   Options
	dir vfs.File // the directory, kept open for syncing

	// written and durable only rise. They are stored under mu, so that a waiter
	// that has checked them under mu cannot miss the broadcast.
	written, durable atomic.Uint64
	several          atomic.Bool // the last group that was written had several frames

	// syncMu is held across every fdatasync of a log file, on purpose: the
	// kernel reports a failed write-back to one caller per descriptor, so of
	// two syncs at once one could lose the data and the other hear the error.
	// With the lock the result of one is acted upon before the next begins.
	syncMu sync.Mutex

	mu    staging
	tail  tail
	files fileSet

	traffic chan struct{} // capacity 1: a frame was reserved while the keeper slept
	stalled chan struct{} // capacity 1: a write failed, the keeper has the write role
	chores  chan struct{} // capacity 1: the janitor should look
	crowded chan struct{} // capacity 1: the files exceed MaxBytes
	stop    chan struct{}
	wg      sync.WaitGroup

	scans   sync.Pool // of *scanner, for ReadGroups
	metrics *metrics
	closing sync.Once
	closed  error // result of Close
}

// Open recovers the log in o.Dir, calls replay for every verified frame in LSN
// order, and returns the log ready for appends. Bodies are valid only during
// the callback. Replay must have no lasting effects until Open has returned
// nil: damage in a later file ends it with an error.
//
// Errors: errcode.Corrupt for damage, errcode.Conflict for a file of another
// incarnation, errcode.UnsupportedVersion, errcode.InvalidArgument for
// options, errcode.Storage for I/O, or what replay returned.
func Open(o Options, replay func(Frame) error) (*Log, RecoveryInfo, error) {
	o = o.withDefaults()
	if err := o.Validate(); err != nil {
		return nil, RecoveryInfo{}, err
	}
	l := &Log{
		o:       o,
		traffic: make(chan struct{}, 1),
		stalled: make(chan struct{}, 1),
		chores:  make(chan struct{}, 1),
		crowded: make(chan struct{}, 1),
		stop:    make(chan struct{}),
	}
	l.scans.New = func() any { return new(scanner) }
	l.files.init(o)
	l.mu.init(o)
	l.tail.ring = make([]byte, o.TailBytes)
	info, err := l.recover(replay)
	if err == nil {
		err = newMetrics(o.Registerer, l)
	}
	if err != nil {
		return nil, info, errors.Join(err, l.closeFiles())
	}
	l.start()
	return l, info, nil
}

func (l *Log) start() {
	run := func(f func()) {
		l.wg.Add(1)
		go func() {
			defer l.wg.Done()
			f()
		}()
	}
	run(l.keep)
	run(l.janitor)
	if l.o.OnPressure != nil {
		run(l.press)
	}
	poke(l.chores)
	l.checkPressure()
}

// poke wakes the goroutine that listens on c; one pending poke is enough.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Written returns the highest LSN that is in the file.
func (l *Log) Written() uint64 { return l.written.Load() }

// Durable returns the highest LSN that is fsynced.
func (l *Log) Durable() uint64 { return l.durable.Load() }

// NextLSN returns the LSN that the next frame gets.
func (l *Log) NextLSN() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.next
}

// FirstLSN returns the lowest LSN that is not recycled.
func (l *Log) FirstLSN() uint64 {
	l.files.mu.Lock()
	defer l.files.mu.Unlock()
	return l.files.mu.list[0].first
}

// DurableChanged returns a channel that is closed when the durable LSN next
// advances, and at Close. Take it before reading Durable, so that no advance
// is missed.
func (l *Log) DurableChanged() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return shared(&l.mu.changed)
}

// Err returns nil, or why no writes are accepted: errcode.Poisoned after a
// failed fsync, errcode.Storage while writes fail, errcode.Closed.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.mu.refusal(); err != nil {
		return err
	}
	return nil
}

// Close writes and syncs what is staged, appends a closing mark, stops every
// goroutine and closes the files. Slots that are reserved must get their Done
// first, or Close waits for it. The error says what could not be made durable.
// A second Close returns the same.
func (l *Log) Close() error {
	l.closing.Do(func() { l.closed = l.shutdown() })
	return l.closed
}

func (l *Log) shutdown() error {
	l.mu.Lock()
	l.mu.closed = true // from here on nobody reserves; who holds a slot finishes
	l.mu.Unlock()
	close(l.stop)
	l.wg.Wait()

	err := l.lastWrites()

	// Taking both roles for good means that no leader runs any more and none
	// can begin.
	l.mu.Lock()
	for l.mu.syncing || (l.mu.writing && l.mu.stall == nil) {
		c := shared(&l.mu.snext)
		if !l.mu.syncing {
			c = shared(&l.mu.wnext)
		}
		l.mu.Unlock()
		<-c
		l.mu.Lock()
	}
	l.mu.writing, l.mu.syncing, l.mu.dead = true, true, true
	l.mu.wakeAll()
	broadcast(&l.mu.changed)
	l.mu.Unlock()
	l.metrics.unregister()
	return errors.Join(err, l.closeFiles())
}

// lastWrites makes everything staged durable and adds the closing mark.
func (l *Log) lastWrites() error {
	l.mu.Lock()
	poison, stalled := l.mu.poison, l.mu.stall != nil
	last, marked := l.mu.next-1, l.mu.markLSN
	l.mu.Unlock()
	if poison != nil {
		return poison
	}
	if stalled && !l.retryWrite() { // the keeper is gone; try once more, then give up
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.mu.waitError(last, l.written.Load())
	}
	if err := l.makeDurable(last); err != nil {
		return err
	}
	if last == marked {
		return nil
	}
	return l.mark()
}

// closeFiles closes the current file and the directory.
func (l *Log) closeFiles() error {
	var errs []error
	if f := l.mu.file; f != nil {
		errs = append(errs, f.Close(), l.mu.direct.close())
	}
	if l.dir != nil {
		errs = append(errs, l.dir.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return errcode.Wrap(errcode.Storage, err, "close wal in %s", l.o.Dir)
	}
	return nil
}
