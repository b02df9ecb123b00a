package e2e

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/api/client"
	"github.com/tidemark-mq/tidemark/internal/broker"
)

const (
	idleConnections = 10_000
	waitingCalls    = 5_000
	// What one idle connection may cost in resident memory.
	idleBytes = 64 << 10
)

// descriptors makes sure that this process, and those that it starts, may open
// n files.
func descriptors(t *testing.T, n uint64) {
	t.Helper()
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		t.Fatal(err)
	}
	if l.Cur >= n {
		return
	}
	l.Cur, l.Max = n, max(n, l.Max)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		t.Fatalf("this test needs %d file descriptors: raise the hard limit (ulimit -Hn): %v", n, err)
	}
}

// Ten thousand connections that made a request and are idle now cost little
// memory each, no processor, and nobody else's time.
func TestIdleConnections(t *testing.T) {
	descriptors(t, idleConnections+1000)
	r := crowded(t)
	alone := r.p99()
	before := r.usage()
	idle := r.gather(idleConnections, func(p *peer) error {
		status, _, err := p.ask("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("answered %d", status)
		}
		return err
	})
	if n := r.metric("tidemark_http_connections"); n < idleConnections {
		t.Fatalf("%v connections are open", n)
	}
	with := r.usage()
	each := (with.rss - before.rss) / idleConnections
	t.Logf("%d idle connections: %.1f KiB of resident memory each", idleConnections, float64(each)/1024)
	if each > idleBytes {
		t.Errorf("an idle connection costs %d bytes", each)
	}
	r.cheap("idle connections")
	r.notSlowed(alone)
	// Not one of them was cut off meanwhile.
	for i := 0; i < idleConnections; i += 997 {
		if status, _, err := idle.peers[i].ask("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil || status != http.StatusOK {
			t.Fatalf("idle connection %d: %d %v", i, status, err)
		}
	}
	idle.leave()
	eventually(t, stepMax, "their connections are gone", func() (bool, string) {
		n := r.metric("tidemark_http_connections")
		return n < 100, fmt.Sprint(n)
	})
}

// cheap watches the broker's processor time while nothing happens. A node has
// work of its own, once a second and less; one that polled for its clients
// would take whole processors.
func (r *rig) cheap(what string) {
	r.t.Helper()
	const (
		window = 3 * time.Second
		share  = 0.10 // of one processor
	)
	before := r.usage()
	pause(r.t.Context(), window)
	used := r.usage().cpu - before.cpu
	r.t.Logf("%s: %v of processor time in %v", what, used, window)
	if used > time.Duration(share*float64(window)) {
		r.t.Errorf("%s take %v of processor time in %v", what, used, window)
	}
}

// Five thousand consumers that wait cost no processor time. A record ends the
// wait of one of them, at once, and the others wait on.
func TestWaitingConsumers(t *testing.T) {
	descriptors(t, waitingCalls+1000)
	r := crowded(t)
	alone := r.p99()
	const quiet = "quiet" // where nothing comes
	r.create(quiet)
	before := r.usage()
	began := time.Now()
	waiting := r.gather(waitingCalls, func(p *peer) error {
		_, err := io.WriteString(p, post("/v1/topics/"+quiet+"/consume?wait=10s", ""))
		return err
	})
	eventually(t, stepMax, "all of them wait", func() (bool, string) {
		n := r.metric("tidemark_queue_waiters")
		return n == waitingCalls, fmt.Sprint(n)
	})
	gathered := time.Since(began)
	with := r.usage()
	t.Logf("%d waiting consumers: %.1f KiB of resident memory each", waitingCalls, float64(with.rss-before.rss)/waitingCalls/1024)
	r.cheap("waiting consumers")
	got := make(chan string, waitingCalls)
	var readers sync.WaitGroup
	for _, p := range waiting.peers {
		readers.Go(func() {
			if status, body, err := p.answer(); err == nil && status == http.StatusOK {
				got <- body
			}
		})
	}
	const records = 5
	for i := range records {
		if _, err := r.node.Produce(limited(t), quiet, broker.Record{Value: fmt.Append(nil, "wakes ", i)}, client.ProduceOptions{}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-got:
		case <-time.After(stepMax):
			t.Fatal("no waiting consumer was given the record")
		}
	}
	// Unless the waits began to end by themselves, all others wait on.
	if n := r.metric("tidemark_queue_waiters"); n != waitingCalls-records && time.Since(began) < 9*time.Second-gathered {
		t.Errorf("%v wait after %d records for %d", n, records, waitingCalls)
	}
	if n := len(got); n != 0 {
		t.Errorf("%d more consumers were given something", n)
	}
	r.notSlowed(alone)
	waiting.leave()
	readers.Wait()
}

// Sixty-four producers of records of 1 MiB: the broker's memory stays below a
// gigabyte, whatever they send.
func TestLargeRecordsKeepMemory(t *testing.T) {
	const (
		producers = 64
		most      = 1 << 30
	)
	r := crowded(t)
	value := make([]byte, 1<<20)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range value { // nothing that compresses
		value[i] = byte(rng.Uint32())
	}
	request := post("/v1/topics/"+topic+"/produce", string(value), "Content-Type: application/octet-stream")
	each := scale(t, 100)
	var refused atomic.Int64
	r.gather(producers, func(*peer) error { return nil }).all(func(p *peer) error {
		for stored := 0; stored < each; {
			status, body, err := p.ask(request)
			switch {
			case err == nil && status == http.StatusAccepted:
				stored++
			case err == nil && status == http.StatusServiceUnavailable: // the disk is slower than they are
				refused.Add(1)
				pause(t.Context(), 50*time.Millisecond)
			default:
				return fmt.Errorf("answered %d %.200s %v", status, body, err)
			}
		}
		return nil
	})
	u := r.usage()
	t.Logf("%d producers, %d MiB in all, %d refusals: at most %d MiB resident, %d MiB at the end", producers, producers*each, refused.Load(), u.peak>>20, u.rss>>20)
	if u.peak > most {
		t.Errorf("the broker took %d MiB", u.peak>>20)
	}
}
