package s3

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/s3server"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Proves that a real S3 server passes the doctor, and that a wrong key is told in
// words.
func TestProbe(t *testing.T) {
	srv := s3server.Start(t)
	r, err := objstore.Probe(t.Context(), open(t, options(srv)), nil)
	if err != nil || !r.OK() {
		t.Errorf("%v, missing %q", err, r.Missing())
	}
	o := options(srv)
	o.AccessKeyID = "nobody"
	r, err = objstore.Probe(t.Context(), open(t, o), nil)
	if err != nil || r.OK() || !strings.Contains(strings.Join(r.Missing(), " "), "check the access key") {
		t.Errorf("wrong key: %v, missing %q", err, r.Missing())
	}
}

// Proves that uploads through the stack outlive a server that is killed again and
// again in the middle of them: each object is there once, whole, and create-only
// puts whose answers were lost know their own object.
func TestStackOutlivesKills(t *testing.T) {
	srv := s3server.Start(t)
	s := objstore.Stack(open(t, options(srv)), objstore.StackOptions{
		Retry:  objstore.RetryPolicy{Attempts: 200, Base: 10 * time.Millisecond, Most: 100 * time.Millisecond},
		Budget: objstore.NewRetryBudget(1000, 1000),
	})
	const writers, objects = 4, 12
	data := func(w, i int) []byte {
		return bytes.Repeat([]byte(fmt.Sprintf("writer %d object %d ", w, i)), 20_000)
	}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range objects {
				d := data(w, i)
				err := put(s, fmt.Sprintf("o/%d/%d", w, i), d, objstore.PutOptions{CreateOnly: true, CRC32C: crcOf(d)})
				if err != nil {
					t.Errorf("writer %d object %d: %v", w, i, err)
					return
				}
				if i%4 == 1 && w == 0 {
					srv.Kill()
					srv.Restart()
				}
			}
		})
	}
	wg.Wait()
	for w := range writers {
		for i := range objects {
			got, _, err := objstore.ReadAll(t.Context(), s, fmt.Sprintf("o/%d/%d", w, i), 1<<20)
			if err != nil || !bytes.Equal(got, data(w, i)) {
				t.Errorf("writer %d object %d: %d bytes, %v", w, i, len(got), err)
			}
		}
	}
}

// Proves that 64 parallel uploads whose first tries all meet SlowDown all finish,
// with two requests each and the same bytes. B181 B183.
func TestBurstThroughStack(t *testing.T) {
	p := newParts()
	seen := map[string]bool{}
	p.trip = func(w http.ResponseWriter, r *http.Request) bool {
		if first := !seen[r.URL.Path]; first {
			seen[r.URL.Path] = true
			answerError(w, 503, "SlowDown", "")
			return true
		}
		return false
	}
	f := newFake(t, p.answer)
	s := objstore.Stack(open(t, f.options()), objstore.StackOptions{Retry: objstore.RetryPolicy{Base: time.Millisecond}})
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			d := bytes.Repeat([]byte{byte(i)}, 10_000)
			if err := put(s, fmt.Sprintf("k%d", i), d, objstore.PutOptions{CreateOnly: true}); err != nil {
				t.Errorf("upload %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if n := len(f.requests()); n != 128 {
		t.Errorf("%d requests, want 128", n)
	}
	for i := range 64 {
		if got := p.objects[fmt.Sprintf("root/k%d", i)]; !bytes.Equal(got, bytes.Repeat([]byte{byte(i)}, 10_000)) {
			t.Errorf("object %d: %d bytes", i, len(got))
		}
	}
}

// Proves that torn and flipped answers through the stack are asked for again and
// never served. B202.
func TestTornAnswersThroughStack(t *testing.T) {
	p := newParts()
	s := objstore.Stack(open(t, newFake(t, p.answer).options()), objstore.StackOptions{Retry: objstore.RetryPolicy{Attempts: 3, Base: time.Millisecond}})
	data := bytes.Repeat([]byte("abc"), 50_000)
	if err := put(s, "k", data, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]errcode.Code{"cut": errcode.Transient, "flip": errcode.Corrupt} {
		tries := 0
		p.trip = func(http.ResponseWriter, *http.Request) bool {
			tries++
			p.cut, p.flip = name == "cut" && tries == 1, name == "flip" && tries == 1
			return false
		}
		if got, _, err := objstore.ReadAll(t.Context(), s, "k", 1<<20); err != nil || !bytes.Equal(got, data) || tries != 2 {
			t.Errorf("%s once: %d bytes, %v, %d tries", name, len(got), err, tries)
		}
		p.trip = nil
		p.cut, p.flip = name == "cut", name == "flip"
		if got, _, err := objstore.ReadAll(t.Context(), s, "k", 1<<20); !errcode.Is(err, want) {
			t.Errorf("%s always: %d bytes, %v", name, len(got), err)
		}
		p.cut, p.flip = false, false
	}
}
