package crash

import (
	"maps"
	"math/rand/v2"
	"slices"
)

// Kill returns the file system as the death of the process leaves it:
// everything that was written is there, and what was not synced still is not.
func (fs *FS) Kill() *FS {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	copies := map[*inode]*inode{}
	return &FS{Journal: fs.Journal, root: fs.root.fork(copies)}
}

// fork copies the inode and all below it, in both views. Pages are shared.
func (n *inode) fork(copies map[*inode]*inode) *inode {
	if n == nil {
		return nil
	}
	if c := copies[n]; c != nil {
		return c
	}
	c := &inode{dir: n.dir}
	copies[n] = c
	if !n.dir {
		n.epoch, c.epoch = epochs.Add(1), epochs.Add(1)
		c.pages, c.size = slices.Clone(n.pages), n.size
		c.durable, c.onDisk = n.durable, n.onDisk // never changed in place
		c.lost = maps.Clone(n.lost)
		return c
	}
	c.order = maps.Clone(n.order)
	c.names, c.durably = make(map[string]*inode, len(n.names)), make(map[string]*inode, len(n.durably))
	for name, child := range n.names {
		c.names[name] = child.fork(copies)
	}
	for name, child := range n.durably {
		c.durably[name] = child.fork(copies)
	}
	return c
}

// choice is one thing that a power loss may keep or not.
type choice struct {
	n    *inode
	page int    // of a file; -1 = its length
	name string // of a directory
	when uint64 // of a name in a directory with a journal: its change, else 0
}

// choices lists what is not durable, in an order that depends on nothing but
// the tree. fs.mu is held.
func (fs *FS) choices() []choice {
	var out []choice
	seen := map[*inode]bool{}
	var walk func(n *inode, dir string)
	walk = func(n *inode, dir string) {
		if seen[n] {
			return
		}
		seen[n] = true
		if !n.dir {
			for i, p := range n.pages {
				if p != at(n.durable, i) {
					out = append(out, choice{n: n, page: i})
				}
			}
			if n.size != n.onDisk {
				out = append(out, choice{n: n, page: -1})
			}
			return
		}
		for _, name := range unionNames(n) {
			now, then := n.names[name], n.durably[name]
			if now != then {
				c := choice{n: n, name: name}
				if fs.Journal != "" && dir == fs.Journal {
					c.when = n.order[name]
				}
				out = append(out, c)
			}
			for _, child := range []*inode{now, then} {
				if child != nil {
					walk(child, name)
				}
			}
		}
	}
	walk(fs.root, "")
	return out
}

