package crash

import (
	"maps"
	"sync/atomic"
)

const pageSize = 4096

var epochs atomic.Uint64

// page is one page of a file. It may be written only by the inode in whose
// present epoch it was made; everybody else shares it.
type page struct {
	epoch uint64
	data  [pageSize]byte
}

// inode is a file or a directory, once as the page cache has it and once as
// the disk does. FS.mu guards it.
type inode struct {
	dir bool

	// A file. A nil page is zeros; pages are compared by address.
	epoch   uint64
	pages   []*page
	size    int64
	durable []*page
	onDisk  int64         // the durable size
	lost    map[int]*page // pages that a failed sync forgot, until they are written anew

	// A directory.
	names   map[string]*inode
	durably map[string]*inode
	order   map[string]uint64 // names that changed, and when
}

func newFile() *inode { return &inode{epoch: epochs.Add(1)} }

func newDir() *inode {
	return &inode{dir: true, names: map[string]*inode{}, durably: map[string]*inode{}, order: map[string]uint64{}}
}

// set gives a name to an inode, or takes it away with nil.
func (n *inode) set(name string, child *inode) {
	n.order[name] = epochs.Add(1)
	if child == nil {
		delete(n.names, name)
	} else {
		n.names[name] = child
	}
}

func at(pages []*page, i int) *page {
	if i < len(pages) {
		return pages[i]
	}
	return nil
}

var zeros page

// write puts b at off.
func (n *inode) write(b []byte, off int64) {
	n.size = max(n.size, off+int64(len(b)))
	for len(n.pages) < int((n.size+pageSize-1)/pageSize) {
		n.pages = append(n.pages, nil)
	}
	for len(b) > 0 {
		i, in := int(off/pageSize), int(off%pageSize)
		k := min(pageSize-in, len(b))
		p := n.pages[i]
		switch {
		case p == nil && string(b[:k]) == string(zeros.data[:k]):
			// Zeros over nothing: only the length changes.
		case p == nil || p.epoch != n.epoch:
			fresh := &page{epoch: n.epoch}
			if p != nil && k < pageSize {
				fresh.data = p.data
			}
			n.pages[i], p = fresh, fresh
			fallthrough
		default:
			copy(p.data[in:], b[:k])
		}
		b, off = b[k:], off+int64(k)
	}
}

// read fills b from off and returns how much there was.
func (n *inode) read(b []byte, off int64) int {
	if off >= n.size {
		return 0
	}
	b = b[:min(int64(len(b)), n.size-off)]
	total := len(b)
	for len(b) > 0 {
		i, in := int(off/pageSize), int(off%pageSize)
		k := min(pageSize-in, len(b))
		if p := n.pages[i]; p != nil {
			copy(b[:k], p.data[in:])
		} else {
			clear(b[:k])
		}
		b, off = b[k:], off+int64(k)
	}
	return total
}

// sync makes the inode durable, apart from pages that an earlier sync lost.
func (n *inode) sync() {
	if n.dir {
		n.durably = maps.Clone(n.names)
		return
	}
	n.epoch = epochs.Add(1)
	n.onDisk = n.size
	durable := make([]*page, len(n.pages))
	for i, p := range n.pages {
		if forgotten, ok := n.lost[i]; ok && forgotten == p {
			p = at(n.durable, i)
		} else {
			delete(n.lost, i)
		}
		durable[i] = p
	}
	n.durable = durable
}

// forget is a sync that failed as a kernel's does: what was dirty counts as
// clean and is never written, unless it is written anew.
func (n *inode) forget() {
	if n.dir {
		return
	}
	n.epoch = epochs.Add(1) // a later write makes a new page, which is dirty again
	for i, p := range n.pages {
		if p != at(n.durable, i) {
			if n.lost == nil {
				n.lost = map[int]*page{}
			}
			n.lost[i] = p
		}
	}
}
