package client

import (
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
)

// With Compress, bodies that are worth it go to a real node in zstd and come out
// of its log as they were; small ones and ones that do not get smaller go as they
// are. A node that does not take zstd gets plain bodies from then on.
func TestProducerCompresses(t *testing.T) {
	r := through(t, Options{}, TopicSpec{})
	var seen []string
	r.watch = func(encoding string, size int64) fault {
		seen = append(seen, fmt.Sprintf("%s %v", encoding, size < 1000))
		if len(seen) == 5 {
			return fault{status: 415}
		}
		return fault{}
	}
	p := producer(t, r.c, r.topic, ProducerOptions{Compress: true, Linger: -1})
	noise := make([]byte, 2000)
	_, _ = rand.Read(noise) // it never fails
	text := strings.Repeat("text ", 1000)
	values := []string{text, "small", string(noise), text + "2", text + "3", text + "4"}
	for _, v := range values {
		if _, err := send(t, p, v)[0].Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if want := "[zstd true,  true,  false, zstd true, zstd true,  false,  false]"; "["+strings.Join(seen, ", ")+"]" != want {
		t.Errorf("%q, want %s", seen, want)
	}
	if got := r.values(0); strings.Join(got, "|") != strings.Join(values, "|") {
		t.Errorf("%d values came back, or other ones", len(got))
	}
}
