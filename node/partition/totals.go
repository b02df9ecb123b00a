package partition

// Totals are numbers of all partitions of a node together.
type Totals struct {
	LocalBytes      int64 // segment files and what is in none yet
	UnarchivedBytes int64 // of those, what the archive's chains do not hold
	// Append times in ms, 0 = there is none or it is not known: of the oldest
	// record that is in no chain, and of the oldest that is in no segment file.
	OldestUnarchived int64
	OldestUnflushed  int64
	// Checkpointed is when the last checkpoint that had anything to write was
	// written, in ms; 0 while nothing waits for one.
	Checkpointed int64
}

// Totals adds the partitions up. It takes their locks one after the other, for a
// look at their lists of files.
func (e *Engine) Totals() (t Totals) {
	for _, p := range e.All() {
		p.addTo(&t)
	}
	if !e.dirty.empty() {
		t.Checkpointed = e.checkpointed.Load()
	}
	return t
}

func (p *Partition) addTo(t *Totals) {
	older := func(at *int64, ms int64) {
		if ms > 0 && (*at == 0 || ms < *at) {
			*at = ms
		}
	}
	p.files.RLock()
	defer p.files.RUnlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	unarchived := func(bytes, appendMS int64) {
		if p.e.opts.Archive != nil {
			t.UnarchivedBytes += bytes
			older(&t.OldestUnarchived, appendMS)
		}
	}
	for i := range p.files.sealed {
		s := &p.files.sealed[i]
		t.LocalBytes += s.Bytes
		if s.Next > max(p.mu.archivedEnd, p.mu.oldest) {
			unarchived(s.Bytes, s.MinAppend)
		}
	}
	if w := p.files.active; w != nil && w.Size() > 0 {
		t.LocalBytes += w.Size()
		unarchived(w.Size(), p.files.meta.MinAppend)
	}
	if q := &p.mu.tail; q.flushed < q.len() {
		first := q.at(q.flushed).appendMS
		t.LocalBytes += q.pending
		unarchived(q.pending, first)
		older(&t.OldestUnflushed, first)
	}
}
