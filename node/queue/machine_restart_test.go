package queue

import (
	"fmt"

	"pgregory.net/rapid"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// restart loses the process, a tail of the journal, and now and then a tail of
// the log (B69).
func (m *machine) restart() {
	m.e.Close()
	var keep uint64
	for _, p := range m.parts {
		keep = max(keep, p.snapLSN)
	}
	keep = rapid.Uint64Range(keep, uint64(len(m.j.entries))).Draw(m.t, "keep")
	m.j.entries = m.j.entries[:keep]
	m.e = New(m.e.opt)
	for n, p := range m.parts {
		id := part(uint32(n))
		if rapid.IntRange(0, 9).Draw(m.t, "lose records") == 0 {
			p.hw = rapid.Int64Range(p.start, max(p.start, p.hw)).Draw(m.t, "log end")
			for _, g := range p.gaps {
				if g[0] <= p.hw && p.hw < g[1] {
					p.hw = g[0]
				}
			}
			p.start = min(p.start, p.hw)
		}
		if err := m.e.Attach(id, m.config(p), p.snap); err != nil {
			m.t.Fatal(err)
		}
		for _, g := range modelGroups {
			k := cursorKey{g, uint32(n)}
			*m.cursors[k] = *m.frozen[k]
			m.holes(p, m.cursors[k])
		}
		// Replaying what the states hold already must change nothing, as long
		// as it holds no seek, which takes unjournaled leases along, and no
		// extension, whose lease may have been released without an entry.
		from := m.replayFrom(id, p.snapLSN)
		for i, en := range m.j.entries[from:] {
			if en.p != id {
				continue
			}
			if err := m.e.Apply(en.p, en.group, en.ops); err != nil {
				m.t.Fatal(err)
			}
			if from+uint64(i) >= p.snapLSN {
				c := m.cursors[cursorKey{en.group, uint32(n)}]
				if err := decodeOps(en.ops, func(o op) error { c.replay(o, p.start); return nil }); err != nil {
					m.t.Fatal(err)
				}
				m.holes(p, c)
			}
		}
		if err := m.e.Serve(id); err != nil {
			m.t.Fatal(err)
		}
		m.clamp(uint32(n), p)
	}
	m.expire()
}

func (m *machine) clamp(n uint32, p *modelPart) {
	end := max(p.hw, p.start)
	for _, g := range p.gaps {
		if g[0] <= end {
			end = max(end, g[1])
		}
	}
	for _, g := range modelGroups {
		c := m.cursors[cursorKey{g, n}]
		for off := end; off < modelLog; off++ {
			c[off] = modelRec{}
		}
		m.holes(p, c)
	}
}

func (m *machine) replayFrom(id broker.PartitionID, snap uint64) uint64 {
	from := rapid.Uint64Range(0, snap).Draw(m.t, "replay from")
	for i := from; i < snap; i++ {
		if m.j.entries[i].p == id {
			err := decodeOps(m.j.entries[i].ops, func(o op) error {
				switch o.kind {
				case opSeek, opDelete, opCut, opExtend:
					return fmt.Errorf("not from here")
				}
				return nil
			})
			if err != nil {
				from = i + 1
			}
		}
	}
	return from
}
