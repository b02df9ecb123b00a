package partition

// Totals are numbers of all partitions of a node together.
type Totals struct {
	LocalBytes      int64 // segment files and what is in none yet
	UnarchivedBytes int64 // of those, what the archive's chains do not hold
	// UnarchivedRecords are the offsets below the high watermark that the
	// chains neither hold nor name as a gap; 0 without an archive.
	UnarchivedRecords int64
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

// Totals are those of one partition. Checkpointed is not set: checkpoints are of
// the node.
func (p *Partition) Totals() (t Totals) {
	p.addTo(&t)
	return t
}

// Add adds the numbers of more partitions to t.
func (t *Totals) Add(more Totals) {
	t.LocalBytes += more.LocalBytes
	t.UnarchivedBytes += more.UnarchivedBytes
	t.UnarchivedRecords += more.UnarchivedRecords
	older(&t.OldestUnarchived, more.OldestUnarchived)
	older(&t.OldestUnflushed, more.OldestUnflushed)
	older(&t.Checkpointed, more.Checkpointed)
}

// older lowers at to ms; 0 is no time.
func older(at *int64, ms int64) {
	if ms > 0 && (*at == 0 || ms < *at) {
		*at = ms
	}
}

// unarchivedRecords counts the offsets that no chain has. The caller holds p.mu.
func (p *Partition) unarchivedRecords() int64 {
	from, to := max(p.mu.archivedEnd, p.mu.oldest), p.hw.Load()
	n := max(0, to-from)
	for _, g := range p.mu.gaps {
		n -= max(0, min(g[1], to)-max(g[0], from))
	}
	return n
}

func (p *Partition) addTo(t *Totals) {
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
	if p.e.opts.Archive != nil {
		t.UnarchivedRecords += p.unarchivedRecords()
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
