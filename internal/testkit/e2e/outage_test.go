package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/tidemark-mq/tidemark/internal/testkit/history"
)

const (
	outageRate  = 1000                   // records a second, far below what a broker can take
	outageShort = 6 * time.Second        // without TIDEMARK_OUTAGE
	sampleEvery = 250 * time.Millisecond // of what the broker says about itself
	rssMost     = 1 << 30
	filesMost   = 1000
)

// outageFlags are nearer to a broker in production than busyArchive.
var outageFlags = []string{
	"--segment-bytes", "8MiB", "--seal-age", "2s", "--seal-min-bytes", "1", "--wal-interval", "1s",
	"--wal-max-bytes", "256MiB", "--disk-reserve", "1MiB",
}

// outageLength is how long the archive is away.
func outageLength(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("TIDEMARK_OUTAGE")
	if text == "" {
		return outageShort
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second {
		t.Fatalf("TIDEMARK_OUTAGE=%q is no length of an outage", text)
	}
	return d
}

// phase is what was seen of a broker during one part of the test.
type phase struct {
	name     string
	took     time.Duration
	produced float64 // records a second
	acked    float64
	rpo      float64 // seconds, most
	frames   float64 // of the log that are not shipped, most
	waiting  float64 // bytes of segments that are not uploaded, most
	rss      int64   // bytes, most
	files    int     // open, most
	degraded int     // samples of /readyz that complained about the archive
	samples  int
	notReady int
}

// The archive's process is gone for TIDEMARK_OUTAGE, under a load at a fixed
// rate: hot produce and consume go on at that rate, the lag is in /metrics and
// the reason in /readyz, which stays 200; memory and open files stay bounded.
// When the archive is back the node catches up by itself and nothing was lost,
// neither on the disk nor in the bucket (I15, B184). `make outage` runs it for
// ten minutes and prints the table.
func TestOutage(t *testing.T) {
	length := outageLength(t)
	around := min(max(length/5, 4*time.Second), time.Minute)
	s3, url, env := s3Archive(t)
	r := newRig(t, url, env, outageFlags)
	r.rate, r.apart = outageRate, true
	r.start(0)
	r.create(topic)
	l := r.startLoad()
	eventually(t, stepMax, "records are archived", func() (bool, string) { return l.archived.Load() > 10, errorsOf(l) })

	before := r.watch(l, "before", func(took time.Duration, _ *phase) bool { return took >= around })
	s3.Kill()
	during := r.watch(l, "during", func(took time.Duration, _ *phase) bool { return took >= length })
	s3.Restart()
	calm := 0
	catching := r.watch(l, "catching up", func(took time.Duration, p *phase) bool {
		if p.rpo < 3 && p.waiting < 64<<20 && p.degraded == 0 {
			calm++
		} else {
			calm = 0
		}
		// What follows is only about the newest sample.
		p.rpo, p.waiting, p.degraded = 0, 0, 0
		if took > length+stepMax {
			t.Fatalf("the archive is back for %s and the node has not caught up", took)
		}
		return calm >= 4
	})
	catching.rpo, catching.waiting = 0, 0 // see above: of no use
	after := r.watch(l, "after", func(took time.Duration, _ *phase) bool { return took >= around })
	printPhases(before, during, catching, after)

	// A machine that does other things too needs a longer look than some seconds.
	within := 0.10
	if around < 10*time.Second {
		within = 0.5
	}
	for p, within := range map[*phase]float64{during: within, after: within, catching: 0.5} { // what waited shares disk and cores
		if p.produced < before.produced*(1-within) || p.acked < before.acked*(1-within) {
			t.Errorf("%s: %.0f records/s produced and %.0f acked, %.0f and %.0f before", p.name, p.produced, p.acked, before.produced, before.acked)
		}
	}
	for _, p := range []*phase{before, during, catching, after} {
		if p.rss > rssMost || p.files > filesMost || p.notReady > 0 {
			t.Errorf("%s: %d MiB resident, %d open files, not ready in %d of %d samples", p.name, p.rss>>20, p.files, p.notReady, p.samples)
		}
	}
	if during.rpo < length.Seconds()/2 || during.frames == 0 || during.degraded < during.samples/2 {
		t.Errorf("an outage of %s shows as a lag of %.0f s and %.0f frames, and in %d of %d samples of /readyz", length, during.rpo, during.frames, during.degraded, during.samples)
	}
	if after.degraded > 0 || after.rpo > 5 {
		t.Errorf("after the outage: a lag of %.1f s, %d complaints", after.rpo, after.degraded)
	}

	r.kill()
	l.stop()
	r.history.Cut(history.Cut{})
	r.start(stepMax)
	r.check("after a kill")
	r.waitRandom(archiveLag+time.Second, archiveLag+2*time.Second)
	bound := r.history.Now() - archiveLag
	r.kill()
	r.history.Cut(history.Cut{DiskLost: true, Before: bound})
	r.restore()
	r.start(readyMax)
	r.check("after a restore")
	r.drain()
	r.verifyBucket()
}

// watch samples the broker until done says so.
func (r *rig) watch(l *load, name string, done func(time.Duration, *phase) bool) *phase {
	r.t.Helper()
	p := &phase{name: name}
	began, records, acked := time.Now(), l.records.Load(), l.acked.Load()
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-r.node.Done():
			r.t.Fatalf("the broker ended by itself with %d\n%s", r.node.ExitCode(), r.node.Stderr())
		}
		r.sample(p)
		p.took = time.Since(began)
		if done(p.took, p) {
			break
		}
	}
	p.produced = float64(l.records.Load()-records) / p.took.Seconds()
	p.acked = float64(l.acked.Load()-acked) / p.took.Seconds()
	return p
}

