// Package bench measures Tidemark against the least work that the machine has
// to do for the same result.
//
// Every figure is a ratio between two things that one run measured in turns,
// given as the median over the rounds with the lowest and the highest one: the
// machine drifts more between runs than most programs differ. docs/benchmarks.md
// records results and says how to repeat them; package ref beside this one holds
// the reference programs.
package bench