func unionNames(n *inode) []string {
	out := make([]string, 0, len(n.names))
	for name := range n.names {
		out = append(out, name)
	}
	for name := range n.durably {
		if n.names[name] == nil {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// Dirty returns how many things are not durable.
func (fs *FS) Dirty() int {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return len(fs.choices())
}

// Losses returns up to most different disks that a loss of power may leave:
// all of them if they are that few, else the two extremes and random ones, in
// which pages may also be torn.
func (fs *FS) Losses(rng *rand.Rand, most int) []*FS {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	list := fs.choices()
	seen := map[string]bool{}
	var out []*FS
	add := func(keep func(i int) bool, tear *rand.Rand) {
		b := builder{kept: make(map[choice]bool, len(list)), tear: tear, made: map[*inode]*inode{}}
		for i, c := range list {
			b.keep(c, keep(i))
		}
		b.inOrder(list)
		b.moves(list)
		image := &FS{Journal: fs.Journal, root: b.build(fs.root)}
		if sig := string(b.sign); tear != nil || !seen[sig] {
			seen[sig] = true
			out = append(out, image)
		}
	}
	if len(list) < 20 && 1<<len(list) <= most {
		for set := range 1 << len(list) {
			add(func(i int) bool { return set>>i&1 == 1 }, nil)
		}
		return out
	}
	add(func(int) bool { return false }, nil)
	if most > 2 {
		add(func(int) bool { return true }, nil)
	}
	for len(out) < most {
		percent := []int{10, 30, 50, 70, 90, 97}[rng.IntN(6)]
		add(func(int) bool { return rng.IntN(100) < percent }, rng)
	}
	return out
}

// Loss returns one disk that a loss of power may leave.
func (fs *FS) Loss(rng *rand.Rand) *FS {
	all := fs.Losses(rng, 4)
	return all[rng.IntN(len(all))]
}

// builder makes one image. Its sign tells what came of the choices in sight, so
// that two images that differ only in what is out of sight count once.
type builder struct {
	kept  map[choice]bool
	sign  []byte
	tear  *rand.Rand
	made  map[*inode]*inode
	until map[*inode]uint64 // in directories with a journal: the last change that is kept
}

// keep notes a choice. When it comes to names, a directory with a journal keeps
// everything that came before something that it keeps (inOrder).
func (b *builder) keep(c choice, yes bool) {
	if c.when > 0 && yes {
		if b.until == nil {
			b.until = map[*inode]uint64{}
		}
		b.until[c.n] = max(b.until[c.n], c.when)
	}
	c.when = 0
	b.kept[c] = yes
}

func (b *builder) inOrder(list []choice) {
	for _, c := range list {
		if c.when > 0 && c.when <= b.until[c.n] {
			c.when = 0
			b.kept[c] = true
		}
	}
}

// moves lets no rename from one directory into another lose what it moves: when
// the new name is not kept, the old one is. Both may be there, in a file system
// that syncs one directory without the other.
func (b *builder) moves(list []choice) {
	to := map[*inode]choice{}
	for _, c := range list {
		if now := c.n.names[c.name]; c.name != "" && now != nil {
			c.when = 0
			to[now] = c
		}
	}
	for again := true; again; {
		again = false
		for _, c := range list {
			if c.name == "" {
				continue
			}
			c.when = 0
			moved, ok := to[c.n.durably[c.name]]
			if ok && moved.n != c.n && b.kept[c] && !b.kept[moved] {
				b.kept[c] = false // which may be where another one was moved to
				again = true
			}
		}
	}
}

func (b *builder) keeps(c choice) bool {
	kept := b.kept[c]
	if c.name == "" {
		b.signs(kept)
	}
	return kept
}

func (b *builder) signs(yes bool) {
	if yes {
		b.sign = append(b.sign, 1)
	} else {
		b.sign = append(b.sign, 0)
	}
}

func (b *builder) build(n *inode) *inode {
	if c := b.made[n]; c != nil {
		return c
	}
	c := &inode{dir: n.dir, epoch: epochs.Add(1)}
	if n.dir {
		c.order = map[string]uint64{}
	}
	b.made[n] = c
	if n.dir {
		b.directory(c, n)
		return c
	}
	c.size = n.onDisk
	c.pages = slices.Clone(n.durable)
	for i, p := range n.pages {
		old := at(n.durable, i)
		if p == old || !b.keeps(choice{n: n, page: i}) {
			continue
		}
		c.size = max(c.size, min(n.size, int64(i+1)*pageSize))
		for len(c.pages) <= i {
			c.pages = append(c.pages, nil)
		}
		c.pages[i] = b.torn(old, p)
	}
	if n.size != n.onDisk && b.keeps(choice{n: n, page: -1}) {
		c.size = n.size // the length came through, what is missing reads as zeros
	}
	for len(c.pages) < int((c.size+pageSize-1)/pageSize) {
		c.pages = append(c.pages, nil)
	}
	// The writer's inode must not write these pages in place any more.
	n.epoch = epochs.Add(1)
	c.durable, c.onDisk = slices.Clone(c.pages), c.size
	return c
}

const sector = 512

// torn returns the new page or, now and then, a mix of its sectors with the
// old one's.
func (b *builder) torn(old, now *page) *page {
	if b.tear == nil || now == nil || b.tear.IntN(4) != 0 {
		return now
	}
	mix := &page{data: now.data}
	for at := 0; at < pageSize; at += sector {
		if b.tear.IntN(2) == 0 {
			if old == nil {
				clear(mix.data[at : at+sector])
			} else {
				copy(mix.data[at:at+sector], old.data[at:])
			}
		}
	}
	return mix
}

func (b *builder) directory(c, n *inode) {
	names := map[string]*inode{}
	for _, name := range unionNames(n) {
		now, then := n.names[name], n.durably[name]
		child := then
		if now != then && b.keeps(choice{n: n, name: name}) {
			child = now
		}
		if child != nil {
			names[name] = child
		}
	}
	b.renames(n, names)
	for _, name := range unionNames(n) {
		if now, then := n.names[name], n.durably[name]; now != then {
			b.signs(names[name] == now)
			b.signs(names[name] == then)
		}
	}
	c.names = make(map[string]*inode, len(names))
	sorted := slices.Sorted(maps.Keys(names)) // random numbers are drawn in a fixed order
	for _, name := range sorted {
		c.names[name] = b.build(names[name])
	}
	c.durably = maps.Clone(c.names)
}

// renames makes each rename atomic, as file systems with a journal do: a file
// that changed its name has the old one or the new one, not both, and not none.
func (b *builder) renames(n *inode, names map[string]*inode) {
	for _, before := range slices.Sorted(maps.Keys(n.durably)) {
		child := n.durably[before]
		after, moved := nameOf(n.names, child)
		if !moved || n.names[before] == child {
			continue // removed, or there still
		}
		switch here, there := names[before] == child, names[after] == child; {
		case here && there:
			delete(names, before)
		case !here && !there && names[before] == nil:
			names[before] = child
		case !here && !there:
			names[after] = child
		}
	}
}

// nameOf returns the first name of an inode.
func nameOf(names map[string]*inode, n *inode) (string, bool) {
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if names[name] == n {
			return name, true
		}
	}
	return "", false
}