func (r *rig) sample(p *phase) {
	r.t.Helper()
	p.samples++
	ready, err := r.node.Ready(limited(r.t))
	if err != nil {
		r.t.Fatalf("%s: readiness: %v", p.name, err)
	}
	if !ready.Ready {
		p.notReady++
	}
	if strings.Contains(strings.Join(ready.Degraded, " "), "archive: ") {
		p.degraded++
	}
	m := r.metrics()
	p.rpo, p.frames = max(p.rpo, m["tidemark_ship_rpo_seconds"]), max(p.frames, m["tidemark_ship_lag_frames"])
	p.waiting = max(p.waiting, m["tidemark_archive_waiting_bytes"])
	p.rss = max(p.rss, residentBytes(r.t, r.node.PID()))
	if files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.node.PID())); err == nil {
		p.files = max(p.files, len(files))
	}
}

// metrics returns the samples without labels of /metrics.
func (r *rig) metrics() map[string]float64 {
	r.t.Helper()
	req, err := http.NewRequestWithContext(limited(r.t), http.MethodGet, r.node.Base+"/metrics", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := r.node.HTTP().Do(req)
	if err != nil {
		r.t.Fatalf("metrics: %v", err)
	}
	defer resp.Body.Close()
	out := map[string]float64{}
	for scan := bufio.NewScanner(io.LimitReader(resp.Body, 16<<20)); scan.Scan(); {
		name, value, ok := strings.Cut(scan.Text(), " ")
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil {
			out[name] = v
		}
	}
	return out
}

// residentBytes is the memory of a process that is in RAM.
func residentBytes(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatal("the kernel does not say how much memory a process has")
	return 0
}

func printPhases(phases ...*phase) {
	w := table.NewWriter()
	w.SetOutputMirror(os.Stdout)
	w.AppendHeader(table.Row{"archive", "seconds", "produced/s", "acked/s", "lag s", "lag frames", "waiting MiB", "RSS MiB", "files", "degraded"})
	for _, p := range phases {
		w.AppendRow(table.Row{
			p.name, fmt.Sprintf("%.1f", p.took.Seconds()), fmt.Sprintf("%.0f", p.produced), fmt.Sprintf("%.0f", p.acked),
			fmt.Sprintf("%.1f", p.rpo), fmt.Sprintf("%.0f", p.frames), fmt.Sprintf("%.1f", p.waiting/(1<<20)),
			p.rss >> 20, p.files, fmt.Sprintf("%d of %d", p.degraded, p.samples),
		})
	}
	w.Render()
}
