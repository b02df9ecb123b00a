package upload

import (
	"context"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/tier/objstore/count"
)

// Prices of S3 in its first region, dollars a request.
const (
	pricePut = 0.005 / 1000 // and LIST
	priceGet = 0.0004 / 1000
)

// Archiving full segments of 64 MiB costs at most 0.001 $/GiB in requests, the
// reading back and the checkpoints of the chain included; no LIST, no HEAD.
func TestPriceOfFullSegments(t *testing.T) {
	const segments, perGiB, most = 300, 16, 0.001
	fs := vfs.NewMem()
	counted := count.New(newStore().Store)
	n := newNode(&store{Store: counted})
	u := start(t, fs, n, nil)
	for i := range int64(segments) {
		enqueue(t, u, pid, seal(t, fs, pid, 10*i, 10, 10))
		n.wait(t, int(i)+1) // one at a time: the dearest way, no entry adds two
	}
	if err := u.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	puts, gets := counted.Count("put"), counted.Count("get")+counted.Count("get_range")
	price := (float64(puts)*pricePut + float64(gets)*priceGet) / segments * perGiB
	if price > most || counted.Count("list")+counted.Count("head")+counted.Count("delete") > 0 {
		t.Errorf("%d segments: %d PUT, %d GET, %d LIST, %d HEAD, %.6f $/GiB", segments, puts, gets, counted.Count("list"), counted.Count("head"), price)
	}
	t.Logf("%d segments: %d PUT, %d GET, %.6f $/GiB", segments, puts, gets, price)
}
