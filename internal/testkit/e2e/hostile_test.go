package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// hostile is one way of being a bad client.
type hostile struct {
	name    string
	clients int
	// holds is what the broker may hold in memory for each of them.
	holds int64
	// once is one attempt of a client. It lasts until ctx ends, or is repeated.
	once func(ctx context.Context, r *rig, who int) error
}

// hostiles are bad clients that a broker must bear, all of them within its
// default limits: nothing here is refused for its number.
var hostiles = []hostile{
	// B22: headers that never end.
	{"slow headers", 500, 0, func(ctx context.Context, r *rig, _ int) error {
		return r.dribble(ctx, "POST /v1/topics/"+topic+"/produce HTTP/1.1\r\nHost: x\r\nX-Slow: ", "s")
	}},
	// B21: bodies of which a byte comes now and then.
	{"dribbled bodies", 500, 0, func(ctx context.Context, r *rig, _ int) error {
		return r.dribble(ctx, "POST /v1/topics/"+topic+"/produce HTTP/1.1\r\nHost: x\r\nX-Tidemark-Client: t\r\nContent-Length: 1048576\r\n\r\n", "b")
	}},
	// The same in chunks of one byte.
	{"dribbled chunks", 200, 0, func(ctx context.Context, r *rig, _ int) error {
		return r.dribble(ctx, "POST /v1/topics/"+topic+"/produce/batch HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\n1\r\n")
	}},
	// Readers of the log that take nothing of what they asked for: a record of
	// 1 MiB and its line wait for each of them.
	{"slow readers", 100, 3 << 20, func(ctx context.Context, r *rig, _ int) error {
		p, err := r.dial()
		if err != nil {
			return err
		}
		defer p.Close()
		if _, err := io.WriteString(p, "GET /v1/topics/"+large+"/partitions/0/records?from=0 HTTP/1.1\r\nHost: x\r\nAccept: application/x-ndjson\r\n\r\n"); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}},
	// Clients that have nothing more to say, and read: they are answered.
	{"half-closed", 50, 0, func(ctx context.Context, r *rig, _ int) error {
		pause(ctx, 5*time.Millisecond)
		p, err := r.dial()
		if err != nil {
			return err
		}
		defer p.Close()
		if _, err := io.WriteString(p, post("/v1/topics/"+topic+"/produce", "the last word")); err != nil {
			return err
		}
		if err := p.Conn.(*net.TCPConn).CloseWrite(); err != nil {
			return err
		}
		if status, body, err := p.answer(); err != nil || status != http.StatusAccepted {
			return fmt.Errorf("a half-closed client was answered %d %s %v", status, body, err)
		}
		return nil
	}},
	// Clients that leave at any moment: at once, in their headers, in their
	// body, before the answer.
	{"leavers", 50, 0, func(ctx context.Context, r *rig, who int) error {
		pause(ctx, 5*time.Millisecond)
		p, err := r.dial()
		if err != nil {
			return err
		}
		request := post("/v1/topics/"+topic+"/produce", "who leaves")
		_, err = io.WriteString(p, request[:who*len(request)/49])
		return errors.Join(err, p.Close())
	}},
	// B08, B10: bodies that are no JSON, numbers that nobody can expand.
	{"odd JSON", 8, 0, func(_ context.Context, r *rig, _ int) error {
		return r.expect(map[string]int{
			post("/v1/topics/"+topic+"/produce/batch", `{"messages":[{"payload":{"a":1e999999999}}]}`, "Content-Type: application/json"):  http.StatusAccepted,
			post("/v1/topics/"+topic+"/produce/batch?key_field=/a", `{"a":-1e-999999999}`, "Content-Type: application/x-ndjson"):          http.StatusAccepted,
			post("/v1/topics/"+topic+"/produce/batch", strings.Repeat(`[`, 60_000), "Content-Type: application/json"):                     http.StatusBadRequest,
			post("/v1/topics/"+topic+"/produce/batch", `{"messages":`+strings.Repeat(`[`, 60_000), "Content-Type: application/json"):      http.StatusBadRequest,
			post("/v1/topics/"+topic+"/produce/batch", "{\"messages\":[{\"payload\":\"\xc3\x28\"}]}", "Content-Type: application/json"):   http.StatusBadRequest,
			post("/v1/topics", "{} "+strings.Repeat("[", 60_000), "Content-Type: application/json"):                                       http.StatusBadRequest,
			post("/v1/topics/"+topic+"/ack", `{"receipt_handle":"`+strings.Repeat(`\u0000`, 5000)+`"}`, "Content-Type: application/json"): http.StatusBadRequest,
		})
	}},
	// B01, B18, B26, B242: keys, paths, methods and headers of any bytes, up to 1 MiB
	// of them in a buffer that doubles.
	{"odd bytes", 8, 2 << 20, func(_ context.Context, r *rig, _ int) error {
		return r.expect(map[string]int{
			post("/v1/topics/"+topic+"/produce?key=%00%FF%F0%9F%90%99", "x"):                                                                        http.StatusAccepted,
			post("/v1/topics/"+topic+"/produce?key=%zz", "x"):                                                                                       http.StatusBadRequest,
			post("/v1/topics/%ff%fe/produce", "x"):                                                                                                  http.StatusBadRequest,
			post("/v1/topics/../../etc/produce", "x"):                                                                                               0,
			"\xff\xfe / HTTP/1.1\r\nHost: x\r\n\r\n":                                                                                                0,
			strings.Repeat("M", 1024) + " / HTTP/1.1\r\nHost: x\r\n\r\n":                                                                            0,
			"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Big: " + strings.Repeat("a", 1<<20) + "\r\n\r\n":                                                 http.StatusRequestHeaderFieldsTooLarge,
			"GET /" + strings.Repeat("p/", 30_000) + " HTTP/1.1\r\nHost: x\r\n\r\n":                                                                 http.StatusNotFound,
			"POST /v1/topics HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\nx\r\n": http.StatusBadRequest,
		})
	}},
}

