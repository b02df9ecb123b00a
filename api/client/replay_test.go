package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// forms runs a test with both forms of a stream.
func forms(t *testing.T, f func(t *testing.T, lines bool)) {
	t.Run("frames", func(t *testing.T) { f(t, false) })
	t.Run("lines", func(t *testing.T) { f(t, true) })
}

// fill appends n records of some size to partition 0.
func (r *rig) fill(n int) {
	r.t.Helper()
	for at := 0; at < n; at += 500 {
		var recs []Record
		for i := at; i < min(n, at+500); i++ {
			recs = append(recs, Record{Key: []byte{0, byte(i)}, Value: []byte(fmt.Sprintf("%d %s", i, strings.Repeat("x", i%300)))})
		}
		if _, err := r.c.ProduceBatch(r.t.Context(), r.topic, recs, ProduceOptions{Ack: AckCommitted}); err != nil {
			r.t.Fatal(err)
		}
	}
}

// check fails unless the offsets are those from first to last, each once, with
// their values.
func (r *rig) check(got []Record, first, last int64) {
	r.t.Helper()
	if int64(len(got)) != last-first {
		r.t.Fatalf("%d records, want %d", len(got), last-first)
	}
	for i, rec := range got {
		want := first + int64(i)
		if rec.Offset != want || string(rec.Key) != string([]byte{0, byte(want)}) || !strings.HasPrefix(string(rec.Value), fmt.Sprintf("%d x", want)) && want%300 > 0 || rec.Timestamp == 0 {
			r.t.Fatalf("record %d is %+v, want offset %d", i, rec, want)
		}
	}
}

func (r *rig) replay(o ReplayOptions) (got []Record, err error) {
	for rec, err := range r.c.Replay(r.t.Context(), r.topic, 0, o) {
		if err != nil {
			return got, err
		}
		got = append(got, rec)
	}
	return got, nil
}

// A replay whose streams break off again and again, at any byte, before the node,
// or with a refusal, yields every record once and in order, from where it was told
// to where it was told.
func TestReplayGoesOn(t *testing.T) {
	forms(t, func(t *testing.T, lines bool) {
		r := through(t, Options{}, TopicSpec{})
		r.c.noFrames.Store(lines)
		const n = 3000
		r.fill(n)
		all := func(n int) fault {
			switch {
			case n > 60:
				return fault{}
			case n%5 == 1:
				return fault{status: 503}
			case n%5 == 2:
				return fault{loseFirst: true}
			default:
				return fault{cutAfter: 700 + 997*n%20011}
			}
		}
		from, to, above := int64(100), int64(2900), int64(n+1)
		for _, tc := range []struct {
			o           ReplayOptions
			first, last int64
		}{
			{ReplayOptions{}, 0, n},
			{ReplayOptions{From: &from, To: &to}, 100, 2900},
			{ReplayOptions{From: &from, Max: 1234}, 100, 1334},
			{ReplayOptions{At: time.Unix(1, 0)}, 0, n},
			{ReplayOptions{From: &to, To: &to}, 0, 0},
			{ReplayOptions{From: &from, To: &to, Follow: true}, 100, 2900},
			{ReplayOptions{Max: 700, Follow: true}, 0, 700},
		} {
			r.on("/records", all)
			got, err := r.replay(tc.o)
			if err != nil {
				t.Fatalf("%+v: %v", tc.o, err)
			}
			r.check(got, tc.first, tc.last)
		}
		if _, err := r.replay(ReplayOptions{From: &above}); !Is(err, OutOfRange) {
			t.Errorf("above the end: %v", err)
		}
		r.on("", nil)
		if _, err := r.c.Trim(t.Context(), r.topic, 0, 50); err != nil {
			t.Fatal(err)
		}
		zero := int64(0)
		if _, err := r.replay(ReplayOptions{From: &zero}); !Is(err, Gone) {
			t.Errorf("trimmed: %v", err)
		}
		n2 := 0
		for rec, err := range r.c.Replay(t.Context(), r.topic, 0, ReplayOptions{}) {
			if n2++; err != nil || rec.Offset != int64(49+n2) || n2 == 3 {
				break
			}
		}
		if n2 != 3 {
			t.Errorf("left early after %d", n2)
		}
	})
}

