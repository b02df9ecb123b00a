package repair

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	iofs "io/fs"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/datadir"
	"github.com/tidemark-mq/tidemark/segment"
)

const (
	journalFormat  = "tidemark-repair"
	journalVersion = 1
	maxJournal     = 16 << 20
	topicsDir      = "topics"
	walDir         = "wal"
	identityName   = "identity.json"
)

// wholeFolders are replaced as a whole.
var wholeFolders = []string{"raft", "state"}

// journal is the file READY: it says that a rebuild is complete in the folder
// repair, and what has to be moved. Every step of putting it in place may be
// done again.
type journal struct {
	Format      string   `json:"format"`
	Version     int      `json:"version"`
	Incarnation string   `json:"incarnation"` // the new one
	Kept        string   `json:"kept"`        // folder below wal that takes what is replaced
	OldLog      []string `json:"old_log"`     // names of the damaged log's files
}

func (o *Options) path(name ...string) string {
	return o.FS.PathJoin(append([]string{o.Dir}, name...)...)
}

// ready says whether a rebuild waits to be put in place.
func ready(fs vfs.FS, dir string) bool {
	_, err := fs.Stat(fs.PathJoin(dir, datadir.RepairDir, datadir.RepairReady))
	return err == nil
}

// commit makes everything in the folder repair durable, and then says so. From
// here on only place may touch the directory.
func (j *journal) commit(o *Options) error {
	work := o.path(datadir.RepairDir)
	if err := syncTree(o.FS, work); err != nil {
		return err
	}
	j.Format, j.Version = journalFormat, journalVersion
	data, err := json.Marshal(j)
	if err != nil {
		return errcode.Wrap(errcode.Internal, err, "encode the journal")
	}
	path := o.path(datadir.RepairDir, datadir.RepairReady)
	f, err := o.FS.Create(path+".tmp", vfs.WriteCategoryUnspecified)
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "create %s", path)
	}
	_, err = f.Write(append(data, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = o.FS.Rename(path+".tmp", path)
	}
	if err == nil {
		err = datadir.SyncDir(o.FS, work)
	}
	return errcode.Wrap(errcode.Storage, err, "write %s", path)
}

// syncTree makes the names below dir durable; the files were synced when they
// were written.
func syncTree(fs vfs.FS, dir string) error {
	names, err := fs.List(dir)
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "list %s", dir)
	}
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		st, err := fs.Stat(path)
		if err == nil && st.IsDir() {
			err = syncTree(fs, path)
		}
		if err != nil {
			return err
		}
	}
	return errcode.Wrap(errcode.Storage, datadir.SyncDir(fs, dir), "sync %s", dir)
}

func readJournal(o *Options) (*journal, error) {
	path := o.path(datadir.RepairDir, datadir.RepairReady)
	f, err := o.FS.Open(path)
	if err != nil {
		return nil, errcode.Wrap(errcode.Storage, err, "open %s", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxJournal))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, errcode.Wrap(errcode.Storage, err, "read %s", path)
	}
	var j journal
	if err := json.Unmarshal(data, &j); err != nil || j.Format != journalFormat {
		return nil, errcode.New(errcode.Corrupt, "%s is no journal of a repair", path)
	}
	if j.Version != journalVersion {
		return nil, errcode.New(errcode.UnsupportedVersion, "%s has version %d, this build knows %d: use the build that wrote it", path, j.Version, journalVersion)
	}
	if j.Kept == "" || o.FS.PathBase(j.Kept) != j.Kept || slices.ContainsFunc(j.OldLog, func(n string) bool { return n == "" || o.FS.PathBase(n) != n }) {
		return nil, errcode.New(errcode.Corrupt, "%s names files outside the directory", path)
	}
	return &j, nil
}

// place puts a complete rebuild in place. What is replaced goes to the folder
// wal/damaged-<time> first. A rename that has been done already is known by its
// target, or by its source being gone.
func (j *journal) place(o *Options) error {
	p := &placing{o: o, kept: o.path(walDir, j.Kept)}
	p.do(segment.MakeDir(o.FS, o.Dir, p.kept))
	for _, name := range wholeFolders {
		p.replace(name)
	}
	p.topics()
	p.log(j.OldLog)
	// The identity comes last: until then a start that could happen would find
	// files of another incarnation and refuse.
	p.identity()
	p.sync(o.Dir)
	if p.err != nil {
		return p.err
	}
	// Everything is in place and durable: now the mark may go, and the folder
	// after it.
	if err := o.FS.Remove(o.path(datadir.RepairDir, datadir.RepairReady)); err != nil {
		return errcode.Wrap(errcode.Storage, err, "remove the journal")
	}
	p.sync(o.path(datadir.RepairDir))
	p.do(o.FS.RemoveAll(o.path(datadir.RepairDir)))
	p.sync(o.Dir)
	return p.err
}

