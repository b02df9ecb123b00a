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
// produce is refused, while acks and flushing go on; below a quarter of it
// nothing is flushed either, so that what is left is for the log, and acks with
// it. Both end by themselves when space comes back.
type disk struct {
	fs      vfs.FS
	dir     string
	reserve int64 // 0: 5 % of the disk, at least 1 GiB
	free    atomic.Int64
	limit   atomic.Int64
	onLook  func(low bool) // called at each look; low: less than the reserve is free. Set before run
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
			if d.onLook != nil {
				d.onLook(d.accept() != nil)
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

// write says whether segment files may grow.
func (d *disk) write() error { return d.above(d.limit.Load()/4, "flushing waits") }

// accept says whether the disk lets records be taken in. Without the local state
// nothing leaves the log, so it would only fill the disk.
func (n *Node) accept() error {
	if err := n.disk.accept(); err != nil {
		if bytes := n.refused.bytes.Load(); bytes > 0 {
			return errcode.Wrap(errcode.Storage, err, "partitions out of service keep %d bytes of the log: repair them, or delete their topics", bytes)
		}
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
