package scenario

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/tidemark-mq/tidemark/bench/rawhttp"
	"github.com/tidemark-mq/tidemark/bench/records"
	"github.com/tidemark-mq/tidemark/bench/report"
)

const typeBatches = "application/vnd.kafka.record-batch"

// ColdRead measures sequential readers of records that stand in the archive alone,
// a second read of the same out of the node's cache, and, where Store is set, plain
// range requests for the same objects.
func ColdRead(ctx context.Context, o Options) (*report.Report, error) {
	b, err := start("cold-read", o)
	if err != nil {
		return nil, err
	}
	b.rep.Set("records of a run", strconv.Itoa(o.Records))
	b.rep.Set("readers", fmt.Sprintf("%d, each one partition after the other from begin to end", min(o.Readers, o.Partitions)))
	b.rep.Set("read as", b.readAs())
	b.rep.Set("what the node has in memory is forgotten by", map[bool]string{true: "a restart", false: fmt.Sprintf("%d MiB of newer records", o.Displace>>20)}[o.Restart != nil])
	if o.Store == nil {
		b.rep.Notes = append(b.rep.Notes, "Plain requests were not measured: the archive was not named (--archive).")
	} else {
		b.rep.Set("archive", o.Store.Capabilities().URL)
		b.rep.Set("plain requests", fmt.Sprintf("ranges of %d MiB, %d at once", getBytes>>20, getsAtOnce))
	}
	return b.finish(b.coldRead(ctx))
}

func (b *bench) readAs() string {
	if b.NDJSON {
		return "application/x-ndjson, every record verified"
	}
	return typeBatches + ", every batch verified"
}

