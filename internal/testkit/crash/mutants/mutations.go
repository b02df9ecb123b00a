package main

// edit replaces Old, which stands once in File, by New.
type edit struct{ File, Old, New string }

// mutation breaks one rule, and names the test that has to notice.
type mutation struct {
	Rule    string // invariant or field report
	Name    string
	Edits   []edit
	Package string
	Test    string // regular expression of -run, without the anchors
}

// histories is the test of the crash histories, in each package that has them.
const histories = "TestHistories"

var mutations = []mutation{
	// The log.
	{"I1", "log: answer before the fsync", []edit{{"wal/commit.go",
		"	if err := file.SyncData(); err != nil {\n		return l.setPoison(err, \"the current file\")\n	}\n",
		"	_ = file\n"}}, "./wal", histories},
	{"I1", "log: a new file without the fsync of the one before", []edit{{"wal/rotate.go",
		"	if err := l.syncWritten(); err != nil {\n		return errors.Join(err, nb.file.Close())\n	}\n	if err", "	if err"}}, "./wal", histories},
	{"I1", "log: groups in a file whose name is not synced", []edit{{"wal/rotate.go",
		"	if err := l.syncDir(); err != nil {\n		return errors.Join(err, nb.file.Close())", "	if err := error(nil); err != nil {\n		return errors.Join(err, nb.file.Close())"}}, "./wal", histories},
	{"I2", "log: evidence of what is durable runs ahead", []edit{{"wal/commit.go",
		"g.frames, l.durable.Load())", "g.frames, max(l.durable.Load(), g.first-1))"}}, "./wal", histories},
	{"I4", "log: a group counts without its checksum", []edit{{"wal/group.go",
		"got != h.crc {", "got != h.crc && false {"}}, "./wal", histories},
	{"I4", "log: a synced tail that does not verify is cut", []edit{{"wal/recover.go",
		"	r.proven = max(r.firsts[i]-1, r.l.o.KnownDurable)\n", "	r.proven = r.firsts[i] - 1\n"}}, "./wal", "TestKnownDurable"},
	{"I4", "log: damage in the middle is stepped over", []edit{{"wal/recover.go",
		"		case err != nil:\n			return r.damage(name, r.scan.off, next, \"%v\", err)\n", "		case err != nil:\n			return nil\n"}}, "./wal", "TestB35FlippedBit"},
	{"B50", "log: replay trusts the page cache", []edit{{"wal/recover.go",
		"		r.proven = max(r.proven, g.Durable)\n		spans", "		r.proven = max(r.proven, g.Next()-1)\n		spans"}}, "./wal", histories},
	{"B50", "log: a start reuses spares whose rename is not synced", []edit{{"wal/recover.go",
		"l.dir.Sync(), \"sync wal directory", "error(nil), \"sync wal directory"}}, "./wal", "TestKillInARecycleThenPowerLoss"},
	{"B45", "log: a recovered file gets its name before it is synced", []edit{{"wal/recover.go",
		"		err = errcode.Wrap(errcode.Storage, nb.file.SyncData(), \"sync %s\", nb.spare)\n", "		err = nil\n"}}, "./wal", histories},
	{"I5", "log: a failed fsync is tried again", []edit{{"wal/commit.go",
		"	if err := file.SyncData(); err != nil {\n		return l.setPoison(err, \"the current file\")", "	if file.SyncData() != nil && file.SyncData() != nil {\n		return l.setPoison(nil, \"the current file\")"}}, "./wal", histories},
	{"I13", "log: the length of a frame is believed", []edit{{"wal/group.go",
		"		if n > int64(len(b)-frameHeaderSize) {", "		if false {"}}, "./wal", "TestFrameLengthsMustFillTheGroup"},
	{"I13", "log: the size of a group is believed", []edit{{"wal/format.go",
		" || int64(h.Bytes) > most {", " || most < 0 {"}}, "./wal", "TestB31GarbageSizes"},

	// Segments.
	{"I1", "segment: the name of a new file is not synced", []edit{{"segment/writer.go",
		"	if err := syncDir(fs, dir); err != nil {\n		_ = w.closeFile()", "	if err := error(nil); err != nil {\n		_ = w.closeFile()"}}, "./segment", histories},
	{"I1", "segment: sealed under a name that is not synced", []edit{{"segment/seal.go",
		"	w.mu.Unlock()\n	return syncDir(w.fs, w.dir)", "	w.mu.Unlock()\n	return nil"}}, "./segment", histories},
	{"I1", "segment: sealed before its bytes are synced", []edit{{"segment/seal.go",
		"	if err := w.file.f.Sync(); err != nil {", "	if err := error(nil); err != nil {"}}, "./segment", histories},
	{"I4", "segment: a flushed part that is gone is no damage", []edit{{"segment/recover.go",
		"	if in := &w.mu.info; in.Next < flushed {", "	if in := &w.mu.info; in.Next < 0 {"}}, "./segment", "TestRecoverRefusesDamage"},
	{"I5", "segment: recovery believes the page cache", []edit{{"segment/recover.go",
		"	return w.rewrite(flushedTo)\n", "	return nil\n"}}, "./segment", histories},
	{"B50", "segment: recovery leaves the file's name as it is", []edit{{"segment/recover.go",
		"	if err := syncDir(w.fs, w.dir); err != nil {\n		return err\n	}\n	if err := w.open()", "	if err := w.open()"}}, "./segment", histories},

	// The partition engine.
	{"I2", "engine: visible before it is durable", []edit{{"node/partition/tail.go",
		"		if b.lsn > durable {\n", "		if b.lsn > durable && false {\n"}}, "./node/partition", histories},
	{"I2", "engine: a checkpoint of groups above the durable LSN", []edit{{"node/partition/checkpoint.go",
		"	err := e.log.WaitDurable(ctx, needed)\n", "	var err error\n"}}, "./node/partition", histories},
	{"I4", "engine: a new partition's base is forgotten", []edit{{"node/partition/recover.go",
		"	p.mu.base = lsn\n", "	p.mu.base = 0\n"}}, "./node/partition", "TestFailedCaptureOfANewPartition"},
	{"I2", "engine: a checkpoint does not wait for the carry it names", []edit{{"node/partition/checkpoint.go",
		"			needed = max(needed, e.log.NextLSN()-1)\n", "			needed = max(needed, 0)\n"}}, "./node/partition", "TestCarryDuringACheckpoint"},
	{"B49", "engine: a checkpoint ahead of the files", []edit{{"node/partition/checkpoint.go",
		"	if err := e.syncActive(p); err != nil {", "	if err := error(nil); err != nil {"}}, "./node/partition", histories},
	{"B49", "engine: the log forgets what no checkpoint holds", []edit{{"node/partition/checkpoint.go",
		"	e.log.Hold(holdName, low)\n", "	e.log.Hold(holdName, max(low, captured))\n"}}, "./node/partition", histories},
	{"I3", "engine: the end of the files is forgotten at a start", []edit{{"node/partition/recover.go",
		"	p.mu.checkpointed = max(p.mu.checkpointed, end)\n	p.setEnd(max(p.mu.checkpointed, end))\n", ""}}, "./node/partition", histories},
	{"I3", "engine: a replayed batch does not move the end", []edit{{"node/partition/recover.go",
		"		p.mu.next = h.NextOffset()\n", ""}}, "./node/partition", histories},
	{"I6", "engine: a local copy goes before the archive's is confirmed", []edit{{"node/partition/evict.go",
		"s.Next <= min(below, end) && s.Confirmed {", "s.Next <= below+0*end {"}}, "./node", histories},
	{"I11", "engine: group entries that a checkpoint does not hold are passed over", []edit{{"node/partition/recover.go",
		"		if f.LSN <= p.mu.groupLSN || ", "		if f.LSN <= p.mu.groupLSN+4 || "}}, "./node/partition", histories},
	{"I12", "engine: tails without a bound", []edit{{"node/partition/admit.go",
		"	crowded := e.memory.Load() > e.opts.MemoryBudget\n", "	crowded := e.memory.Load() < 0\n"}}, "./node/partition", "TestOverloadedAtTheMemoryBound"},
	{"I12", "engine: what waits for the flush has no bound", []edit{{"node/partition/room.go",
		"	case r.mu.bytes >= r.most:\n", "	case r.mu.bytes < 0:\n"}}, "./node/partition", "TestRoomIsBounded"},
	{"I14", "engine: a flush that cannot happen is waited for", []edit{{"node/partition/room.go",
		"	if hopeless != nil && !gained && r.full() {\n", "	if hopeless != nil && !gained && !r.full() {\n"}}, "./node/partition", "TestNobodyWaitsForAFullDisk"},

	// The queue.
	{"I11", "queue: acks are lost at the replay", []edit{{"node/queue/replay.go",
		"	case opSettle, opSkip:\n		c.settleRange(o.from, o.to)\n", "	case opSettle, opSkip:\n"}}, "./node/queue", histories},
	{"I11", "queue: a state without the acks ahead of its position", []edit{{"node/queue/replay.go",
		"		if r[0] < r[1] {\n", "		if r[0] < 0 {\n"}}, "./node/queue", histories},
	{"I11", "queue: a state claims more of the journal than it holds", []edit{{"node/queue/snapshot.go",
		"		lsn = max(lsn, c.lsn)\n", "		lsn = max(lsn, c.lsn+1)\n"}}, "./node/queue", histories},

	// The chain.
	{"I3", "chain: a fence that forgets what was assigned", []edit{{"tier/manifest/ops.go",
		"		end := max(s.leastPreviousEnd(), p.PreviousEndAtLeast)\n", "		end := s.leastPreviousEnd()\n"}}, "./tier/manifest", histories},
	{"I8", "chain: entries are put over each other", []edit{{"tier/manifest/append.go",
		"objstore.PutOptions{CreateOnly: true, CRC32C: &crc}", "objstore.PutOptions{CRC32C: &crc}"}}, "./tier/manifest", histories},
	{"I8", "chain: an older generation publishes", []edit{
		{"tier/manifest/ops.go", "	default:\n		return fenced(c, owner, s.writer)\n	}\n}\n\n// Add lists", "	default:\n		return nil\n	}\n}\n\n// Add lists"},
		{"tier/manifest/append.go", "		if err != nil || next.void != s.void {", "		if err != nil {"},
	}, "./tier/manifest", histories},
	{"I8", "chain: the newest generation believes it was fenced off", []edit{{"tier/manifest/append.go",
		" || w.compare(owner) < 0 {", " {"}}, "./tier/manifest", histories},
	{"I8", "ship: no look at the fence before the answer", []edit{{"node/ship/object.go",
		"	exported := s.exported()\n	if err := s.checkFence(ctx); err != nil {\n		return false, err\n	}\n", "	exported := s.exported()\n"}}, "./node/ship", "TestFenceBetweenPutAndCheck"},
	{"I7", "upload: an entry without its object", []edit{{"tier/upload/work.go",
		"	return u.judge(p, it, u.sender.put(ctx, p.pid, it))", "	_ = u.sender.put(ctx, p.pid, it)\n	return nil"}}, "./tier/upload", "TestFlippedByteStopsPartition"},

	// The archive in a directory.
	{"I1", "objects: a directory is known by its name alone", []edit{{"tier/objstore/file/names.go",
		"e == nil || !n.same(e.Value.(*known).info, now)", "e == nil"}}, "./tier/objstore/file", histories},
	{"I1", "objects: only one directory above is synced", []edit{{"tier/objstore/file/put.go",
		"	if err := s.settle(path.Dir(dir)); err != nil {", "	if _, err := s.syncDir(path.Dir(dir)); err != nil {"}}, "./tier/objstore/file", histories},
	{"I1", "objects: a directory is known before those above are synced", []edit{{"tier/objstore/file/put.go",
		"	if err := s.settle(path.Dir(dir)); err != nil {", "	s.names.add(dir, d, info)\n	if err := s.settle(path.Dir(dir)); err != nil {"}}, "./tier/objstore/file", "TestOneInsideAnother"},
	{"I1", "objects: who lost a race does not sync the winner's name", []edit{{"tier/objstore/file/put.go",
		"	if err := s.settle(path.Dir(key)); err != nil {\n		return err\n	}\n	return errcode.New(errcode.Exists", "	return errcode.New(errcode.Exists"}}, "./tier/objstore/file", "TestOneInsideAnother"},

	// What is deleted from the archive.
	{"I7", "garbage: what the chain names is deleted", []edit{{"node/garbage/judge.go",
		"		case named[key]:\n", "		case named[key] && c == nil:\n"}}, "./node/garbage", "TestRetiredAndNeeded"},
	{"I7", "garbage: the chain is not read again before a delete", []edit{{"node/garbage/judge.go",
		"	if err == nil {\n		_, err = chain.Refresh(ctx)\n	}\n", ""}}, "./node/garbage", "TestRetiredByAnEntryWithALostAnswer"},
	{"I7", "garbage: the fences are not asked before a delete", []edit{{"node/garbage/delete.go",
		"	if err := c.opts.Fence.Confirm(ctx, c.opts.Store); err != nil {\n		return nil, &hindrance{err}\n	}\n", ""}}, "./node/garbage", "TestZombieDeletesNothing"},
	{"I7", "garbage: an upload in flight is an orphan", []edit{{"node/garbage/orphans.go",
		"now.Sub(o.since) >= c.opts.Grace", "now.Sub(o.since) >= 0*c.opts.Grace"}}, "./node/garbage", "TestOrphanWaitsItsGrace"},
	{"I7", "garbage: one object of the shipped log too many goes", []edit{{"node/garbage/shipped.go",
		"		if o.b <= floor && now", "		if o.a < floor && now"}}, "./node/garbage", "TestCoveredLog"},
	{"I7", "garbage: an old incarnation's records are not looked for in the chains", []edit{{"node/garbage/proof.go",
		"	if end := chain.End(); end < r.Next {", "	if end := chain.End(); end < 0 {"}}, "./node/garbage", "TestOldIncarnation"},
	{"I7", "scrub: a damaged object is given up before the chain names another", []edit{{"node/scrub/repair.go",
		"	err = chain.Replace(ctx, u.seg, anew.seg)\n", "	s.o.Discard(u.id, []manifest.Segment{u.seg})\n	err = chain.Replace(ctx, u.seg, anew.seg)\n"}}, "./node/scrub", "TestRepairOfAnObjectAtEachStep"},

	// What replaces, or removes, a local copy.
	{"I6", "scrub: a file is set aside although the archive's copy is bad", []edit{{"node/scrub/repair.go",
		"		case v.bad != \"\":\n			s.suspect(place{archived, u.id, x.Base})\n			return todo(\"both copies are bad, the object %s as well (%s): put",
		"		case v.bad != \"\" && s == nil:\n			s.suspect(place{archived, u.id, x.Base})\n			return todo(\"both copies are bad, the object %s as well (%s): put"}}, "./node/scrub", "TestMergedCopy"},
	{"I6", "engine: a file is replaced by other bytes than were sealed", []edit{{"node/partition/mend.go",
		"(w.left != 0 || [32]byte(w.sum.Sum(nil)) != info.FileSHA256)", "w.left != 0"}}, "./node/partition", "TestMendIsExact"},
	{"I6", "engine: a file is replaced by a copy that is not synced", []edit{{"node/partition/mend.go",
		"		err = errcode.Wrap(errcode.Storage, f.Sync(), \"sync %s\", tmp)\n", "		err = nil\n"}}, "./node/partition", "TestMendAtEachStep"},

	// Reads of the archive.
	{"B102", "engine: a batch that is trimmed in part is read from its base only", []edit{{"node/partition/record.go",
		"	if err != nil && !errcode.Is(err, errcode.Gone) {\n", "	if err != nil {\n"}}, "./node", "TestDeliveryFromABatchThatIsTrimmedInPart"},

	// The whole node.
	{"I11", "node: an ack is answered before it is written", []edit{{"node/consume.go",
		"	if err := n.log.WaitWritten(ctx, lsn); err != nil {\n		return nil, err\n	}\n	return errs, nil", "	return errs, ctx.Err()"}}, "./node", histories},
	{"I11", "node: the journal's acks are not replayed", []edit{{"node/storage.go",
		"		if err := n.queue.Apply(g.id, g.name, g.ops); err != nil {", "		if err := error(nil); err != nil {"}}, "./node", histories},
	{"I15", "node: no produce while the archive is down", []edit{{"node/disk.go",
		"func (n *Node) accept() error {\n", "func (n *Node) accept() error {\n	if n.shipper != nil && n.shipper.Status().LastError != \"\" {\n		return errcode.New(errcode.ArchiveUnavailable, \"the archive is down\")\n	}\n"}}, "./node", histories},
	{"I16", "ship: the mark moves although the object is not there", []edit{{"node/ship/object.go",
		"	if err := s.putWAL(ctx, key, run.First, run.Next, data); err != nil {\n		return false, err\n	}\n", "	_ = s.putWAL(ctx, key, run.First, run.Next, data)\n"}}, "./node/ship", "TestAnotherObjectUnderTheKey"},
	{"I3", "restore: the new generation begins where the shipped log ends", []edit{{"node/restore/restore.go",
		"Start: manifest.Unclean, PreviousEndAtLeast: p.next", "Start: manifest.Clean, PreviousEndAtLeast: p.next"}}, "./node", histories},
	// Merges.
	{"I7", "merge: an output that nobody has read back is named", []edit{{"tier/merge/merger.go",
		"		err = m.compare(ctx, key, &sealed.Info)\n", "		_ = m.compare\n"}}, "./tier/merge", "TestOutputIsReadBack"},
	{"I4", "merge: a run goes over a gap", []edit{{"tier/merge/choose.go",
		"return x.Next == y.Base && x.OriginTopic", "return x.OriginTopic"}}, "./tier/merge", "TestChoose"},
	{"I4", "merge: the sum of an input is not compared", []edit{{"tier/merge/build.go",
		"got != x.DataSHA256 {", "got != x.DataSHA256 && x.Base < 0 {"}}, "./tier/merge", "TestDamagedInputs"},
	{"I7", "merge: an output that no entry names yet is an orphan", []edit{{"tier/merge/merger.go",
		"	m.hold(key)\n", ""}}, "./tier/merge", "TestChainChangesMeanwhile"},
	{"I7", "merge: a replace whose answer was lost is forgotten", []edit{{"tier/merge/merger.go",
		"	if err != nil && !decided(err) {", "	if err != nil && !decided(err) && decided(nil) {"}}, "./tier/merge", "TestReplaceComesLate"},
	{"I7", "chain: a replace of what the same entry moves into a page", []edit{{"tier/manifest/ops.go",
		"paged > 0 && s.due() && output", "paged > 0 && !s.due() && output"}}, "./tier/manifest", "TestReplaceBesideACheckpoint"},
	{"I7", "chain: entries that a new owner cannot read for a while are skipped", []edit{{"tier/manifest/torn.go",
		"		if err := stays(ctx, l.store, l.pid, last); err != nil {\n			return 0, 0, err\n		}\n", ""}}, "./tier/manifest", "TestReadsOfAChainLie"},
	{"I7", "chain: pages that the store tore are tried for ever", []edit{{"tier/manifest/append.go",
		"		c.spoiled[ref.SHA256] = true\n", ""}}, "./tier/manifest", "TestPutsOfPagesLie"},
	{"I7", "chain: a page is not read back", []edit{{"tier/manifest/append.go",
		"			if _, err = c.page(ctx, ref); err == nil ||", "			if err = nil; err == nil ||"}}, "./tier/manifest", "TestPutsOfPagesLie"},
	{"I7", "garbage: nobody looks whether a delete was done", []edit{{"node/garbage/delete.go",
		"	if err := c.sample(ctx, keys); err != nil {\n		return nil, err\n	}\n", ""}}, "./node/garbage", "TestDeletesGoWrong"},

	// Repairs of the log.
	{"B50", "repair: said to be complete before its names are synced", []edit{{"node/repair/place.go",
		"	if err := syncTree(o.FS, work); err != nil {\n		return err\n	}\n	j.Format", "	j.Format"}}, "./node/repair", "TestPlacingOutlivesPowerLosses"},
	{"B50", "repair: what is replaced leaves its place before it is kept", []edit{{"node/repair/place.go",
		"		p.rename(place, kept)\n		p.sync(p.kept)\n", "		p.rename(place, kept)\n"}}, "./node/repair", "TestPlacingOutlivesPowerLosses"},
	{"B50", "repair: the journal goes before everything is in place", []edit{{"node/repair/place.go",
		"	p.sync(p.o.path(walDir))\n	for", "	for"}, {"node/repair/place.go",
		"		p.rename(p.o.path(datadir.RepairDir, walDir, name), p.o.path(walDir, name))\n	}\n	p.sync(p.o.path(walDir))\n",
		"		p.rename(p.o.path(datadir.RepairDir, walDir, name), p.o.path(walDir, name))\n	}\n"}}, "./node/repair", "TestPlacingOutlivesPowerLosses"},

	{"B50", "datadir: an identity whose name is not synced is used", []edit{{"node/datadir/identity.go",
		"errcode.Wrap(errcode.Storage, SyncDir(fs, dir), \"sync data directory %s\", dir)", "nil"}}, "./node/datadir", "TestIdentitySurvivesEveryCrash"},
	{"B159", "datadir: one that has served and lost a part starts with an empty one", []edit{{"node/datadir/whole.go",
		"		case id.Begun:\n", "		case id.Begun && dir == \"\":\n"}}, "./node", "TestLostPartIsRefused"},
	{"I1", "datadir: parents that were missing are not synced", []edit{{"node/datadir/identity.go",
		"segment.MakeDir(fs, nearest(fs, fs.PathDir(dir)), dir)", "segment.MakeDir(fs, fs.PathDir(dir), dir)"}}, "./node/datadir", "TestNewDirectorySurvivesEveryLoss"},
}
