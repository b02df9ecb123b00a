package node

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// diskInterval is how often free space is looked at.
const diskInterval = 250 * time.Millisecond

// disk watches the free space of the data directory. Below the reserve,
// produce is refused, while acks and flushing go on; below a quarter of it the
// local state is not written either, so that what is left is for the log, and
// acks with it. Both end by themselves when space comes back.
type disk struct {
	fs      vfs.FS
	dir     string
	reserve int64 // 0: 5 % of the disk, at least 1 GiB
	free    atomic.Int64
	limit   atomic.Int64
	onLow   func() // called at each look that finds less than the reserve; set before run
}

func newDisk(fs vfs.FS, dir string, reserve int64) *disk {
	d := &disk{fs: fs, dir: dir, reserve: reserve}
	d.look()
	return d
}

// look asks the file system. One that cannot tell counts as having space: the
// writes themselves will fail if not.
func (d *disk) look() {
	limit := d.reserve
	u, err := d.fs.GetDiskUsage(d.dir)
	if err != nil {
		d.free.Store(1 << 62)
		return
	}
	if limit == 0 {
		limit = max(1<<30, int64(u.TotalBytes/20))
	}
	d.limit.Store(limit)
	d.free.Store(int64(min(u.AvailBytes, 1<<62)))
}

func (d *disk) run(ctx context.Context) error {
	t := time.NewTicker(diskInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			d.look()
			if d.onLow != nil && d.accept() != nil {
				d.onLow()
			}
		}
	}
}

// accept says whether records may be taken in.
func (d *disk) accept() error { return d.above(d.limit.Load(), "records are refused") }

// room says whether that many bytes can be taken for what the node can do
// without, so that the reserve stays whole. It asks the file system: the bytes
// are many, and the last look may be old.
func (d *disk) room(bytes int64) error {
	d.look()
	return d.above(d.limit.Load()+bytes, "no spare files are made")
}

// write says whether files and the local state may grow.
func (d *disk) write() error { return d.above(d.limit.Load()/4, "flushing waits") }

// accept says whether the disk lets records be taken in. Without the local state
// nothing leaves the log, so it would only fill the disk.
func (n *Node) accept() error {
	if err := n.disk.accept(); err != nil {
		return err
	}
	return n.db.Err()
}

func (d *disk) above(limit int64, what string) error {
	if free := d.free.Load(); free < limit {
		return errcode.New(errcode.Storage, "disk of %s has %d bytes free, %d are kept in reserve: %s until there is space again; free some, or lower disk_reserve", d.dir, free, limit, what).After(time.Second)
	}
	return nil
}
