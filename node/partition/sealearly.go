package partition

import (
	"cmp"
	"slices"
)

// holder is a partition that the archive keeps shipped log for.
type holder struct {
	p    *Partition
	lsn  uint64 // of its first record that is in no archived segment
	open bool   // a seal would end that
}

// sealHolders seals segments before their age when the archive keeps much of the
// log for them. The log goes from its beginning on, so one partition with a record
// now and then keeps what all others wrote since: half a day of it, at the age of
// any segment. Each early segment costs an object, an entry and a share of a merge
// later, so it has to let SealLogBytes of log go: the number of early segments is
// bounded by what is written, whatever the number of partitions.
func (e *Engine) sealHolders() {
	if e.opts.ShippedFrom == nil {
		return
	}
	if kept := e.opts.ShippedFrom([]uint64{0}); len(kept) != 1 || kept[0] < e.opts.SealLogBytes {
		return // most nodes at most times: not worth a look at each partition
	}
	end := e.log.NextLSN()
	var holders []holder
	for _, p := range e.All() {
		if lsn, open, ok := p.unarchived(); ok {
			holders = append(holders, holder{p, lsn, open})
		}
	}
	slices.SortFunc(holders, func(a, b holder) int { return cmp.Compare(a.lsn, b.lsn) })
	lsns := make([]uint64, 0, len(holders)+1)
	for _, h := range holders {
		lsns = append(lsns, h.lsn)
	}
	kept := e.opts.ShippedFrom(append(lsns, max(end, 1)))
	if len(kept) != len(holders)+1 {
		return
	}
	for _, h := range holders[:worthSealing(holders, kept, e.opts.SealLogBytes)] {
		e.opts.Logger.Info("segment is sealed before its age, the archive keeps the log for it", "partition", h.p.ID.String(), "from", h.lsn)
		if err := e.Seal(h.p); err != nil {
			e.opts.Logger.Error("seal failed", "partition", h.p.ID.String(), "error", err)
			return // it still holds what the others would let go
		}
	}
}

// worthSealing returns how many holders, from the first on, are to be sealed:
// runs of them that let enough of the log go together. kept is what the archive
// keeps from each holder's LSN on, and behind the last one, what no holder needs.
func worthSealing(holders []holder, kept []int64, each int64) (n int) {
	for i := range holders {
		if !holders[i].open {
			break // the log stays for this one, whatever is sealed behind it
		}
		if kept[n]-kept[i+1] >= int64(i+1-n)*each {
			n = i + 1
		}
	}
	return n
}
