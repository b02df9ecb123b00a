package scrub

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore/count"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
)

// A round reads every file once, in order, and spreads them over the interval by
// their bytes; the next round begins when the interval is over, and nothing is
// read in between.
func TestRoundIsSpreadOverTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, false)
		r.add(0, 4)
		r.add(1, 6)
		r.o.Interval = 10 * time.Hour
		start := time.Now()
		stop := run(r.open())
		var at []time.Duration
		seen := 0
		for time.Since(start) < 12*time.Hour {
			time.Sleep(time.Minute)
			synctest.Wait()
			for range len(r.fs.opened()) - seen {
				at = append(at, time.Since(start))
				seen++
			}
		}
		stop()
		if len(at) < 11 || len(at) > 12 {
			t.Fatalf("%d reads in 12 h: %v", len(at), at)
		}
		for i, d := range at {
			if want := time.Duration(i) * time.Hour; i < 10 && (d < want || d > want+10*time.Minute) {
				t.Errorf("file %d was read at %s, want about %s", i, d, want)
			}
		}
		if at[10] < 10*time.Hour || at[10] > 10*time.Hour+10*time.Minute {
			t.Errorf("the second round began at %s", at[10])
		}
		first := r.fs.opened()[:10]
		if !slices.IsSorted(first) || len(slices.Compact(slices.Clone(first))) != 10 {
			t.Errorf("order %q", first)
		}
	})
}

// A restart goes on where the process before ended, with its numbers and at its
// pace; a place that is lost or damaged only begins the round again.
func TestPlaceSurvivesARestart(t *testing.T) {
	for _, damage := range []string{"", "lost", "{", `{"version":9}`, strings.Repeat("[", 1<<16)} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, false)
			r.add(0, 10)
			r.o.Interval = 10 * time.Hour
			stop := run(r.open())
			time.Sleep(3*time.Hour + 30*time.Minute)
			synctest.Wait()
			stop()
			before := len(r.fs.opened())
			switch damage {
			case "":
			case "lost":
				if err := r.fs.Remove("scrub.json"); err != nil {
					t.Fatal(err)
				}
			default:
				r.write("scrub.json", []byte(damage))
			}
			s := r.open()
			stop = run(s)
			time.Sleep(time.Minute)
			synctest.Wait()
			opened := r.fs.opened()
			if damage != "" {
				if len(opened) == before || opened[before] != opened[0] {
					t.Errorf("%.20q: the round did not begin again: %q", damage, opened[before:])
				}
			} else {
				if len(opened) != before {
					t.Error("a restart does not wait for its turn")
				}
				time.Sleep(7 * time.Hour)
				synctest.Wait()
				opened = r.fs.opened()
				if rep := s.Report(); len(slices.Compact(slices.Sorted(slices.Values(opened[:10])))) != 10 || rep.Local.Last.Segments != 10 {
					t.Errorf("one round read %q and counts %+v", opened, rep.Local)
				}
			}
			stop()
		})
	}
}

// No descriptors, and a store that does not answer for hours, are no damage:
// nothing is found, renamed or written; requests are few; when it is over what was
// not read is read (B61).
func TestWhatDoesNotAnswerIsNotDamaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, true)
		r.add(0, 3)
		r.o.Interval = 24 * time.Hour
		bad := fault.New(r.bytes, fault.Options{})
		calls := count.New(bad)
		r.store = calls
		down := bad.Down(errcode.Transient)
		r.fs.setFail(func(name string) error { return &os.PathError{Op: "open", Path: name, Err: syscall.EMFILE} })
		s := r.open()
		stop := run(s)
		time.Sleep(6 * time.Hour)
		synctest.Wait()
		if n := len(calls.Calls()); n != 1 || calls.Count("get_range") > 100 || len(r.fs.opened()) > 100 {
			t.Errorf("calls in 6 h without an answer: %v, opens: %d", calls.Calls(), len(r.fs.opened()))
		}
		down.Remove()
		r.fs.setFail(nil)
		time.Sleep(40 * time.Hour)
		synctest.Wait()
		stop()
		rep := s.Report()
		if rep.Unrepaired != 0 || len(rep.Repaired) != 0 || calls.Count("put") != 0 {
			t.Errorf("found %+v", rep)
		}
		if rep.Local.Last.Segments < 2 || rep.Archive.Last.Segments < 2 || rep.Local.Last.Unread > 1 || rep.Archive.Last.Unread > 1 {
			t.Errorf("local %+v, archive %+v", rep.Local.Last, rep.Archive.Last)
		}
	})
}

// A file that the disk does not give back, again and again, is damage: its bytes
// are lost, and the archive has them.
func TestBytesThatTheDiskLostAreFetched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, true)
		r.add(0, 3)
		r.o.Interval = time.Hour
		broken := true
		r.fs.setFail(func(name string) error {
			if broken && strings.HasSuffix(name, "10.seg") {
				return &os.PathError{Op: "read", Path: name, Err: syscall.EIO}
			}
			return nil
		})
		r.o.Mended = func(broker.PartitionID) { broken = false }
		s := r.open()
		stop := run(s)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		stop()
		if rep := s.Report(); len(rep.Repaired) != 1 || rep.Repaired[0].From != 10 || rep.Unrepaired != 0 {
			t.Errorf("%+v", rep)
		}
	})
}

