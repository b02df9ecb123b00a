package load

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	longest = 10 * time.Minute // a latency is cut off there
	shards  = 8
	// MaxPoints bounds the points of a course; when there are more, two
	// neighbours become one.
	MaxPoints = 128
	firstStep = 100 * time.Millisecond
)

// Recorder collects latencies. It is safe for concurrent use.
type Recorder struct {
	shards [shards]shard
	course course
}

// shard keeps goroutines out of each other's way.
type shard struct {
	sync.Mutex
	all   *hdrhistogram.Histogram // in us
	step  *hdrhistogram.Histogram // since the last point
	ops   int64
	units int64
	bytes int64
	_     [64]byte
}

// NewRecorder returns an empty recorder.
func NewRecorder() *Recorder {
	r := &Recorder{course: course{step: firstStep}}
	for i := range r.shards {
		r.shards[i].all = hdrhistogram.New(1, longest.Microseconds(), 3)
		r.shards[i].step = hdrhistogram.New(1, longest.Microseconds(), 2)
	}
	return r
}

// Latency adds one latency. lane spreads callers: any number from 0 on.
func (r *Recorder) Latency(lane int, d time.Duration) { r.latencies(lane, d, 1) }

func (r *Recorder) latencies(lane int, d time.Duration, n int64) {
	us := min(max(d, 0), longest).Microseconds()
	s := &r.shards[lane%shards]
	s.Lock()
	defer s.Unlock()
	// Within its bounds a histogram takes everything.
	_ = s.all.RecordValues(us, n)
	_ = s.step.RecordValues(us, n)
}

// Done counts an operation that ended, with its records and bytes.
func (r *Recorder) Done(lane int, d Done) {
	s := &r.shards[lane%shards]
	s.Lock()
	defer s.Unlock()
	s.ops++
	s.units += int64(d.Records)
	s.bytes += d.Bytes
}

// Histogram returns all latencies, in microseconds.
func (r *Recorder) Histogram() *hdrhistogram.Histogram {
	sum := hdrhistogram.New(1, longest.Microseconds(), 3)
	for i := range r.shards {
		s := &r.shards[i]
		s.Lock()
		sum.Merge(s.all)
		s.Unlock()
	}
	return sum
}

// Totals returns what has ended until now.
func (r *Recorder) Totals() (ops, records, bytes int64) {
	for i := range r.shards {
		s := &r.shards[i]
		s.Lock()
		ops, records, bytes = ops+s.ops, records+s.units, bytes+s.bytes
		s.Unlock()
	}
	return ops, records, bytes
}

// Point is a stretch of the course of a run.
type Point struct {
	At      time.Duration // end of the stretch, since the measurement began
	Records float64       // a second
	P50     time.Duration // 0: nothing ended in it
	P99     time.Duration
}

// course is how a run went, in points that get longer as it does.
type course struct {
	step    time.Duration
	points  []Point
	records int64 // when the last point ended
	at      time.Duration
}

// Note ends a stretch, at that time since the measurement began, once it is as
// long as one has to be. One goroutine calls it.
func (r *Recorder) Note(at time.Duration) {
	c := &r.course
	length := at - c.at
	if length < c.step {
		return
	}
	sum := hdrhistogram.New(1, longest.Microseconds(), 2)
	for i := range r.shards {
		s := &r.shards[i]
		s.Lock()
		sum.Merge(s.step)
		s.step.Reset()
		s.Unlock()
	}
	_, records, _ := r.Totals()
	p := Point{At: at, Records: float64(records-c.records) / length.Seconds()}
	if sum.TotalCount() > 0 {
		p.P50 = time.Duration(sum.ValueAtQuantile(50)) * time.Microsecond
		p.P99 = time.Duration(sum.ValueAtQuantile(99)) * time.Microsecond
	}
	c.points, c.records, c.at = append(c.points, p), records, at
	if len(c.points) == MaxPoints {
		c.halve()
	}
}

// halve makes one point of each two. Of latencies the worse one stays.
func (c *course) halve() {
	for i := 0; i < len(c.points); i += 2 {
		a, b := c.points[i], c.points[i+1]
		c.points[i/2] = Point{At: b.At, Records: (a.Records + b.Records) / 2, P50: max(a.P50, b.P50), P99: max(a.P99, b.P99)}
	}
	c.points = c.points[:len(c.points)/2]
	c.step *= 2
}

// Course returns the points; Note must not be called any more.
func (r *Recorder) Course() []Point { return r.course.points }
