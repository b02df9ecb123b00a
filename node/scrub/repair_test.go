package scrub

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
)

// An object that is damaged, or missing, is put again whatever fails on the way:
// each call to the store, with or without effect, puts that are acknowledged and
// not kept, or half, and the death of the process at each of them. In the end the chain names an object with the sealed bytes, and
// at no moment was an object deleted or the only good one given up: the damaged
// object stays for the collector, and is handed over only when nothing names it.
func TestRepairOfAnObjectAtEachStep(t *testing.T) {
	for _, kind := range []string{"damaged", "missing"} {
		for _, how := range []string{"fail", "lose the answer", "pretend", "tear", "die"} {
			steps := 0
			for n := 0; n <= steps; n++ {
				synctest.Test(t, func(t *testing.T) {
					name := fmt.Sprintf("%s, %s at call %d", kind, how, n)
					r := newRig(t, true)
					r.add(0, 3)
					key := r.listed(0)[1].Key()
					sealed := r.object(key)
					bad := flipped(sealed)
					if kind == "missing" {
						bad = nil
					}
					r.setObject(key, bad)
					bucket := fault.New(r.bytes, fault.Options{})
					r.store = bucket
					rule := fault.Rule{Skip: n, Times: 1, Do: fault.Fail}
					hold := make(chan struct{})
					switch how {
					case "lose the answer":
						rule.Do = fault.LoseAnswer
					case "pretend":
						rule.Do, rule.Ops, rule.Key = fault.Pretend, []string{fault.Put}, "*/s/*"
					case "tear":
						rule.Do, rule.Ops, rule.Key = fault.Tear, []string{fault.Put}, "*/s/*"
					case "die":
						rule = fault.Rule{Skip: n, Times: 1, Do: fault.LoseAnswer, Wait: hold}
					}
					bucket.Add(rule)
					s := r.open()
					start := func() func() {
						stop := run(s)
						if err := s.Start("t", []broker.PartitionID{pid(0)}); err != nil {
							t.Fatal(err)
						}
						time.Sleep(time.Minute)
						synctest.Wait()
						return stop
					}
					stop := start()
					if how == "die" {
						stop()
						close(hold)
						bucket.Clear()
						// What the next process knows of the chain is in the bucket.
						chain, err := manifest.Load(context.Background(), storeOf{r}, pid(0), 0)
						if err != nil {
							t.Fatal(err)
						}
						r.chains[pid(0)] = chain
						s = r.open()
						stop = start()
					}
					time.Sleep(time.Hour)
					synctest.Wait()
					stop()
					if n == 0 {
						steps = 12
					}
					list := r.listed(0)
					if len(list) != 3 || !bytes.Equal(r.object(list[1].Key()), sealed) {
						t.Fatalf("%s: the chain names %s, which has %d bytes", name, list[1].Key(), len(r.object(list[1].Key())))
					}
					if kind == "damaged" && (list[1].Key() == key || !bytes.Equal(r.object(key), bad)) {
						t.Errorf("%s: the damaged object was touched", name)
					}
					if kind == "missing" && how != "tear" && list[1].Key() != key { // half an object is in the way of the whole one
						t.Errorf("%s: the missing object has another key", name)
					}
					for _, x := range r.gone {
						if slices.Contains(list, x) {
							t.Errorf("%s: a named object was given up: %s", name, x.Key())
						}
					}
					if kind == "damaged" && (how == "fail" || how == "tear") && !slices.ContainsFunc(r.gone, func(x manifest.Segment) bool { return x.Key() == key }) {
						t.Errorf("%s: the damaged object was not handed to the collector", name)
					}
					if rep := s.Report(); rep.Unrepaired != 0 {
						t.Errorf("%s: %+v", name, rep.Findings)
					}
				})
			}
		}
	}
}

// A file that is damaged while the archive does not answer is fetched when it
// does, without another round, and is told of meanwhile.
func TestRepairWaitsForTheArchive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, true)
		r.add(0, 3)
		path := r.files[pid(0)][1].Path
		r.write(path, flipped(r.sealed[path]))
		bucket := fault.New(r.bytes, fault.Options{})
		r.store = bucket
		bucket.Down(errcode.Transient)
		s := r.open()
		stop := run(s)
		s.Suspect(pid(0), 10)
		time.Sleep(time.Hour)
		synctest.Wait()
		if rep := s.Report(); rep.Unrepaired != 1 || !strings.Contains(rep.Findings[0].Done, "as soon as possible") || s.Trouble() == nil {
			t.Errorf("meanwhile: %+v", rep)
		}
		bucket.Clear()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		stop()
		if rep := s.Report(); rep.Unrepaired != 0 || len(rep.Repaired) != 1 || !bytes.Equal(r.read(path), r.sealed[path]) || s.Trouble() != nil {
			t.Errorf("afterwards: %+v", rep)
		}
	})
}

