package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tidemark-mq/tidemark/api"
	"github.com/tidemark-mq/tidemark/node"
)

// live is a whole node in this process, which all tests share.
type live struct {
	dir    string
	node   *node.Node
	api    *api.Server
	served chan error
	addr   string
}

var theNode = sync.OnceValues(func() (l *live, err error) {
	l = &live{served: make(chan error, 1)}
	if l.dir, err = os.MkdirTemp("", "tidemark-client"); err != nil {
		return nil, err
	}
	if l.node, err = node.Open(context.Background(), node.Options{Dir: filepath.Join(l.dir, "data"), NodeID: "n1", RaftAddr: "127.0.0.1:0", DiskReserve: 1}); err != nil {
		return nil, err
	}
	started = l
	if l.api, err = api.New(l.node, api.Options{}); err != nil {
		return l, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return l, err
	}
	l.addr = ln.Addr().String()
	go func() { l.served <- l.api.Serve(ln) }()
	return l, nil
})

var started *live // nil when no test needed it

func (l *live) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return errors.Join(l.api.Shutdown(ctx), <-l.served, l.node.Close(), os.RemoveAll(l.dir))
}

// NodeAddress is the address of a node for the examples.
func NodeAddress() string {
	l, err := theNode()
	if err != nil {
		panic(err)
	}
	return "http://" + l.addr
}

// TestMain also waits for every goroutine that a test started: nothing of this
// package may outlive its Close.
func TestMain(m *testing.M) {
	code := m.Run()
	if started != nil {
		if err := started.stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the node:", err)
			code = 1
		}
	}
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// rig is a client of the shared node through a proxy that does what a test wants.
type rig struct {
	t     *testing.T
	c     *Client
	topic string
	url   string

	mu    sync.Mutex
	fault func(r *http.Request) fault             // nil: everything is passed on
	watch func(encoding string, size int64) fault // of batches; nil: nobody watches
}

// fault is what happens to one request.
type fault struct {
	status    int // answered in place of the node
	header    http.Header
	loseFirst bool          // the connection is cut before the node sees the request
	loseAfter bool          // the node acts on it; its answer is lost
	cutAfter  int           // bytes of the answer that arrive before the cut; 0: all
	hold      chan struct{} // the answer waits for it
}

// through returns a rig with a topic of its own and one partition, unless spec
// says something else.
func through(t *testing.T, o Options, spec TopicSpec) *rig {
	t.Helper()
	l, err := theNode()
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, topic: strings.NewReplacer("/", "-", " ", "-", ",", "-", "#", "-").Replace(t.Name())}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { r.serve(l.api.Handler(), w, req) }))
	r.url = s.URL
	if o.Retry == (Retry{}) {
		o.Retry = Retry{Pause: time.Millisecond, MaxPause: 20 * time.Millisecond}
	}
	if r.c, err = New(s.URL, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.c.CloseIdleConnections()
		s.Close()
	})
	one := uint32(1)
	if spec.Partitions == nil {
		spec.Partitions = &one
	}
	spec.Name = r.topic
	if _, err := r.c.CreateTopic(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	return r
}

// on has f decide about requests whose path ends like that; nil: no more.
func (r *rig) on(suffix string, f func(n int) fault) {
	n := 0
	r.mu.Lock()
	defer r.mu.Unlock()
	if f == nil {
		r.fault = nil
		return
	}
	r.fault = func(req *http.Request) fault {
		if !strings.HasSuffix(req.URL.Path, suffix) {
			return fault{}
		}
		n++
		return f(n)
	}
}

func (r *rig) serve(h http.Handler, w http.ResponseWriter, req *http.Request) {
	var f fault
	r.mu.Lock()
	if r.fault != nil {
		f = r.fault(req)
	}
	if r.watch != nil && strings.HasSuffix(req.URL.Path, "/batch") {
		f = r.watch(req.Header.Get("Content-Encoding"), req.ContentLength)
	}
	r.mu.Unlock()
	switch {
	case f.loseFirst:
		panic(http.ErrAbortHandler)
	case f.status > 0:
		for name, values := range f.header {
			w.Header()[name] = values
		}
		w.WriteHeader(f.status)
	case f.loseAfter:
		h.ServeHTTP(httptest.NewRecorder(), req)
		panic(http.ErrAbortHandler)
	default:
		if f.hold != nil {
			select {
			case <-f.hold:
			case <-req.Context().Done():
				return
			}
		}
		if f.cutAfter > 0 {
			w = &cutting{ResponseWriter: w, left: f.cutAfter}
		}
		h.ServeHTTP(w, req)
	}
}

// cutting is an answer that breaks off.
type cutting struct {
	http.ResponseWriter
	left int
}

func (c *cutting) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *cutting) Write(p []byte) (int, error) {
	if len(p) >= c.left {
		_, _ = c.ResponseWriter.Write(p[:c.left])
		_ = http.NewResponseController(c.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	c.left -= len(p)
	return c.ResponseWriter.Write(p)
}

// values reads the whole log of a partition.
func (r *rig) values(partition uint32) (out []string) {
	r.t.Helper()
	for rec, err := range r.c.Replay(r.t.Context(), r.topic, partition, ReplayOptions{}) {
		if err != nil {
			r.t.Fatal(err)
		}
		out = append(out, string(rec.Value))
	}
	return out
}

// soon fails the test unless what holds within a minute.
func soon(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}
