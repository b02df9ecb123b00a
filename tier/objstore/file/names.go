package file

import (
	"container/list"
	"io/fs"
	"sync"
)

// maxNames is how many directories a store knows, each an open file.
const maxNames = 128

// names knows directories whose way from the root is on the disk: their own name
// and that of each directory above. The least recently used ones are forgotten
// at the bound, which costs a few syncs.
//
// A directory is known as itself and not by its name, which another process may
// have removed and made again without a sync. It is kept open for that reason
// alone: as long as it is, nothing else has its number. Its way stays while it
// is there, for a directory that is not empty is not removed.
type names struct {
	same func(a, b fs.FileInfo) bool
	most int

	mu struct {
		sync.Mutex
		byName map[string]*list.Element // of *known
		used   list.List                // the most recently used one first
		closed bool
	}
}

type known struct {
	name string
	dir  handle
	info fs.FileInfo
}

// durable says whether the directory that stands under the name now is a known one.
func (n *names) durable(name string, now fs.FileInfo) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.mu.byName[name]
	if e == nil || !n.same(e.Value.(*known).info, now) {
		return false
	}
	n.mu.used.MoveToFront(e)
	return true
}

// add makes a directory known and takes over its handle.
func (n *names) add(name string, dir handle, info fs.FileInfo) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.remove(n.mu.byName[name])
	if n.mu.closed {
		_ = dir.Close() // it was only read
		return
	}
	if n.mu.byName == nil {
		n.mu.byName = map[string]*list.Element{}
	}
	n.mu.byName[name] = n.mu.used.PushFront(&known{name, dir, info})
	if n.mu.used.Len() > n.most {
		n.remove(n.mu.used.Back())
	}
}

// drop forgets a name, so that a directory that was removed is not kept open.
func (n *names) drop(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.remove(n.mu.byName[name])
}

// close forgets everything for good.
func (n *names) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.closed = true
	for n.mu.used.Len() > 0 {
		n.remove(n.mu.used.Back())
	}
}

// remove forgets an element, if there is one. n.mu is held.
func (n *names) remove(e *list.Element) {
	if e == nil {
		return
	}
	k := n.mu.used.Remove(e).(*known)
	delete(n.mu.byName, k.name)
	_ = k.dir.Close() // it was only read
}
