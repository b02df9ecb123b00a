package restore

import (
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/partition"
)

const (
	// lanes write beside each other. More than there are processors, because
	// they wait for the disk; each has the partitions that fall to it.
	lanes = 8

	// A lane is handed loads of about loadBytes, laneLoads of them wait at most:
	// one record each would cost more in hand-overs than in writing.
	loadBytes = 256 << 10
	laneLoads = 4

	// importBytes are in memory until they are written, of all partitions together.
	importBytes = 256 << 20
)

// importers write the records of a replay into their partitions, several
// partitions beside each other, each one's in the order of the log. The replay
// itself, which numbers records and applies what groups did, stays one after
// the other.
//
// What they are given aliases the objects that were read. An object's progress
// counts when its records are written, and two objects at most have records that
// are not.
type importers struct {
	parts   map[broker.PartitionID]*restored
	lanes   [lanes]lane
	wg      sync.WaitGroup
	present *inFlight // of the object that is replayed
	before  *inFlight // of the one before it; nil: none

	mu  sync.Mutex
	err error // the first failure; nothing is written after it
}

type lane struct {
	loads   chan load
	open    load // being filled
	pending int  // bytes in it
}

type load struct {
	arrivals []arrival
	of       *inFlight
}

// arrival is one batch on its way into its partition.
type arrival struct {
	p        *restored
	appendMS int64
	data     []byte
}

// inFlight counts an object's loads that are not written.
type inFlight struct {
	loads sync.WaitGroup
	then  func()
}

// newImporters starts the lanes. The caller stops them.
func newImporters(parts map[broker.PartitionID]*restored) *importers {
	im := &importers{parts: parts, present: &inFlight{}}
	for i := range im.lanes {
		loads := make(chan load, laneLoads)
		im.lanes[i].loads = loads
		im.wg.Go(func() { im.run(loads) })
	}
	return im
}

func (im *importers) run(loads <-chan load) {
	importer := partition.NewImporter(importBytes / lanes)
	for l := range loads {
		for i := range l.arrivals {
			if im.failure() != nil {
				break
			}
			a := &l.arrivals[i]
			if err := importer.Batch(a.p.Partition, a.appendMS, a.data); err != nil {
				im.fail(errcode.Wrap(errcode.Storage, err, "write shipped records of partition %s", a.p.id))
			}
		}
		l.of.loads.Done()
	}
}

// add takes a verified batch, which stays as it is until its object was
// written.
func (im *importers) add(p *restored, appendMS int64, data []byte) {
	l := &im.lanes[(uint64(p.id.Topic)+uint64(p.id.Partition))%lanes]
	l.open.arrivals = append(l.open.arrivals, arrival{p, appendMS, data})
	if l.pending += len(data); l.pending >= loadBytes {
		im.send(l)
	}
}

func (im *importers) send(l *lane) {
	l.open.of = im.present
	im.present.loads.Add(1)
	l.loads <- l.open
	l.open, l.pending = load{}, 0
}

// objectDone says that every record of an object was added. then is called once
// they are written, in the order of the objects. It waits for the object before.
// Without importers, nothing is written.
func (im *importers) objectDone(then func()) error {
	if im == nil {
		then()
		return nil
	}
	for i := range im.lanes {
		if l := &im.lanes[i]; len(l.open.arrivals) > 0 {
			im.send(l)
		}
	}
	im.present.then = then
	err := im.await(im.before)
	im.before, im.present = im.present, &inFlight{}
	return err
}

// await waits until what is in flight is written or failed.
func (im *importers) await(f *inFlight) error {
	if f != nil {
		f.loads.Wait()
	}
	err := im.failure()
	if err == nil && f != nil {
		f.then()
	}
	return err
}

// finish makes everything durable.
func (im *importers) finish() error {
	if im == nil {
		return nil
	}
	if im.before != nil {
		im.before.loads.Wait()
	}
	if err := im.failure(); err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(parallel) // most files are made here, when partitions are many, and wait for syncs
	for _, p := range im.parts {
		g.Go(func() error {
			return errcode.Wrap(errcode.Storage, p.EndImport(), "write shipped records of partition %s", p.id)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	err := im.await(im.before)
	im.before = nil
	return err
}

// stop ends the lanes and waits for them.
func (im *importers) stop() {
	for i := range im.lanes {
		close(im.lanes[i].loads)
	}
	im.wg.Wait()
}

// failure returns why records could not be written, or nil.
func (im *importers) failure() error {
	if im == nil {
		return nil
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	return im.err
}

func (im *importers) fail(err error) {
	im.mu.Lock()
	defer im.mu.Unlock()
	if im.err == nil {
		im.err = err
	}
}