// Values come byte for byte in frames, also what looks like JSON.
func TestReplayIsExact(t *testing.T) {
	r := through(t, Options{}, TopicSpec{})
	odd := []Record{{Value: []byte(`"text"`)}, {Value: []byte(` {"a" : 1}`)}, {Value: []byte{0, 0xff}}, {Key: []byte{}, Value: []byte{}}}
	if _, err := r.c.ProduceBatch(t.Context(), r.topic, odd, ProduceOptions{Ack: AckCommitted}); err != nil {
		t.Fatal(err)
	}
	got, err := r.replay(ReplayOptions{})
	if err != nil || len(got) != len(odd) {
		t.Fatalf("%d records, %v", len(got), err)
	}
	msgs, err := r.c.Consume(t.Context(), r.topic, ConsumeOptions{Max: 10})
	if err != nil || len(msgs) != len(odd) {
		t.Fatalf("%d messages, %v", len(msgs), err)
	}
	for i := range odd {
		if string(got[i].Value) != string(odd[i].Value) || (got[i].Key == nil) != (odd[i].Key == nil) {
			t.Errorf("record %d: %q %v", i, got[i].Value, got[i].Key)
		}
		if string(msgs[i].Value) != string(odd[i].Value) || (msgs[i].Key == nil) != (odd[i].Key == nil) {
			t.Errorf("message %d: %q %v", i, msgs[i].Value, msgs[i].Key)
		}
	}
}

// A replay that follows yields what is appended while it runs, over cuts, and ends
// with its context.
func TestReplayFollows(t *testing.T) {
	forms(t, func(t *testing.T, lines bool) {
		r := through(t, Options{}, TopicSpec{})
		r.c.noFrames.Store(lines)
		const n = 1000
		r.on("/records", func(n int) fault { return fault{cutAfter: 20000 + n} })
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() { r.fill(n) })
		var got []Record
		var last error
		for rec, err := range r.c.Replay(ctx, r.topic, 0, ReplayOptions{Follow: true}) {
			if last = err; err != nil {
				break
			}
			if got = append(got, rec); len(got) == n {
				cancel()
			}
		}
		wg.Wait()
		if !Is(last, Canceled) {
			t.Errorf("the end: %v", last)
		}
		r.check(got, 0, n)
	})
}

// The stream of a node that stops ends in order; who follows goes on at its next
// life, and who does not has all. A node that stays away is given up after the
// time that was asked for.
func TestReplayOverARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life := 0
		c := inside(t, func(r *http.Request) (*http.Response, error) {
			if r.Header.Get("Accept") != mediaLines {
				return answer(415, `{"error":"no frames","code":"unsupported_type"}`)
			}
			from := r.URL.Query().Get("from")
			switch life++; life {
			case 1:
				return answer(200, `{"offset":3,"payload":1}`+"\n"+`{"end":true,"resume_offset":7}`+"\n")
			case 2, 3, 4:
				return nil, errCut
			case 5:
				if from != "7" {
					t.Errorf("went on at %s", from)
				}
				return answer(200, `{"offset":7,"payload":2}`+"\n"+`{"offset":8,"pay`)
			case 6:
				if from != "8" {
					t.Errorf("went on at %s", from)
				}
				return answer(200, `{"offset":8,"payload":3}`+"\n"+`{"offset":8,"payload":3}`+"\n")
			default:
				return nil, errCut
			}
		}, Retry{})
		var got []string
		var last error
		for rec, err := range c.Replay(t.Context(), "t", 0, ReplayOptions{Follow: true, Patience: 30 * time.Second}) {
			last = err
			got = append(got, fmt.Sprintf("%d:%s", rec.Offset, rec.Value))
		}
		// The node of the sixth life repeats an offset, which is no stream of a log.
		if fmt.Sprint(got) != "[3:1 7:2 8:3 0:]" || CodeOf(last).String() != "corrupt" {
			t.Errorf("%q %v", got, last)
		}
		life = 10
		began := time.Now()
		for _, err := range c.Replay(t.Context(), "t", 0, ReplayOptions{Patience: 30 * time.Second}) {
			if took := time.Since(began); !Is(err, Unavailable) || took < 30*time.Second || took > time.Minute {
				t.Errorf("after %s: %v", took, err)
			}
		}
	})
}

