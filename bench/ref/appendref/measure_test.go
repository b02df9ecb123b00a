package main

import (
	"path/filepath"
	"testing"
	"time"
)

// A short real run: whole blocks around a ring smaller than what is written,
// and numbers that fit each other.
func TestMeasure(t *testing.T) {
	o := options{file: filepath.Join(t.TempDir(), "ring"), size: 64 << 10, block: 16 << 10, duration: 50 * time.Millisecond}
	if err := o.validate(); err != nil {
		t.Fatal(err)
	}
	res, err := measure(o)
	if err != nil {
		t.Fatal(err)
	}
	if res.Appends == 0 || res.MBPerSec <= 0 || res.Block != o.block {
		t.Errorf("%+v: want appends and a rate", res)
	}
	if res.P50 > res.P90 || res.P90 > res.P99 || res.P99 > res.P999 || res.P999 > res.Max {
		t.Errorf("%+v: quantiles do not rise", res)
	}
}

// Quantiles and rate of known samples.
func TestSummarize(t *testing.T) {
	samples := make([]time.Duration, 1000)
	for i := range samples {
		samples[len(samples)-1-i] = time.Duration(i+1) * time.Millisecond
	}
	got := summarize(4096, samples, 2*time.Second)
	want := result{
		Block: 4096, Appends: 1000, Seconds: 2, MBPerSec: 2,
		Mean: 500.5, P50: 500, P90: 900, P99: 990, P999: 999, Max: 1000,
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// Each flag outside its bounds is refused, and a good set is not.
func TestValidate(t *testing.T) {
	good := options{file: "f", size: 1 << 20, block: 4096, duration: time.Second}
	if err := good.validate(); err != nil {
		t.Errorf("%+v: %v", good, err)
	}
	for name, edit := range map[string]func(*options){
		"no file":        func(o *options) { o.file = "" },
		"block zero":     func(o *options) { o.block = 0 },
		"block odd":      func(o *options) { o.block = 4097 },
		"block large":    func(o *options) { o.block, o.size = maxBlock+4096, 1<<40 },
		"ring small":     func(o *options) { o.size = 4095 },
		"no duration":    func(o *options) { o.duration = 0 },
		"long duration":  func(o *options) { o.duration = maxDuration + 1 },
		"warmup below 0": func(o *options) { o.warmup = -1 },
	} {
		o := good
		edit(&o)
		if o.validate() == nil {
			t.Errorf("%s: %+v was accepted", name, o)
		}
	}
}