// A confirmed file whose object was merged into a larger one is set aside once the
// larger one was verified, and not when that is bad too. A file that was never
// confirmed stays where it is.
func TestMergedCopy(t *testing.T) {
	for _, c := range []struct {
		name             string
		confirmed, whole bool
	}{{"whole", true, true}, {"bad", true, false}, {"never confirmed", false, true}} {
		synctest.Test(t, func(t *testing.T) {
			// The archive has two files' records in one object.
			r := newRig(t, true)
			r.add(0, 2)
			files := r.files[pid(0)]
			list := r.listed(0)
			out := mergedSegment(t, r, files)
			if err := r.chains[pid(0)].Replace(context.Background(), testOwner, list, out); err != nil {
				t.Fatal(err)
			}
			if !c.whole {
				r.setObject(out.Key(), flipped(r.object(out.Key())))
			}
			r.files[pid(0)][0].Confirmed = c.confirmed
			r.write(files[0].Path, flipped(r.sealed[files[0].Path]))
			s := r.open()
			stop := run(s)
			s.Suspect(pid(0), 0)
			time.Sleep(time.Minute)
			synctest.Wait()
			stop()
			rep := s.Report()
			if left := len(r.files[pid(0)]); c.confirmed && c.whole {
				if left != 1 || rep.Unrepaired != 0 || len(rep.Repaired) != 1 {
					t.Errorf("%s: %d files are left, %+v", c.name, left, rep)
				}
			} else if left != 2 || len(rep.Repaired) != 0 || rep.Unrepaired == 0 {
				t.Errorf("%s: %d files are left, %+v", c.name, left, rep)
			}
		})
	}
}

// A damaged object that a page of its chain lists cannot be replaced: the finding
// says which file to copy over it, and nothing is uploaded.
func TestPagedObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, true)
		r.add(0, 2)
		key := r.listed(0)[0].Key()
		r.setObject(key, flipped(r.object(key)))
		r.o.Archive = pagedArchive{r}
		s := r.open()
		stop := run(s)
		if err := s.Start("t", []broker.PartitionID{pid(0)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		stop()
		rep := s.Report()
		if rep.Unrepaired != 1 || rep.Findings[0].Key != key || !strings.Contains(rep.Findings[0].Done, r.files[pid(0)][0].Path) {
			t.Errorf("%+v", rep)
		}
		if page, err := r.bytes.List(context.Background(), manifest.PartitionPrefix(pid(0))+"s/", "", 0); err != nil || len(page.Objects) != 2 {
			t.Errorf("objects %+v, %v", page.Objects, err)
		}
	})
}

type pagedArchive struct{ *rig }

func (a pagedArchive) Own(context.Context, broker.PartitionID) (Chain, error) {
	return pagedChain{rigChain{a.chains[pid(0)]}}, nil
}

type pagedChain struct{ rigChain }

func (pagedChain) Paged(int64) bool { return true }

// Readers that meet one damaged file over and over cost one look, and a copy that
// was found good is not looked at again for a while.
func TestSuspicionsAreNotALoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, false)
		r.add(0, 2)
		r.write(r.files[pid(0)][0].Path, flipped(r.sealed[r.files[pid(0)][0].Path]))
		s := r.open()
		stop := run(s)
		var readers sync.WaitGroup
		for range 4 {
			readers.Go(func() {
				for range 500 {
					s.Suspect(pid(0), 0)
					s.Suspect(pid(0), 10)
					time.Sleep(time.Second)
				}
			})
		}
		readers.Wait()
		synctest.Wait()
		stop()
		// The damaged one twice, to be sure, at its first look; the good one once.
		if n := len(r.fs.opened()); n != 3 {
			t.Errorf("%d looks", n)
		}
	})
}

// What was damaged on its way, once, is not damaged: nothing is found and nothing
// is repaired (B61).
func TestOneLookIsNotEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, true)
		r.add(0, 2)
		bucket := fault.New(r.bytes, fault.Options{})
		r.store = bucket
		h := bucket.Add(fault.Rule{Ops: []string{fault.GetRange}, Times: 1, Do: fault.Flip})
		s := r.open()
		stop := run(s)
		if err := s.Start("t", []broker.PartitionID{pid(0)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		stop()
		if rep := s.Report(); h.Hits() != 1 || rep.Unrepaired != 0 || len(rep.Repaired) != 0 {
			t.Errorf("%d answers were damaged: %+v", h.Hits(), rep)
		}
	})
}
