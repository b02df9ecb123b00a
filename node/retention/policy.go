package retention

import (
	"cmp"
	"slices"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node/partition"
)

// Limits are what a topic keeps of each partition; 0 = no limit.
type Limits struct {
	AgeMS, Bytes           int64 // in all
	LocalAgeMS, LocalBytes int64 // on local disk, of what the archive confirmed
	CreatedMS              int64 // when the topic was created: no record of it is older
}

// over is the append time in ms at or below which a record is over age, or -1
// when none is.
func over(now, age int64) int64 {
	if age <= 0 || age > now {
		return -1
	}
	return now - age
}

// startByAge returns the start of a log that loses its leading pieces whose
// every record was appended at or before a time (ms); start when there are none.
// Pieces ascend.
func startByAge(pieces []partition.Piece, start, before int64) int64 {
	for i := range pieces {
		if x := &pieces[i]; x.MaxAppend <= 0 || x.MaxAppend > before {
			break
		}
		start = max(start, pieces[i].Next)
	}
	return start
}

// startByBytes returns the start of a log of total bytes that loses leading
// pieces as long as at least limit bytes are left; pieces may be just the first
// ones of the log.
func startByBytes(pieces []partition.Piece, start, total, limit int64) int64 {
	if limit <= 0 {
		return start
	}
	for i := range pieces {
		if total -= pieces[i].Bytes; total < limit {
			break
		}
		start = max(start, pieces[i].Next)
	}
	return start
}

// localByAge returns the offset below which confirmed local pieces are over age.
// Others in between do not keep those behind them.
func localByAge(pieces []partition.Piece, before int64) (below int64) {
	for i := range pieces {
		if x := &pieces[i]; x.Confirmed && x.MaxAppend > 0 && x.MaxAppend <= before {
			below = x.Next
		} else if x.Confirmed {
			break
		}
	}
	return below
}

// localByBytes returns the offset below which confirmed local pieces go, so that
// at least limit bytes of the partition stay on local disk.
func localByBytes(pieces []partition.Piece, limit int64) (below int64) {
	if limit <= 0 {
		return 0
	}
	total := bytesOf(pieces, 0)
	for i := range pieces {
		x := &pieces[i]
		if !x.Confirmed {
			continue
		}
		if total -= x.Bytes; total < limit {
			break
		}
		below = x.Next
	}
	return below
}

// bytesOf sums the pieces that end above an offset.
func bytesOf(pieces []partition.Piece, above int64) (n int64) {
	for i := range pieces {
		if pieces[i].Next > above {
			n += pieces[i].Bytes
		}
	}
	return n
}

// candidate is a confirmed local piece of some partition.
type candidate struct {
	id    broker.PartitionID
	piece partition.Piece
}

// underPressure returns, for each partition, the offset below which its confirmed
// pieces go so that need bytes become free: the oldest of all partitions first,
// at most so many of them.
func underPressure(all []candidate, need int64, most int) map[broker.PartitionID]int64 {
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.piece.MaxAppend, b.piece.MaxAppend), cmp.Compare(a.id.Topic, b.id.Topic),
			cmp.Compare(a.id.Partition, b.id.Partition), cmp.Compare(a.piece.Base, b.piece.Base))
	})
	below := map[broker.PartitionID]int64{}
	for i := 0; i < len(all) && i < most && need > 0; i++ {
		c := &all[i]
		need -= c.piece.Bytes
		below[c.id] = max(below[c.id], c.piece.Next)
	}
	return below
}