// A tier that must be left alone is, and the other one goes on; the reason is in
// the report.
func TestBusyTierWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, true)
		r.add(0, 3)
		var mu sync.Mutex
		why := "the archive is away"
		r.o.Interval = time.Hour
		r.o.Busy = func() (string, string) { mu.Lock(); defer mu.Unlock(); return "", why }
		calls := count.New(r.bytes)
		r.store = calls
		s := r.open()
		stop := run(s)
		time.Sleep(50 * time.Minute)
		synctest.Wait()
		if len(r.fs.opened()) != 3 || calls.Count("get_range") != 0 || s.Report().Archive.Paused != why {
			t.Errorf("%d files were read, calls %v, report %+v", len(r.fs.opened()), calls.Calls(), s.Report().Archive)
		}
		mu.Lock()
		why = ""
		mu.Unlock()
		time.Sleep(50 * time.Minute)
		synctest.Wait()
		stop()
		if calls.Count("get_range") < 3 || s.Report().Archive.Paused != "" {
			t.Errorf("calls %v, report %+v", calls.Calls(), s.Report().Archive)
		}
	})
}

// While other work runs late a segment is read ever more slowly, and as fast as
// before when it does not; it never stops.
func TestPaceYields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := 5 * time.Millisecond
		p := newPace(32<<20, func() time.Duration { return late })
		took := func() time.Duration {
			start := time.Now()
			for range 64 {
				if err := p.spend(context.Background(), 1<<20); err != nil {
					t.Fatal(err)
				}
			}
			return time.Since(start)
		}
		took()
		if d := took(); d < 60*time.Second || d > 70*time.Second {
			t.Errorf("64 MiB beside late work took %s, want 64 s: a thirty-second of the rate", d)
		}
		late = 0
		took()
		took()
		if d := took(); d < 1900*time.Millisecond || d > 2200*time.Millisecond {
			t.Errorf("64 MiB beside nothing took %s, want 2 s", d)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := p.spend(ctx, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("a reading that was given up: %v", err)
		}
	})
}

// What is asked for goes first and at once, whatever the round does, also without
// rounds; a topic that is not here is refused; asking twice is asking once.
func TestAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, true)
		r.add(0, 2)
		r.add(1, 2)
		s := r.open()
		stop := run(s)
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := len(r.fs.opened()); n != 0 {
			t.Errorf("%d files were read without a round", n)
		}
		if err := s.Start("none", nil); !errcode.Is(err, errcode.NotFound) {
			t.Errorf("nothing: %v", err)
		}
		for range 3 {
			if err := s.Start("t", []broker.PartitionID{pid(1)}); err != nil {
				t.Fatal(err)
			}
		}
		if n := s.Asked()[pid(1).Topic]; n != 1 {
			t.Errorf("%d partitions are asked for", n)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		stop()
		if got := r.fs.opened(); len(got) != 2 || !strings.Contains(got[0], "topics/1") || len(s.Asked()) != 0 {
			t.Errorf("read %q, asked %v", got, s.Asked())
		}
	})
}

// The options are checked, and two scrubbers do not share a registry; metrics go
// when one is closed.
func TestOptions(t *testing.T) {
	if _, err := New(Options{}); !errcode.Is(err, errcode.Internal) {
		t.Errorf("no options: %v", err)
	}
	r := newRig(t, false)
	r.o.Interval = -1
	if _, err := New(r.o); !errcode.Is(err, errcode.InvalidArgument) {
		t.Errorf("negative interval: %v", err)
	}
	r.o.Interval = 0
	r.o.Registerer = prometheus.NewRegistry()
	s := r.open()
	if _, err := New(r.o); err == nil {
		t.Error("two in one registry")
	}
	s.Close()
	r.open().Close()
}

// What a crash left of a save, or a disk that became read-only before the rename,
// goes with the next start, before anything is saved (B66).
func TestUnfinishedSaveGoes(t *testing.T) {
	r := newRig(t, false)
	s := r.open()
	s.save(true)
	s.Close()
	r.write("scrub.json.tmp", []byte(`{"version":1,`))
	r.open().Close()
	if names, err := r.fs.List(""); err != nil || !slices.Contains(names, "scrub.json") || slices.Contains(names, "scrub.json.tmp") {
		t.Errorf("after a start there are %q: %v", names, err)
	}
}

// Findings and suspicions are bounded, however much is damaged (I12).
func TestBounds(t *testing.T) {
	r := newRig(t, false)
	s := r.open()
	for i := range 3000 {
		u := unit{tier: local, id: pid(0)}
		u.file.Base, u.file.Next, u.file.Path = int64(i), int64(i+1), fmt.Sprint(i)
		s.report(&u, "bad", outcome{done: "nothing"})
		s.Suspect(pid(1), int64(i))
		u.file.Base += 10000
		s.report(&u, "bad", mended("done"))
	}
	rep := s.Report()
	if rep.Unrepaired != maxOpen || len(rep.Findings) != maxListed || len(rep.Repaired) != maxRepaired || len(s.mu.suspects) != maxSuspects {
		t.Errorf("%d findings, %d listed, %d repaired, %d suspects", rep.Unrepaired, len(rep.Findings), len(rep.Repaired), len(s.mu.suspects))
	}
	s.save(true)
	if n := len(r.read("scrub.json")); n > maxFile {
		t.Errorf("a file of %d bytes", n)
	}
	s.Close()
	if s := r.open(); s.Report().Unrepaired != maxOpen {
		t.Errorf("%d findings after a restart", s.Report().Unrepaired)
	}
}
