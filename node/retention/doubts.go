package retention

import "slices"

// newPart returns what is known of a partition, from before a restart too. seen
// is where the records begin that come by this process's clock.
func newPart(l Log, seen int64) *part {
	p := &part{seen: seen, kept: l.Doubts()}
	for _, d := range p.kept {
		if d[1] == 0 { // the clock was not right when the process before ended
			p.seen, p.open = min(p.seen, d[0]), true
			continue
		}
		p.stamps.spans = append(p.stamps.spans, span{from: d[0], to: d[1], at: d[2]})
	}
	return p
}

// keep gives the partition what has to survive a restart, when it is news: the
// append times that are known to be wrong, and, while the clock is not right,
// from where on nobody knows. At most maxSpans and one.
func (p *part) keep(l Log, unknown bool) {
	out := make([][3]int64, 0, len(p.stamps.spans)+1)
	for _, x := range p.stamps.spans {
		out = append(out, [3]int64{x.from, x.to, x.at})
	}
	if unknown || p.open {
		out = append(out, [3]int64{p.seen, 0, 0})
	}
	if !slices.Equal(out, p.kept) {
		p.kept = out
		l.SetDoubts(out)
	}
}
