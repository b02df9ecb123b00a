package file

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// readNames is how many directory entries are read at once.
const readNames = 512

// List implements objstore.Store. It walks the directories in key order, enters
// only those that can hold a wanted key, and keeps no more names of one directory
// than the page still needs, so memory is bounded by the page and the depth. The
// price: each page reads the directories on its path again.
func (s *Store) List(ctx context.Context, prefix, startAfter string, limit int) (objstore.Page, error) {
	if err := objstore.CheckPrefix(prefix); err != nil {
		return objstore.Page{}, err
	}
	limit, err := objstore.PageLimit(limit)
	if err != nil {
		return objstore.Page{}, err
	}
	if err := objstore.Ended(ctx, "list", prefix); err != nil {
		return objstore.Page{}, err
	}
	w := walk{store: s, ctx: ctx, prefix: prefix, after: startAfter, limit: limit}
	if err := w.dir(prefix[:strings.LastIndexByte(prefix, '/')+1]); err != nil {
		return objstore.Page{}, err
	}
	if len(w.page.Objects) == 0 {
		if err := s.alive(); err != nil {
			return objstore.Page{}, errcode.Wrap(errcode.Internal, err, "list %s", prefix)
		}
	}
	return w.page, nil
}

// walk collects one page.
type walk struct {
	store  *Store
	ctx    context.Context
	prefix string
	after  string // keys up to it are not wanted
	limit  int
	page   objstore.Page
}

// dir collects the wanted objects under dir, which is "" or ends in a slash.
func (w *walk) dir(dir string) error {
	after := ""
	for !w.page.More {
		names, dropped, err := w.names(dir, after)
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := w.entry(dir + name); err != nil || w.page.More {
				return err
			}
			after = name
		}
		// The smallest names were kept; if they did not fill the page (empty
		// directories, files that vanished), the next ones have to be read.
		if !dropped {
			return nil
		}
	}
	return nil
}

// entry takes the object at the path key, or everything under it when it ends in
// a slash.
func (w *walk) entry(key string) error {
	if strings.HasSuffix(key, "/") {
		return w.dir(key)
	}
	st, err := w.store.root.Lstat(key)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil // deleted since its name was read
	}
	if err != nil {
		return errcode.Wrap(codeOf(err), err, "list %s: look at %s", w.prefix, key)
	}
	if !st.Mode().IsRegular() {
		return nil
	}
	if len(w.page.Objects) == w.limit {
		w.page.More = true
		return nil
	}
	w.page.Objects = append(w.page.Objects, info(key, st))
	return nil
}

// names returns, in key order, the smallest wanted entries of dir after the name
// after: as many as the page still needs and one more. A directory's name ends in
// a slash, which is what its objects' keys sort by. dropped says that there are
// more.
func (w *walk) names(dir, after string) (names []string, dropped bool, err error) {
	d, err := w.store.root.OpenFile(path.Clean("./"+dir), os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, errcode.Wrap(codeOf(err), err, "list %s: open %s", w.prefix, dir)
	}
	defer d.Close()
	keep := w.limit - len(w.page.Objects) + 1
	for {
		if err := objstore.Ended(w.ctx, "list", w.prefix); err != nil {
			return nil, false, err
		}
		entries, err := d.ReadDir(readNames)
		for _, e := range entries {
			if name, ok := w.wants(dir, e); ok && name > after {
				names = append(names, name)
			}
		}
		if len(names) > 2*keep {
			slices.Sort(names)
			names, dropped = names[:keep], true
		}
		if errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return nil, false, errcode.Wrap(codeOf(err), err, "list %s: read %s", w.prefix, dir)
		}
	}
	slices.Sort(names)
	if len(names) > keep {
		names, dropped = names[:keep], true
	}
	return names, dropped, nil
}

// wants reports whether the entry can be or hold a wanted object, and its name
// as it sorts.
func (w *walk) wants(dir string, e os.DirEntry) (string, bool) {
	name := e.Name()
	if objstore.CheckKey(name) != nil {
		return "", false // ~tmp, lost+found's odd neighbours, an editor's backup
	}
	if !e.IsDir() {
		full := dir + name
		return name, strings.HasPrefix(full, w.prefix) && full > w.after
	}
	full := dir + name + "/"
	inRange := strings.HasPrefix(full, w.prefix) || strings.HasPrefix(w.prefix, full)
	return name + "/", inRange && (full > w.after || strings.HasPrefix(w.after, full))
}
