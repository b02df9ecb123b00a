package wal

import (
	"context"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	benchWriters = 64
	benchBody    = 1024
	benchRounds  = 25
	benchRecords = 12000 // of each side in a round
)

// BenchmarkAppend64 runs 64 writers of 1 KiB, each waiting for its record to
// be durable, against a bare loop of pwrite + fdatasync on a prewritten file of the
// same disk, with as many bytes a sync as the log had on average, in
// interleaved rounds. It reports the median of log/bare with its range: 1 =
// grouping, checksums and waking cost nothing.
func BenchmarkAppend64(b *testing.B) {
	dir := b.TempDir()
	o := Options{
		FS: vfs.Default, Dir: dir + "/wal", Incarnation: 1, FileSize: 64 << 20, PoolFiles: 4, MaxBytes: 1 << 30,
		Holds: map[string]uint64{"state": math.MaxUint64},
	}
	l := mustOpen(b, o)
	for l.Stats().Spares == 0 || l.Stats().Files+l.Stats().Spares < 2 {
		time.Sleep(time.Millisecond)
	}
	for first := l.Stats().Oldest; l.Stats().Oldest == first; { // past the first file, which had to grow
		benchAppend(b, l.Log, 4000)
	}
	bare := bareFile(b, dir+"/bare", 64<<20)
	defer bare.Close()
	for b.Loop() {
		var ratios, batches, rates []float64
		for round := range benchRounds {
			syncs := l.Stats().Syncs
			took := benchAppend(b, l.Log, benchRecords)
			batch := float64(benchRecords) / float64(l.Stats().Syncs-syncs)
			base := benchBare(b, bare, benchRecords, batch)
			if round == 0 {
				continue // warms both up
			}
			ratios = append(ratios, base.Seconds()/took.Seconds())
			batches = append(batches, batch)
			rates = append(rates, benchRecords/took.Seconds())
		}
		for _, v := range [][]float64{ratios, batches, rates} {
			slices.Sort(v)
		}
		mid := len(ratios) / 2
		b.ReportMetric(ratios[mid], "x-bare")
		b.ReportMetric(ratios[0], "x-bare-min")
		b.ReportMetric(ratios[len(ratios)-1], "x-bare-max")
		b.ReportMetric(batches[mid], "records/sync")
		b.ReportMetric(rates[mid], "records/s")
	}
	mustClose(b, l)
}

// benchAppend appends n records from 64 writers and returns how long it took.
func benchAppend(b *testing.B, l *Log, n int) time.Duration {
	begin := time.Now()
	var wg sync.WaitGroup
	value := body(1, 1, benchBody)
	for range benchWriters {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range n / benchWriters {
				s, err := l.Reserve(KindCommit, benchBody)
				if err != nil {
					b.Error(err)
					return
				}
				copy(s.Body, value)
				s.Done()
				if err := l.WaitDurable(context.Background(), s.LSN); err != nil {
					b.Error(err)
					return
				}
			}
		}()
	}
	wg.Wait()
	return time.Since(begin)
}

// bareFile makes a prewritten file.
func bareFile(b *testing.B, name string, size int) vfs.File {
	f, err := vfs.Default.Create(name, writeCategory)
	if err != nil {
		b.Fatal(err)
	}
	zeros := make([]byte, 1<<20)
	for off := 0; off < size; off += len(zeros) {
		if _, err := f.WriteAt(zeros, int64(off)); err != nil {
			b.Fatal(err)
		}
	}
	if err := f.SyncData(); err != nil {
		b.Fatal(err)
	}
	return f
}

// benchBare writes n records in blocks of batch records, each followed by an
// fdatasync.
func benchBare(b *testing.B, f vfs.File, n int, batch float64) time.Duration {
	size := int(roundUp(int64(batch*(benchBody+frameHeaderSize)) + groupHeaderSize))
	block := body(1, 1, size)
	begin := time.Now()
	off := int64(0)
	for done := 0.0; done < float64(n); done += batch {
		if off+int64(size) > 64<<20 {
			off = 0
		}
		if _, err := f.WriteAt(block, off); err != nil {
			b.Fatal(err)
		}
		if err := f.SyncData(); err != nil {
			b.Fatal(err)
		}
		off += int64(size)
	}
	return time.Since(begin)
}

// BenchmarkAppend1 is one writer: what a single connection pays.
func BenchmarkAppend1(b *testing.B) {
	l := mustOpen(b, Options{FS: vfs.Default, Dir: b.TempDir() + "/wal", Incarnation: 1})
	for b.Loop() {
		s, err := l.Reserve(KindCommit, benchBody)
		if err != nil {
			b.Fatal(err)
		}
		s.Done()
		if err := l.WaitDurable(context.Background(), s.LSN); err != nil {
			b.Fatal(err)
		}
	}
	mustClose(b, l)
}

// BenchmarkReplay is how fast a start reads 64 MiB of 4 KiB groups back.
func BenchmarkReplay(b *testing.B) {
	dir := b.TempDir()
	o := Options{FS: vfs.Default, Dir: dir + "/wal", Incarnation: 1}
	l := mustOpen(b, o)
	for range 60 {
		stage(b, l.Log, 1, 1000<<10)
	}
	for range 2000 {
		write(b, l.Log, 1, 1000)
	}
	mustClose(b, l)
	for b.Loop() {
		again, info, err := Open(o, func(Frame) error { return nil })
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(info.Bytes)
		if err := again.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