// large is a topic with more in it than the kernel buffers for a reader.
const large = "large"

// dribble sends begin and then one piece of more now and then, until the broker
// ends it or ctx does.
func (r *rig) dribble(ctx context.Context, begin, more string) error {
	p, err := r.dial()
	if err != nil {
		return err
	}
	defer p.Close()
	if _, err := io.WriteString(p, begin); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if _, err := io.WriteString(p, more); err != nil {
			return nil // the broker cut it off, as it should at some time
		}
		pause(ctx, 100*time.Millisecond)
	}
	return nil
}

// expect sends each request on a connection of its own. The answer has the
// status that is wanted, 0: any of the client's faults, and is JSON.
func (r *rig) expect(requests map[string]int) error {
	for request, want := range requests {
		p, err := r.dial()
		if err != nil {
			return err
		}
		status, body, err := p.ask(request)
		p.Close()
		switch {
		case err != nil:
			return fmt.Errorf("%.80q was not answered: %w", request, err)
		case status >= 500 && status != http.StatusNotImplemented && status != http.StatusHTTPVersionNotSupported, want > 0 && status != want, want == 0 && status < 400:
			return fmt.Errorf("%.80q was answered %d %.200s", request, status, body)
		case status >= 400 && !strings.HasPrefix(body, `{"error":`):
			return fmt.Errorf("%.80q was answered with %d and %.200q, no error of ours", request, status, body)
		}
	}
	return nil
}

// longForm is how long each kind of bad client stays: for seconds, or with
// TIDEMARK_SCALE=full until after every deadline of the broker's has passed.
func longForm() time.Duration {
	if os.Getenv("TIDEMARK_SCALE") == "full" {
		return 70 * time.Second
	}
	return 0
}

// While bad clients of one kind are at it, a well-behaved one is served as
// before, memory does not grow with what they do, and the log does not grow
// with their number (B09).
func TestHostileClients(t *testing.T) {
	descriptors(t, 4000)
	r := crowded(t, "--pprof-addr", "127.0.0.1:0")
	r.create(large)
	for range 32 {
		if status, body, err := r.once(post("/v1/topics/"+large+"/produce?partition=0", strings.Repeat("large ", 170_000))); err != nil || status != http.StatusAccepted {
			t.Fatal(status, body, err)
		}
	}
	for _, h := range hostiles {
		t.Run(h.name, func(t *testing.T) {
			r := &rig{t: t, node: r.node, options: r.options}
			alone := r.p99()
			before, log := r.held(), len(r.node.Stderr())
			var attempts atomic.Int64
			stop := persist(t, h.clients, func(ctx context.Context, who int) error {
				attempts.Add(1)
				return h.once(ctx, r, who)
			})
			eventually(t, stepMax, "they are at it", func() (bool, string) {
				n := attempts.Load()
				return n >= int64(h.clients), fmt.Sprint(n)
			})
			r.notSlowed(alone)
			pause(t.Context(), longForm())
			with := r.held()
			stop()
			const flat = 32 << 20 // what buffers, tails and stacks may come to
			t.Logf("%d clients, %d attempts: %d MiB before, %d MiB with them, %d MiB resident", h.clients, attempts.Load(), before>>20, with>>20, r.usage().rss>>20)
			if grown := with - before; grown > flat+int64(h.clients)*h.holds {
				t.Errorf("memory grew by %d MiB", grown>>20)
			}
			if n := len(r.node.Stderr()) - log; n > 8<<10 {
				t.Errorf("the log grew by %d bytes:\n%s", n, lastLines(r.node.Stderr()))
			}
			r.notSlowed(alone)
		})
	}
	if n := r.metric("tidemark_http_panics_total"); n != 0 {
		t.Errorf("%v handlers panicked", n)
	}
	eventually(t, stepMax, "the broker forgets them", func() (bool, string) {
		n := r.metric("tidemark_http_connections")
		return n < 50, fmt.Sprint(n)
	})
}

// once sends one request on a connection of its own.
func (r *rig) once(request string) (status int, body string, err error) {
	p, err := r.dial()
	if err != nil {
		return 0, "", err
	}
	defer p.Close()
	return p.ask(request)
}
