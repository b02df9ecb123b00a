package ship

import (
	"errors"

	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/wal"
)

// The next object is made while its interval passes: compressing a second's log
// in one go would take a processor from the producers for as long as it lasts.
const (
	gathers     = 16        // looks at the log in an interval
	gatherBytes = 256 << 10 // of log: after less, the next look is twice as far away
)

// pending is the next object of the log.
type pending struct {
	encoder archive.WALEncoder
	from    uint64       // LSN from which on it ships; 0: it is to be begun
	run     wal.GroupRun // what is in it
	bytes   int          // of log
	full    bool         // what comes next belongs into another object
}

// begin empties the object, which ships from an LSN on.
func (p *pending) begin(incarnation, from uint64) {
	p.encoder.Reset()
	p.from, p.bytes, p.full = from, 0, false
	p.run = wal.GroupRun{Incarnation: incarnation, First: from, Next: from}
}

// object returns the object, which is valid until the next one is begun.
func (p *pending) object() []byte {
	p.from = 0
	return p.encoder.Object(p.run)
}

// errFull ends a look at the log.
var errFull = errors.New("the object is full")

// gather puts what is durable by now into the next object and returns how many
// bytes of log that were. An object is of one file of the log, because each has a
// salt of its own, and of about Options.ObjectBytes of log at most, but never less
// than one group. After an error the next call begins it anew.
func (s *Shipper) gather() (int, error) {
	p := &s.pending
	if p.from != s.next {
		p.begin(s.opts.Incarnation, s.next)
	}
	if p.full {
		return 0, nil
	}
	before := p.bytes
	_, err := s.opts.Log.EachGroup(p.run.Next, max(1, s.opts.ObjectBytes-p.bytes), func(g wal.Group, raw []byte) error {
		if p.bytes > 0 && (g.Salt != p.run.Salt || p.bytes+len(raw) > s.opts.ObjectBytes) {
			p.full = true
			return errFull
		}
		if p.bytes == 0 {
			p.run.Salt, p.run.First = g.Salt, g.First
		}
		p.run.Next, p.bytes = g.Next(), p.bytes+len(raw)
		return p.encoder.Group(g, raw)
	})
	if err != nil && !p.full {
		p.from = 0
		return 0, err
	}
	return p.bytes - before, nil
}

// worthIt says whether the object has so much of the log that it, and what comes
// behind it, need not wait for an interval to end: small ones would cost a request
// each at the end of each file.
func (s *Shipper) worthIt() bool { return s.pending.bytes >= s.opts.ObjectBytes/8 }
