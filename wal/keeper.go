package wal

import (
	"time"
)

const (
	retryFirst = 50 * time.Millisecond
	retryMost  = 2 * time.Second
)

// keep runs the log's clock: under traffic it syncs what is only written and
// appends a mark each interval, it closes the last burst with a mark, and it
// retries a failed write. While the log is idle no timer runs.
func (l *Log) keep() {
	tick, retry := stoppedTimer(), stoppedTimer()
	defer tick.Stop()
	defer retry.Stop()
	backoff := retryFirst
	for {
		select {
		case <-l.stop:
			return
		case <-l.traffic:
			tick.Reset(l.o.AckSyncInterval)
		case <-tick.C:
			if l.tick() {
				tick.Reset(l.o.AckSyncInterval)
			}
		case <-l.stalled:
			backoff = retryFirst
			retry.Reset(backoff)
		case <-retry.C:
			if !l.retryWrite() && !l.poisoned() {
				backoff = min(2*backoff, retryMost)
				retry.Reset(backoff)
			}
		}
	}
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// tick makes everything durable and appends a mark; false = the log is idle
// and the next frame wakes the keeper again.
func (l *Log) tick() bool {
	l.mu.Lock()
	last := l.mu.next - 1
	if l.mu.poison != nil {
		l.mu.Unlock()
		return false
	}
	stalled := l.mu.stall != nil
	l.mu.Unlock()
	if stalled {
		_ = l.syncWritten() // what could be written may still be synced; its failure poisons
		return true
	}
	// First the traffic, then the mark: so the mark's group header says that
	// all before it is durable, which is what recovery tells a torn tail by.
	if l.makeDurable(last) != nil || l.mark() != nil {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.armed = l.mu.next-1 != l.mu.markLSN
	if !l.mu.armed {
		l.mu.kept = nil // a large buffer is kept for a burst, not for ever
	}
	return l.mu.armed
}

// mark appends a mark and makes it durable.
func (l *Log) mark() error {
	low := l.files.lowWater()
	l.mu.Lock()
	g, err := l.place(frameHeaderSize+markBodySize, true)
	if err != nil {
		l.mu.Unlock()
		return err
	}
	s := l.mu.cut(g, KindMark, markBodySize)
	// The wall clock may jump back; marks do not.
	l.mu.markMs = max(l.mu.markMs, uint64(max(l.o.Now().UnixMilli(), 0)))
	l.mu.markLSN = s.LSN
	Mark{TimeMs: l.mu.markMs, LowWater: low}.encode(s.Body)
	l.mu.Unlock()
	s.Done()
	return l.makeDurable(s.LSN)
}
