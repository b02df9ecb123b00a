// Package sessions runs what the documents show: the commands of README.md and
// docs/tour.md, in order, on a node of their own, with their output compared;
// and the curl lines of docs/http-api.md, each of which must succeed.
//
// Everything is in its tests. What differs from run to run (times, ids, receipt
// handles, rates, directories) is replaced on both sides before the comparison.
// Commands run in bash, in a directory of their own that has bin/tidemark; the
// address in the documents is replaced by the node's. curl must be installed.
package sessions
