package main

import (
	"io"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// bars shows the progress of long work on a terminal, one bar for each stage,
// and nothing elsewhere.
type bars struct {
	all *mpb.Progress // nil: not a terminal
	mu  struct {
		sync.Mutex
		stages map[string]*mpb.Bar
	}
}

// barsAfter is how long work takes that shows no bar.
const barsAfter = time.Second

func newBars(w io.Writer) *bars {
	b := &bars{}
	if isTerminal(w) {
		late := make(chan any)
		time.AfterFunc(barsAfter, func() { close(late) })
		b.all = mpb.New(mpb.WithOutput(w), mpb.WithWidth(48), mpb.WithRenderDelay(late))
		b.mu.stages = map[string]*mpb.Bar{}
	}
	return b
}

// progress says that done of total are done; it may be called concurrently.
func (b *bars) progress(stage string, done, total int64) {
	if b.all == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	bar := b.mu.stages[stage]
	if bar == nil {
		bar = b.all.AddBar(total,
			mpb.PrependDecorators(decor.Name(stage, decor.WCSyncSpaceR)),
			mpb.AppendDecorators(decor.Percentage(decor.WCSyncSpace), decor.Elapsed(decor.ET_STYLE_GO, decor.WCSyncSpace)))
		b.mu.stages[stage] = bar
	}
	bar.SetTotal(total, false)
	bar.SetCurrent(done)
}

// wait takes the bars off the terminal; ok says that the work came to its end.
func (b *bars) wait(ok bool) {
	if b.all == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, bar := range b.mu.stages {
		if ok {
			bar.SetTotal(-1, true)
		} else {
			bar.Abort(false)
		}
	}
	b.all.Wait()
}
