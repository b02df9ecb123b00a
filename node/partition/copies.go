package partition

import "github.com/tidemark-mq/tidemark/node/state"

// Copy is what this node has of a range of archived offsets.
type Copy struct {
	// Path is the file that holds exactly that range, "" = there is none. It may
	// go at any time: an archived copy is evicted.
	Path string
	// Settled says that no local file of the range waits for the archive to
	// confirm it, nor for that news to be durable. Until then the object that
	// the chain names there is what the file will be compared with, after a
	// restart too.
	Settled bool
}

// Copy says what this node has of [base, next), which the chain covers.
func (p *Partition) Copy(base, next int64) Copy {
	c := Copy{Settled: true}
	p.files.RLock()
	defer p.files.RUnlock()
	for i := range p.files.sealed {
		s := &p.files.sealed[i]
		if s.Next <= base || s.Base >= next {
			continue
		}
		if s.Base == base && s.Next == next {
			c.Path = p.segmentPath(base)
		}
		if !s.Confirmed || has(p.files.marked, s.Base) || has(p.files.saving, s.Base) {
			c.Settled = false
		}
	}
	return c
}

func has(marked []state.Sealed, base int64) bool {
	for i := range marked {
		if marked[i].Base == base {
			return true
		}
	}
	return false
}
