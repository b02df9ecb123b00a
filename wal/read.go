package wal

import (
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// GroupRun is a run of durable groups of one file, as they stand in it.
type GroupRun struct {
	Incarnation uint64
	Salt        uint64   // what [ParseGroup] and [ForEachFrame] need to verify them
	First, Next uint64   // LSNs, half-open; equal when nothing durable is there yet
	Groups      [][]byte // of ReadGroups
}

// ReadGroups returns durable groups, beginning with the one that
// holds the LSN from, of one file, about maxBytes at most but never less than
// one group. Each is header and frames without padding, verified, and the
// caller's to keep. Sequential calls go on where the one before ended.
// What Options.TailBytes keeps comes from memory, the rest from the disk.
// Errors: errcode.Gone (recycled), errcode.Corrupt (the disk gives back
// something else than was written), errcode.Storage, errcode.InvalidArgument.
func (l *Log) ReadGroups(from uint64, maxBytes int) (GroupRun, error) {
	var groups [][]byte
	run, err := l.EachGroup(from, maxBytes, func(_ Group, raw []byte) error {
		groups = append(groups, append(make([]byte, 0, len(raw)), raw...))
		return nil
	})
	if err != nil {
		return run, err
	}
	run.Groups = groups
	return run, nil
}

// EachGroup is ReadGroups without memory for the groups: it calls fn for each of
// them, with its bytes, header and frames without padding, both valid until fn
// returns. Groups of the run stays empty. The file cannot be recycled meanwhile,
// so fn should do its work and not wait for others. It ends with the first error
// of fn. After an error fn may have seen a part of the run.
func (l *Log) EachGroup(from uint64, maxBytes int, fn func(g Group, raw []byte) error) (GroupRun, error) {
	if from == 0 {
		return GroupRun{}, errcode.New(errcode.InvalidArgument, "wal: read from LSN 0, the first is 1")
	}
	run := GroupRun{Incarnation: l.o.Incarnation, First: from, Next: from}
	durable := l.durable.Load()
	if from > durable {
		return run, nil
	}
	file, until, err := l.files.pin(from)
	if err != nil {
		return run, err
	}
	defer func() {
		l.files.unpin(file)
		poke(l.chores) // it may be recyclable now
	}()
	until = min(until, durable+1)
	run.Salt = file.salt
	if err := l.readFile(file, from, until, maxBytes, &run, fn); err != nil {
		return GroupRun{}, errcode.Wrap(errcode.Storage, err, "read wal file %s from LSN %d", l.path(fileName(file.first)), from)
	}
	return run, nil
}

func (l *Log) readFile(file *logFile, from, until uint64, maxBytes int, run *GroupRun, fn func(Group, []byte) error) error {
	f, size, err := l.openFile(fileName(file.first))
	if err != nil {
		return err
	}
	defer f.Close()
	at := l.files.seek(file.first, from)
	scan := l.scans.Get().(*scanner)
	defer l.scans.Put(scan)
	scan.reset(tailed{file.first, &l.tail, f}, size, file.salt)
	scan.off = at.off
	next := at.lsn
	total := 0
	for next < until {
		h, err := scan.header()
		if err != nil {
			return err
		}
		if h.First != next {
			return errcode.New(errcode.Corrupt, "group of LSN %d at %d, want LSN %d", h.First, scan.off, next)
		}
		if h.next() <= from { // before what is asked for
			next = h.next()
			scan.skip(int(h.Bytes))
			continue
		}
		if total > 0 && total+int(h.Bytes) > maxBytes {
			break
		}
		g, raw, err := scan.group()
		if err != nil {
			return err
		}
		if total == 0 {
			run.First = g.First
		}
		if err := fn(g, raw); err != nil {
			return err
		}
		next, total = g.Next(), total+len(raw)
		run.Next = next
		scan.skip(len(raw))
	}
	l.files.remember(at, cursor{file: file.first, lsn: next, off: scan.off})
	return nil
}
