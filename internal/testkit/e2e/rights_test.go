package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/testkit/history"
)

// A gate stands in front of an S3 server and takes rights away, in the words of
// stores: a policy that forbids, and a key that nobody knows any more, which
// some answer with 404.
type gate struct {
	*httptest.Server
	closed atomic.Pointer[func(method string) (status int, code string)]
}

func newGate(t *testing.T, endpoint string) *gate {
	t.Helper()
	to, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	// The host stays the one that was signed.
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = to.Scheme, to.Host, r.In.Host
	}}
	g := &gate{}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refuse := g.closed.Load(); refuse != nil {
			if status, code := (*refuse)(r.Method); status != 0 {
				w.Header().Set("Content-Type", "application/xml")
				w.WriteHeader(status)
				fmt.Fprintf(w, `<?xml version="1.0"?><Error><Code>%s</Code><Message>as the test said</Message></Error>`, code)
				return
			}
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(g.Close)
	return g
}

// The rights to the bucket are taken away while the node runs: to write, to
// read, all of them, by a policy and by a key that is unknown, a 404 that must
// not be read as "there is no FENCE". Produce and consume go on, readiness says
// why, nothing is answered as archived meanwhile; with the rights back the node
// goes on by itself, and the bucket has everything (I15, I16).
func TestRightsRevoked(t *testing.T) {
	t.Parallel() // it mostly waits for the archive
	s3, archive, env := s3Archive(t)
	g := newGate(t, s3.Endpoint)
	r := newRig(t, strings.Replace(archive, s3.Endpoint, g.URL, 1), env, shipping)
	r.apart = true
	r.start(0)
	r.create(topic)
	l := r.startLoad()
	eventually(t, stepMax, "records are archived", func() (bool, string) { return l.archived.Load() > 5, errorsOf(l) })
	for name, refuse := range map[string]func(string) (int, string){
		"writes forbidden": func(method string) (int, string) {
			if method != http.MethodGet && method != http.MethodHead {
				return http.StatusForbidden, "AccessDenied"
			}
			return 0, ""
		},
		"reads forbidden": func(method string) (int, string) {
			if method == http.MethodGet || method == http.MethodHead {
				return http.StatusForbidden, "AccessDenied"
			}
			return 0, ""
		},
		"reads with an unknown key": func(method string) (int, string) {
			if method == http.MethodGet || method == http.MethodHead {
				return http.StatusNotFound, "XAdminUserNotFound"
			}
			return 0, ""
		},
		"an unknown key": func(string) (int, string) { return http.StatusNotFound, "XAdminUserNotFound" },
		"an expired key": func(string) (int, string) { return http.StatusForbidden, "ExpiredToken" },
		"no bucket":      func(string) (int, string) { return http.StatusNotFound, "NoSuchBucket" },
	} {
		g.closed.Store(&refuse)
		eventually(t, stepMax, name+": readiness says it", func() (bool, string) {
			ready, err := r.node.Ready(limited(t))
			return err == nil && ready.Ready && strings.Contains(strings.Join(ready.Degraded, " "), "archive: "), strings.Join(ready.Degraded, " ")
		})
		archived, stored, acked := l.archived.Load(), l.stored.Load(), l.acked.Load()
		eventually(t, stepMax, name+": produce and consume go on", func() (bool, string) {
			return l.stored.Load() > stored+100 && l.acked.Load() > acked+100, errorsOf(l)
		})
		if now := l.archived.Load(); now > archived+1 { // one was under way
			t.Errorf("%s: %d records were answered as archived", name, now-archived)
		}
		g.closed.Store(nil)
		archived = l.archived.Load()
		eventually(t, stepMax, name+" no more: ack=archived works again", func() (bool, string) {
			return l.archived.Load() > archived, errorsOf(l)
		})
		eventually(t, stepMax, name+" no more: nobody complains", func() (bool, string) {
			ready, err := r.node.Ready(limited(t))
			return err == nil && ready.Ready && len(ready.Degraded) == 0, strings.Join(ready.Degraded, " ")
		})
	}
	r.waitRandom(archiveLag+time.Second, archiveLag+2*time.Second)
	bound := r.history.Now() - archiveLag
	r.kill()
	l.stop()
	r.history.Cut(history.Cut{DiskLost: true, Before: bound})
	r.restore()
	r.start(readyMax)
	r.check("after a restore")
	r.drain()
	r.verifyBucket()
}
