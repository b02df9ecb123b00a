package repair

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/datadir"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/wal"
)

// Run repairs the directory. planned hears what is about to be done, before it
// is; its error ends the repair. Errors are those of Look. After one the
// directory is as it was, or Run has to be called again: the message says so.
func Run(ctx context.Context, o Options, planned func(*Plan) error) (*Report, error) {
	o = o.withDefaults()
	started := o.Now()
	lock, id, err := open(&o)
	if err != nil {
		return nil, err
	}
	r, err := run(ctx, &o, id, planned)
	if err = errors.Join(err, lock.Close()); err != nil {
		return nil, err
	}
	r.Took = o.Now().Sub(started)
	return r, nil
}

func run(ctx context.Context, o *Options, id datadir.Identity, planned func(*Plan) error) (*Report, error) {
	if ready(o.FS, o.Dir) {
		plan := &Plan{Dir: o.Dir, Node: id.NodeID, Incarnation: id.Incarnation.String(), Action: Resume}
		if err := planned(plan); err != nil {
			return nil, err
		}
		j, err := readJournal(o)
		if err != nil {
			return nil, err
		}
		return j.report(o, plan), j.place(o)
	}
	v := &inventory{o: o, id: id}
	plan, err := v.look(ctx)
	if err == nil {
		err = planned(plan)
	}
	if err != nil {
		return nil, err
	}
	kept := "damaged-" + o.Now().UTC().Format("20060102T150405.000")
	switch plan.Action {
	case Refill:
		if err := v.refill(ctx, kept); err != nil {
			return nil, err
		}
		return &Report{Plan: *plan, Kept: v.path(walDir, kept)}, nil
	case Rebuild:
		j, err := v.rebuild(ctx, kept)
		if err != nil {
			return nil, fmt.Errorf("%w; nothing was changed", err)
		}
		return j.report(o, plan), j.place(o)
	}
	return &Report{Plan: *plan}, nil
}

func (j *journal) report(o *Options, p *Plan) *Report {
	return &Report{Plan: *p, NewIncarnation: j.Incarnation, Kept: o.path(walDir, j.Kept)}
}

// refill writes the files anew that miss something, each complete, with its
// incarnation and LSNs. Each rename makes the log better, and none makes it
// worse: the files that are replaced are kept, and the new ones have all that
// they had.
func (v *inventory) refill(ctx context.Context, kept string) error {
	fs := v.o.FS
	keptDir := v.path(walDir, kept)
	if err := segment.MakeDir(fs, v.o.Dir, keptDir); err != nil {
		return err
	}
	r := &refilling{v: v}
	if err := r.write(ctx); err != nil {
		return errors.Join(err, r.discard())
	}
	for _, first := range r.written {
		name := wal.FileName(first)
		place := v.path(walDir, name)
		if _, err := fs.Stat(place); err == nil {
			// A link costs nothing; where there are none the bytes are copied.
			if err := vfs.LinkOrCopy(fs, place, fs.PathJoin(keptDir, name)); err != nil {
				return errcode.Wrap(errcode.Storage, err, "keep %s", place)
			}
			if err := datadir.SyncDir(fs, keptDir); err != nil {
				return errcode.Wrap(errcode.Storage, err, "sync %s", keptDir)
			}
		}
		if err := fs.Rename(r.temporary(first), place); err != nil {
			return errcode.Wrap(errcode.Storage, err, "rename the new %s", name)
		}
		// Before the next one: of two files whose frames follow each other the
		// names must not come back in the other order.
		if err := datadir.SyncDir(fs, v.path(walDir)); err != nil {
			return errcode.Wrap(errcode.Storage, err, "sync %s", v.path(walDir))
		}
	}
	if err := v.survey(ctx); err != nil {
		return err
	}
	if v.src.survey.Damaged() {
		return errcode.New(errcode.Internal, "the log still does not verify: %+v", v.src.survey.Holes)
	}
	return nil
}

// refilling writes new log files under names that the log does not look at.
type refilling struct {
	v       *inventory
	written []uint64 // first LSNs, ascending
	file    *wal.FileWriter
	until   uint64 // first LSN that does not belong into file
}

func (r *refilling) temporary(first uint64) string {
	return r.v.path(walDir, "refill-"+wal.FileName(first)+".tmp")
}

// bounds returns the file that the LSN belongs into, and whether that is one to
// write anew.
func (r *refilling) bounds(lsn uint64) (first, until uint64, hit bool) {
	files := r.v.src.survey.Files
	if len(files) == 0 || lsn < files[0].First { // in front of the first file
		return lsn, files[0].First, true
	}
	for i := range files {
		if f := &files[i]; f.First <= lsn && lsn < f.Until {
			hit = f.HeaderErr != nil
			for _, x := range r.v.src.fills {
				hit = hit || x.from < f.Until && f.First < x.next
			}
			return f.First, f.Until, hit
		}
	}
	return lsn, lsn, false // not reached: the last file has no end
}

func (r *refilling) write(ctx context.Context) error {
	var until uint64 // of the file that is left as it is
	err := r.v.src.groups(ctx, func(g group) error {
		if r.file != nil && g.First >= r.until {
			if err := r.close(); err != nil {
				return err
			}
		}
		if r.file == nil && g.First >= until {
			first, end, hit := r.bounds(g.First)
			if !hit {
				until = end
				return nil
			}
			if err := r.begin(first, end); err != nil {
				return err
			}
		}
		if r.file == nil {
			return nil
		}
		return r.file.Add(g.Group, g.raw)
	})
	return errors.Join(err, r.close())
}

func (r *refilling) begin(first, until uint64) (err error) {
	r.until = until
	r.file, err = wal.CreateFile(r.v.o.FS, r.temporary(first), uint64(r.v.id.Incarnation), first, r.v.o.Now())
	if err == nil {
		r.written = append(r.written, first)
	}
	return err
}

func (r *refilling) close() error {
	if r.file == nil {
		return nil
	}
	f, until := r.file, r.until
	r.file = nil
	if err := f.Close(); err != nil {
		return err
	}
	if last := r.v.src.survey.Files[len(r.v.src.survey.Files)-1]; until != last.Until && f.Next() != until {
		return errcode.New(errcode.Internal, "a file that ends at LSN %d would be followed by LSN %d", f.Next()-1, until)
	}
	return nil
}

// discard removes what a refill that failed has written.
func (r *refilling) discard() error {
	var errs []error
	for _, first := range r.written {
		errs = append(errs, r.v.o.FS.Remove(r.temporary(first)))
	}
	return errors.Join(errs...)
}
