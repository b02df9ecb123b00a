package node

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/api"
	"github.com/tidemark-mq/tidemark/internal/broker"
)

// syncClock is a file system that notes when the last sync of a file of the log
// ended.
type syncClock struct {
	vfs.FS
	last *atomic.Int64 // nanoseconds since begun
}

var begun = time.Now()

func (c syncClock) Create(name string, w vfs.DiskWriteCategory) (vfs.File, error) {
	return c.wrap(name)(c.FS.Create(name, w))
}

func (c syncClock) OpenReadWrite(name string, w vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	return c.wrap(name)(c.FS.OpenReadWrite(name, w, o...))
}

func (c syncClock) wrap(name string) func(vfs.File, error) (vfs.File, error) {
	return func(f vfs.File, err error) (vfs.File, error) {
		if err != nil || filepath.Base(filepath.Dir(name)) != "wal" {
			return f, err
		}
		return clockedFile{f, c.last}, nil
	}
}

type clockedFile struct {
	vfs.File
	last *atomic.Int64
}

func (f clockedFile) SyncData() error {
	err := f.File.SyncData()
	f.last.Store(int64(time.Since(begun)))
	return err
}

// delivery is a node behind its HTTP plane with one consumer that waits, and a
// producer.
type delivery struct {
	tb       testing.TB
	synced   atomic.Int64
	consumer *bufio.Reader
	conn     net.Conn
	produce  func() error
}

func newDelivery(tb testing.TB) *delivery {
	tb.Helper()
	d := &delivery{tb: tb}
	n, err := Open(context.Background(), Options{
		Dir: tb.TempDir(), NodeID: "node-1", RaftAddr: "127.0.0.1:0", DiskReserve: 1, FS: syncClock{vfs.Default, &d.synced},
	})
	if err != nil {
		tb.Fatal(err)
	}
	one := uint32(1)
	if _, err := n.CreateTopic(context.Background(), broker.TopicSpec{Name: "orders", Partitions: &one}); err != nil {
		tb.Fatal(err)
	}
	s, err := api.New(n, api.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	if d.conn, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		tb.Fatal(err)
	}
	d.consumer = bufio.NewReader(d.conn)
	d.produce = func() error {
		_, err := n.Produce(context.Background(), broker.ProduceRequest{Topic: "orders", Records: []broker.NewRecord{{Partition: -1, Value: make([]byte, 1024)}}})
		return err
	}
	tb.Cleanup(func() {
		d.conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		for _, err := range []error{s.Shutdown(ctx), <-served, n.Close()} {
			if err != nil {
				tb.Error(err)
			}
		}
	})
	return d
}

// once lets the consumer wait, produces a record, and returns the time from the
// end of the log's sync to the consumer's having the record.
func (d *delivery) once(parked func()) time.Duration {
	d.tb.Helper()
	if _, err := io.WriteString(d.conn, "POST /v1/topics/orders/consume?wait=10s HTTP/1.1\r\nHost: x\r\nX-Tidemark-Client: t\r\nAccept: application/octet-stream\r\nContent-Length: 0\r\n\r\n"); err != nil {
		d.tb.Fatal(err)
	}
	parked()
	produced := make(chan error, 1)
	go func() { produced <- d.produce() }()
	res, err := http.ReadResponse(d.consumer, nil)
	if err != nil {
		d.tb.Fatal(err)
	}
	defer res.Body.Close()
	value, err := io.ReadAll(res.Body)
	took := time.Since(begun) - time.Duration(d.synced.Load())
	if err != nil || res.StatusCode != http.StatusOK || len(value) != 1024 {
		d.tb.Fatalf("%d, %d bytes, %v", res.StatusCode, len(value), err)
	}
	if err := <-produced; err != nil {
		d.tb.Fatal(err)
	}
	return took
}

// settled gives the consumer's request time to be a waiting one.
func settled() {
	t := time.NewTimer(2 * time.Millisecond)
	<-t.C
}

func percentiles(took []time.Duration) (p50, p99 time.Duration) {
	slices.Sort(took)
	return took[len(took)/2], took[len(took)*99/100]
}

// A consumer that waits has a record at once when it is durable: nobody polls,
// and no timer plays a part. BenchmarkDelivery has the figure; the bound here is
// for machines that do other things too.
func TestDeliveredOnceDurable(t *testing.T) {
	d := newDelivery(t)
	took := make([]time.Duration, 100)
	for i := range took {
		took[i] = d.once(settled)
	}
	p50, p99 := percentiles(took)
	t.Logf("from the end of the sync to the consumer: p50 %v, p99 %v", p50, p99)
	if p50 > 20*time.Millisecond {
		t.Errorf("half of the records took more than %v from the end of their sync to a consumer that waited", p50)
	}
}

// BenchmarkDelivery is the time from the end of a record's sync to a consumer
// that waited for it, over HTTP.
func BenchmarkDelivery(b *testing.B) {
	d := newDelivery(b)
	var took []time.Duration
	for b.Loop() {
		took = append(took, d.once(settled))
	}
	p50, p99 := percentiles(took)
	b.ReportMetric(float64(p50.Nanoseconds())/1e3, "p50-us")
	b.ReportMetric(float64(p99.Nanoseconds())/1e3, "p99-us")
}