func (b *bench) coldRead(ctx context.Context) error {
	if _, err := b.archiveStatus(ctx); err != nil {
		return err
	}
	for i := range b.Runs {
		err := b.try(ctx, func(t *trial) error {
			stage := fmt.Sprintf("cold read %d of %d", i+1, b.Runs)
			if err := t.fill(ctx, stage); err != nil {
				return err
			}
			if err := t.evictable(ctx); err != nil {
				return err
			}
			s, err := t.settled(ctx, stage+": until all of it is archived and gone from the disk", true)
			if err != nil {
				return err
			}
			if err := t.forget(ctx, stage); err != nil {
				return err
			}
			// Whoever comes first finds the store's side colder: they take turns.
			steps := []func(context.Context, string, shelf) error{t.cold, t.plain}
			if i%2 == 1 {
				steps[0], steps[1] = steps[1], steps[0]
			}
			for _, step := range steps {
				if err := step(ctx, stage, s); err != nil {
					return err
				}
			}
			t.compare()
			return t.readBack(ctx)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// forget has the node forget what it has in memory of the topic: by a restart where
// the benchmark can do that, else by newer records, which need the memory.
func (t *trial) forget(ctx context.Context, stage string) error {
	if t.b.Restart != nil {
		target, err := t.b.Restart(ctx)
		if err == nil {
			t.b.Target = target
		}
		return err
	}
	other := &bench{Options: t.b.Options, corpus: records.NewCorpus(records.Noise, 2)}
	other.Size, other.Kind, other.Ack = displaceBytes, records.Noise, ""
	o := &trial{b: other, topic: t.topic + "-newer", run: records.NewRun(other.corpus, displaceBytes, 1)}
	o.ledger = records.NewLedger(o.run)
	if err := createTopic(ctx, t.b.Target, o.topic, t.b.Partitions, displaceBytes); err != nil {
		return err
	}
	err := o.fillTo(ctx, max(1, t.b.Displace/displaceBytes), func(done, total int64) { t.b.Progress(stage+": newer records take the memory", done, total) })
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(err, deleteTopic(end, t.b.Target, o.topic))
}

const (
	displaceBytes = 64 << 10 // of a record that takes memory
	// MaxDisplace bounds what is produced to take a node's memory.
	MaxDisplace = 1 << 40
)

// cold reads twice.
func (t *trial) cold(ctx context.Context, stage string, s shelf) error {
	for _, name := range []string{coldRead, secondRead} {
		before, err := t.b.archiveStatus(ctx)
		if err != nil {
			return err
		}
		run, err := t.scan(ctx, stage+": "+name, s)
		if err != nil {
			return err
		}
		after, err := t.b.archiveStatus(ctx)
		if err != nil {
			return err
		}
		hits, misses := after.Cache.Hits-before.Cache.Hits, after.Cache.Misses-before.Cache.Misses
		run.Add("downloaded", "MB", float64(after.Cache.Downloaded-before.Cache.Downloaded)/1e6)
		if hits+misses > 0 {
			run.Add("out of the cache", "% of chunks", 100*float64(hits)/float64(hits+misses))
		}
		t.b.into(name, "closed loop, streams", run)
		if got := after.Cache.Downloaded - before.Cache.Downloaded; name == coldRead && float64(got) < archiveLeast*float64(s.bytes) {
			return fmt.Errorf("the read was not cold: %d of %d stored bytes came from the archive, the others out of the node's memory; give more --displace, twice the node's memory_budget", got, s.bytes)
		}
	}
	return nil
}

// The measures.
const (
	coldRead   = "cold read"
	secondRead = "second read, out of the cache"
	plainReads = "plain range requests for the same objects"
	compared   = "compared, in each run"
)

// scan has all archived records of a topic read once.
func (t *trial) scan(ctx context.Context, stage string, s shelf) (report.Run, error) {
	readers := min(t.b.Readers, len(s.parts))
	firsts := hdrhistogram.New(1, time.Hour.Microseconds(), 3)
	var mu sync.Mutex // of firsts
	var count, size, done atomic.Int64
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	begun := time.Now()
	for lane := range readers {
		wg.Go(func() {
			for i := lane; i < len(s.parts); i += readers {
				p := &s.parts[i]
				if p.ArchivedOffset == 0 {
					continue
				}
				n, bytes, first, err := t.stream(ctx, int(p.Index), p.ArchivedOffset)
				if err != nil {
					cancel(fmt.Errorf("read partition %d of %s: %w", p.Index, t.topic, err))
					return
				}
				count.Add(n)
				size.Add(bytes)
				t.b.Progress(stage, done.Add(1), int64(len(s.parts)))
				mu.Lock()
				_ = firsts.RecordValue(min(first, time.Hour).Microseconds()) // within its bounds
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	secs := time.Since(begun).Seconds()
	if err := context.Cause(ctx); err != nil {
		return report.Run{}, err
	}
	if n := count.Load(); n < s.archived {
		return report.Run{}, fmt.Errorf("%d of %d archived records came", n, s.archived)
	}
	var run report.Run
	run.Add("records", "records/s", float64(count.Load())/secs)
	run.Add("values", "MB/s", float64(count.Load())*float64(t.b.Size)/1e6/secs)
	run.Add("stored", "MB/s", float64(s.bytes)/1e6/secs)
	run.Add("received", "MB/s", float64(size.Load())/1e6/secs)
	run.Add("first byte, p50", "ms", float64(firsts.ValueAtQuantile(50))/1e3)
	run.Add("first byte, max", "ms", float64(firsts.Max())/1e3)
	return run, nil
}

// stream reads a partition up to an offset, and returns the time from the request to
// its first byte too.
func (t *trial) stream(ctx context.Context, partition int, to int64) (count, size int64, first time.Duration, err error) {
	c, err := t.b.Target.Dial(ctx)
	if err != nil {
		return 0, 0, 0, err
	}
	defer c.Close()
	r := rawhttp.Request{Method: http.MethodGet, Path: topicPath(t.topic, fmt.Sprintf("/partitions/%d/records?from=0&to=%d", partition, to)), Accept: typeBatches}
	if t.b.NDJSON {
		r.Accept = "application/x-ndjson"
	}
	begun := time.Now()
	res, err := c.Stream(r)
	if err != nil {
		return 0, 0, 0, err
	}
	defer func() { _ = res.Body.Close() }() // how it ended is known by then
	if res.StatusCode != http.StatusOK {
		return 0, 0, 0, refused(r, res)
	}
	body := &firstByte{r: res.Body}
	if t.b.NDJSON {
		err = t.lines(body, func(value []byte) error {
			count++
			_, err := t.run.Check(value)
			return err
		})
		size = body.n
	} else {
		if count, size, err = storedBatches(body); err == nil && res.Trailer.Get("Tidemark-Resume-Offset") == "" {
			err = errors.New("the stream ends without its trailer: it broke off")
		}
	}
	return count, size, body.at.Sub(begun), err
}

// firstByte notes when the first byte came.
type firstByte struct {
	r  io.Reader
	n  int64
	at time.Time
}

// Read implements io.Reader.
func (f *firstByte) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if n > 0 && f.n == 0 {
		f.at = time.Now()
	}
	f.n += int64(n)
	return n, err
}

// plain reads the objects of a topic's archived segments by plain requests.
func (t *trial) plain(ctx context.Context, stage string, s shelf) error {
	if t.b.Store == nil {
		return nil
	}
	list, size, err := objects(ctx, t.b.Store, "t/"+s.id.String()+"/", isSegment)
	if err != nil {
		return err
	}
	if size < s.bytes {
		return fmt.Errorf("the archive at %s has %d bytes of the topic's segments, the node says %d: is it the node's archive?", t.b.Store.Capabilities().URL, size, s.bytes)
	}
	first, err := firstGets(ctx, t.b.Store, list)
	if err != nil {
		return err
	}
	took, err := plainGets(ctx, t.b.Store, list, func(done, total int64) { t.b.Progress(stage+": plain requests", done, total) })
	if err != nil {
		return err
	}
	var run report.Run
	run.Add("stored", "MB/s", float64(size)/1e6/took.Seconds())
	run.Add("objects", "", float64(len(list)))
	run.Add("bytes of an object", "MB", float64(size)/1e6/float64(len(list)))
	run.Add("64 KiB of an object, p50", "ms", float64(first.ValueAtQuantile(50))/1e3)
	t.b.into(plainReads, "closed loop, 8 at once", run)
	return nil
}

// compare notes the ratios of the last run.
func (t *trial) compare() {
	last := func(measure, figure string) float64 {
		for _, m := range t.b.rep.Measures {
			if m.Name != measure || len(m.Runs) == 0 {
				continue
			}
			for _, v := range m.Runs[len(m.Runs)-1].Values {
				if v.Name == figure {
					return v.Value
				}
			}
		}
		return 0
	}
	var run report.Run
	run.Add("second read / cold read", "", last(secondRead, "records")/last(coldRead, "records"))
	if t.b.Store != nil {
		run.Add("cold read / plain requests, stored bytes", "", last(coldRead, "stored")/last(plainReads, "stored"))
		run.Add("cold first byte / plain 64 KiB", "", last(coldRead, "first byte, p50")/last(plainReads, "64 KiB of an object, p50"))
	}
	t.b.into(compared, "ratios", run)
}

// lines hands out the values of a stream of lines, which are valid until take
// returns. It ends without an error only at the line that ends a stream.
func (t *trial) lines(src io.Reader, take func(value []byte) error) error {
	lines := bufio.NewReaderSize(src, 2*t.b.Size+64<<10)
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return fmt.Errorf("the stream broke off: %w", whole(err))
		}
		if bytes.HasPrefix(line, []byte(`{"end":true`)) {
			return nil
		}
		value, err := payload(line, t.b.Size, t.b.Kind)
		if err == nil {
			err = take(value)
		}
		if err != nil {
			return err
		}
	}
}

// refused makes an error of a stream's refusal.
func refused(r rawhttp.Request, res *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10)) // what came of it is shown
	a := rawhttp.Answer{Status: res.StatusCode, Header: res.Header, Body: body}
	return a.Refused(r, http.StatusOK)
}
