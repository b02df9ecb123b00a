package segment

import (
	"bytes"
	"io"
	"sync"
	"testing"
)

// Readers run beside appends, syncs, parking and the seal: each sees whole
// batches, exactly those appended when it looked (run under the race detector).
func TestReadersBesideTheWriter(t *testing.T) {
	fs := newFS(t)
	w := mustCreate(t, fs)
	batches := someBatches(t, newRand(50), testOptions.Base, 200)
	whole := bytes.Join(batches, nil)
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for last := false; !last; {
				select {
				case <-done:
					last = true // and look once more at everything
				default:
				}
				r := w.Reader()
				var got []byte
				s := r.Scan(0, nil)
				for {
					b, _, err := s.Next()
					if err == io.EOF {
						break
					}
					if err != nil {
						t.Error(err)
						return
					}
					got = append(got, b...)
				}
				if !bytes.HasPrefix(whole, got) || last && len(got) != len(whole) {
					t.Errorf("%d bytes of %d", len(got), len(whole))
					return
				}
			}
		})
	}
	for i, b := range batches {
		mustAppend(t, w, b)
		if i%10 == 9 {
			if err := w.Park(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := w.Seal(); err != nil {
		t.Fatal(err)
	}
	close(done)
	wg.Wait()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}