// A stream whose bytes stop arriving is broken, and taken up again.
func TestReplayOfASilentStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		c := inside(t, func(r *http.Request) (*http.Response, error) {
			res, err := answer(200, `{"offset":0,"payload":1}`+"\n"+`{"end":true,"resume_offset":1}`+"\n")
			if tries++; tries == 1 {
				res.Body = silent{r.Context()}
			}
			return res, err
		}, Retry{})
		began := time.Now()
		n := 0
		for _, err := range c.Replay(t.Context(), "t", 0, ReplayOptions{Patience: time.Hour}) {
			if n++; err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); n != 1 || tries != 2 || took < headerWait || took > 2*headerWait {
			t.Errorf("%d records, %d tries, %s", n, tries, took)
		}
	})
}

type silent struct{ ctx context.Context }

func (s silent) Read([]byte) (int, error) { <-s.ctx.Done(); return 0, context.Cause(s.ctx) }
func (s silent) Close() error             { return nil }

// A proxy that takes trailers off cannot make a whole stream look broken for ever:
// the log is asked for in lines instead.
func TestReplayWithoutTrailers(t *testing.T) {
	var asked []string
	c := inside(t, func(r *http.Request) (*http.Response, error) {
		asked = append(asked, r.Header.Get("Accept"))
		if len(asked) == 1 {
			return answer(200, "", "Content-Type", mediaFrames)
		}
		return answer(200, `{"end":true,"resume_offset":0}`+"\n", "Content-Type", mediaLines)
	}, Retry{})
	for _, err := range c.Replay(t.Context(), "t", 0, ReplayOptions{}) {
		t.Error(err)
	}
	if fmt.Sprint(asked) != fmt.Sprint([]string{mediaFrames, mediaLines}) {
		t.Error(asked)
	}
}

func frame(meta, value string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(meta)))
	b = binary.BigEndian.AppendUint32(append(b, meta...), uint32(len(value)))
	return append(b, value...)
}

// Frames are read whole or not at all: bytes that end within one are no end, and a
// length is not believed before its bytes are there.
func TestFrames(t *testing.T) {
	text := append(frame(`{"offset":7,"timestamp_ms":5,"key":"k","headers":[{"name":"h","value":"/w==","value_encoding":"base64"}]}`, "v\xff"), frame(`{"offset":8}`, "")...)
	first := len(text) - len(frame(`{"offset":8}`, ""))
	for end := range len(text) + 1 {
		f := frameReader{in: bufio.NewReader(bytes.NewReader(text[:end]))}
		n := 0
		var err error
		for err == nil {
			var m Message
			if m, err = f.next(); err == nil {
				if n++; n == 1 && (m.Offset != 7 || string(m.Value) != "v\xff" || string(m.Key) != "k" || m.Headers[0].Value[0] != 0xff) || n == 2 && (m.Offset != 8 || m.Value == nil) {
					t.Errorf("%+v", m)
				}
			}
		}
		want := io.ErrUnexpectedEOF
		if end == 0 || end == first || end == len(text) {
			want = io.EOF
		}
		if !errors.Is(err, want) || want == io.ErrUnexpectedEOF && errors.Is(err, io.EOF) {
			t.Errorf("%d of %d bytes: %v", end, len(text), err)
		}
	}
	for _, size := range []uint32{maxFrameMeta + 1, 1<<32 - 1} {
		f := frameReader{in: bufio.NewReader(bytes.NewReader(binary.BigEndian.AppendUint32(nil, size)))}
		if _, err := f.next(); !Is(err, Internal) || errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("a length of %d: %v", size, err)
		}
	}
	allocated := testing.AllocsPerRun(3, func() {
		f := frameReader{in: bufio.NewReader(bytes.NewReader(append([]byte{0, 0, 0, 2, '{', '}'}, 1, 0xff, 0xff, 0xff)))}
		if _, err := f.next(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Error(err)
		}
	})
	if allocated > 50 {
		t.Errorf("%v allocations for bytes that never came", allocated)
	}
}

// FuzzFrames reads whatever comes without a panic, and what it reads is what was
// there.
func FuzzFrames(f *testing.F) {
	f.Add(frame(`{"offset":7}`, "v"))
	f.Add([]byte{0, 0, 0, 2, '{', '}', 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := frameReader{in: bufio.NewReader(bytes.NewReader(b))}
		for size := 0; ; {
			m, err := r.next()
			if err != nil {
				return
			}
			if size += 8 + len(r.meta) + len(m.Value); size > len(b) {
				t.Fatalf("%d bytes of records out of %d", size, len(b))
			}
		}
	})
}