// placing does steps until one fails.
type placing struct {
	o    *Options
	kept string
	err  error
}

func (p *placing) do(err error) {
	if p.err == nil {
		p.err = errcode.Wrap(errcode.Storage, err, "put the repaired directory in place; run the repair again, it goes on where it stopped")
	}
}

func (p *placing) exists(path string) bool {
	if p.err != nil {
		return false
	}
	_, err := p.o.FS.Stat(path)
	if err != nil && !errors.Is(err, iofs.ErrNotExist) {
		p.do(err)
	}
	return err == nil
}

func (p *placing) rename(from, to string) {
	if p.err == nil {
		p.do(p.o.FS.Rename(from, to))
	}
}

func (p *placing) sync(dir string) {
	if p.err == nil {
		p.do(datadir.SyncDir(p.o.FS, dir))
	}
}

// replace moves a folder or file of the data directory to the kept ones, and
// the new one into its place.
func (p *placing) replace(name string) {
	built, place, kept := p.o.path(datadir.RepairDir, name), p.o.path(name), p.o.FS.PathJoin(p.kept, name)
	if !p.exists(built) {
		return // done
	}
	// The kept one must be durable under its new name before its old name is
	// taken: else a power loss could leave neither.
	switch {
	case !p.exists(place):
	case !p.exists(kept):
		p.rename(place, kept)
		p.sync(p.kept)
		p.sync(p.o.Dir)
	default: // a copy of what is kept: a crash came between the two syncs
		p.do(p.o.FS.RemoveAll(place))
	}
	p.rename(built, place)
	p.sync(p.o.Dir)
}

// identity is replace for a file that must be there at every moment: without it
// the directory is none.
func (p *placing) identity() {
	built, place := p.o.path(datadir.RepairDir, identityName), p.o.path(identityName)
	if !p.exists(built) {
		return // done
	}
	if !p.same(built, place) { // else a crash came right behind the rename
		if p.err == nil {
			p.do(vfs.Copy(p.o.FS, place, p.o.FS.PathJoin(p.kept, identityName)))
		}
		p.sync(p.kept)
	}
	p.rename(built, place)
	p.sync(p.o.Dir)
}

// same compares two files by their bytes. Where only one of two directories was
// synced after a rename between them, a crash may leave both names.
func (p *placing) same(a, b string) bool {
	if p.err != nil {
		return false
	}
	var sums [2][sha256.Size]byte
	for i, path := range []string{a, b} {
		f, err := p.o.FS.Open(path, vfs.SequentialReadsOption)
		if err != nil {
			p.do(err)
			return false
		}
		h := sha256.New()
		_, err = io.Copy(h, f)
		if err = errors.Join(err, f.Close()); err != nil {
			p.do(err)
			return false
		}
		h.Sum(sums[i][:0])
	}
	return sums[0] == sums[1]
}

// topics moves the segment files that were extended over the old ones: each
// has all that the old one had.
func (p *placing) topics() {
	fs := p.o.FS
	for _, topic := range p.list(p.o.path(datadir.RepairDir, topicsDir)) {
		for _, partition := range p.list(p.o.path(datadir.RepairDir, topicsDir, topic)) {
			from, to := p.o.path(datadir.RepairDir, topicsDir, topic, partition), p.o.path(topicsDir, topic, partition)
			p.do(segment.MakeDir(fs, p.o.Dir, to))
			for _, name := range p.list(from) {
				p.rename(fs.PathJoin(from, name), fs.PathJoin(to, name))
			}
			p.sync(to)
		}
	}
}

// log moves the damaged log away and the new one in. Names may be the same, so
// an old file is one that is not kept yet; all of them go before the first new
// one comes.
func (p *placing) log(old []string) {
	fs := p.o.FS
	for _, name := range old {
		switch from, kept := p.o.path(walDir, name), fs.PathJoin(p.kept, name); {
		case !p.exists(from):
		case !p.exists(kept):
			p.rename(from, kept)
		case p.same(from, kept): // its old name came back, and is not a new file's
			p.do(fs.Remove(from))
		}
	}
	p.sync(p.kept)
	p.sync(p.o.path(walDir))
	for _, name := range p.list(p.o.path(datadir.RepairDir, walDir)) {
		p.rename(p.o.path(datadir.RepairDir, walDir, name), p.o.path(walDir, name))
	}
	p.sync(p.o.path(walDir))
}

func (p *placing) list(dir string) []string {
	if p.err != nil {
		return nil
	}
	names, err := p.o.FS.List(dir)
	if err != nil && !errors.Is(err, iofs.ErrNotExist) {
		p.do(err)
	}
	return names
}
