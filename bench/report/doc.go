// Package report holds what a benchmark found, with everything that one needs to
// judge it: machine, versions, settings, every run and not only the best, and
// whether the records came back.
//
// A [Report] is plain data with a stable JSON form. HTML writes it as one file
// with charts that needs no network. No goroutines run.
package report
