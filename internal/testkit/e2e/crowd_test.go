package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// crowded is a broker without an archive, and what its clients share.
func crowded(t *testing.T, flags ...string) *rig {
	t.Helper()
	r := newRig(t, "none", nil, append([]string{"--disk-reserve", "1MiB"}, flags...))
	r.start(0)
	r.create(topic)
	return r
}

func (r *rig) addr() string { return strings.TrimPrefix(r.node.Base, "http://") }

// usage is what the kernel says of the broker's process.
type usage struct {
	cpu       time.Duration // of all its threads, in steps of 10 ms
	rss, peak int64         // resident bytes, now and at most
}

func (r *rig) usage() (u usage) {
	r.t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.node.PID()))
	if err != nil {
		r.t.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // from the third on
	const ticks = 100                                                         // a second, on every Linux
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			r.t.Fatalf("processor time of /proc/pid/stat: %v", err)
		}
		u.cpu += time.Duration(n) * time.Second / ticks
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.node.PID()))
	if err != nil {
		r.t.Fatal(err)
	}
	for name, to := range map[string]*int64{"\nVmRSS:": &u.rss, "\nVmHWM:": &u.peak} {
		_, rest, _ := strings.Cut(string(status), name)
		if _, err := fmt.Sscanf(rest, "%d kB", to); err != nil {
			r.t.Fatalf("%s of /proc/pid/status: %v", name, err)
		}
		*to <<= 10
	}
	return u
}

// held is how much of the broker's resident memory is in use: without garbage,
// and without free pages of the heap, which the system gets back in time. How
// much of those there is depends on when the collector ran last and on what lived
// then. The broker was started with --pprof-addr.
func (r *rig) held() int64 {
	r.t.Helper()
	for range 2 { // what pools hold outlives the first
		res, err := r.node.HTTP().Get(r.node.Profiles + "/debug/pprof/heap?gc=1")
		if err != nil {
			r.t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, res.Body)
		if err = errors.Join(err, res.Body.Close()); err != nil || res.StatusCode != http.StatusOK {
			r.t.Fatalf("collect the broker's garbage: %d %v", res.StatusCode, err)
		}
	}
	free := func() int64 {
		return int64(r.metric("go_memstats_heap_idle_bytes") - r.metric("go_memstats_heap_released_bytes"))
	}
	var held int64
	eventually(r.t, stepMax, "the heap gives nothing back while it is counted", func() (bool, string) {
		before, rss := free(), r.usage().rss
		after := free()
		held = rss - after
		return max(before-after, after-before) < 1<<20, fmt.Sprintf("%d bytes are free, then %d", before, after)
	})
	return held
}

// metric reads one series of the broker, as /metrics writes it.
func (r *rig) metric(series string) float64 {
	r.t.Helper()
	res, err := r.node.HTTP().Get(r.node.Base + "/metrics")
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	all, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(all), "\n"+series+" ")
	line, _, _ := strings.Cut(rest, "\n")
	v, err := strconv.ParseFloat(line, 64)
	if !ok || err != nil {
		r.t.Fatalf("metric %s: %q %v", series, line, err)
	}
	return v
}

// peer is a client that writes its requests by hand.
type peer struct {
	net.Conn
	r *bufio.Reader
}

// dial opens a connection to the broker. It lives until close.
func (r *rig) dial() (*peer, error) {
	nc, err := net.DialTimeout("tcp", r.addr(), stepMax)
	if err != nil {
		return nil, err
	}
	return &peer{nc, bufio.NewReaderSize(nc, 4096)}, nil
}

// answer reads one whole answer.
func (p *peer) answer() (status int, body string, err error) {
	res, err := http.ReadResponse(p.r, nil)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	all, err := io.ReadAll(res.Body)
	return res.StatusCode, string(all), err
}

// ask sends a request and reads its answer.
func (p *peer) ask(request string) (status int, body string, err error) {
	if _, err := io.WriteString(p, request); err != nil {
		return 0, "", err
	}
	return p.answer()
}

// post is a request with a body, from a client that names itself.
func post(path, body string, headers ...string) string {
	return "POST " + path + " HTTP/1.1\r\nHost: x\r\nX-Tidemark-Client: t\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n" +
		strings.Join(append(headers, ""), "\r\n") + "\r\n" + body
}

// crowd is a number of connections that are opened and closed together.
type crowd struct {
	t     *testing.T
	peers []*peer
}

// gather opens n connections and does something with each of them.
func (r *rig) gather(n int, begin func(p *peer) error) *crowd {
	r.t.Helper()
	c := &crowd{t: r.t, peers: make([]*peer, n)}
	r.t.Cleanup(c.leave)
	g, ctx := errgroup.WithContext(limited(r.t))
	g.SetLimit(scaleClients)
	for i := range c.peers {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			p, err := r.dial()
			if err != nil {
				return err
			}
			c.peers[i] = p
			return begin(p)
		})
	}
	if err := g.Wait(); err != nil {
		r.t.Fatal(err)
	}
	return c
}

// all does something with every connection at the same time.
func (c *crowd) all(do func(p *peer) error) {
	c.t.Helper()
	var g errgroup.Group
	for _, p := range c.peers {
		g.Go(func() error { return do(p) })
	}
	if err := g.Wait(); err != nil {
		c.t.Fatal(err)
	}
}

// leave closes all connections.
func (c *crowd) leave() {
	for _, p := range c.peers {
		if p != nil {
			_ = p.Close() // the broker may have been faster
		}
	}
	c.peers = nil
}

// politeRequests is what one measurement of a well-behaved client takes.
const politeRequests = 200

// p99 is how long a well-behaved client waits for its answers: one connection,
// one record a request, one after the other.
func (r *rig) p99() time.Duration {
	r.t.Helper()
	p, err := r.dial()
	if err != nil {
		r.t.Fatal(err)
	}
	defer p.Close()
	took := make([]time.Duration, politeRequests)
	for i := range took {
		began := time.Now()
		status, body, err := p.ask(post("/v1/topics/"+topic+"/produce", "a polite record"))
		if err != nil || status != http.StatusAccepted {
			r.t.Fatalf("a well-behaved client was answered %d %s %v", status, body, err)
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}

// The well-behaved client may be this much slower beside others than alone. A
// broker that lets others in its way is slower by orders of magnitude: it waits
// for a deadline of theirs, which are seconds.
const (
	slowerAtMost = 20
	slowerFloor  = 250 * time.Millisecond
)

// notSlowed measures the well-behaved client beside whoever is there now. The
// best of three counts: on a machine with other work one alone says nothing.
func (r *rig) notSlowed(alone time.Duration) {
	r.t.Helper()
	best := time.Hour
	for range 3 {
		best = min(best, r.p99())
		if best <= 2*alone {
			break
		}
	}
	r.t.Logf("p99 of a well-behaved client: %v alone, %v beside them", alone.Round(10*time.Microsecond), best.Round(10*time.Microsecond))
	if best > max(slowerAtMost*alone, slowerFloor) {
		r.t.Errorf("a well-behaved client was slowed from %v to %v", alone, best)
	}
}

// persist repeats do from n goroutines until the returned function is called,
// which returns when all have ended. The first error ends the test.
func persist(t *testing.T, n int, do func(ctx context.Context, who int) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for who := range n {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := do(ctx, who); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	once := sync.OnceFunc(func() { cancel(); all.Wait() })
	t.Cleanup(once)
	return once
}

// pause waits for d, or for the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
