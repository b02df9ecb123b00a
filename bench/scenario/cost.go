package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/tidemark-mq/tidemark/bench/load"
	"github.com/tidemark-mq/tidemark/bench/report"
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Prices are what a store asks for, in dollars.
type Prices struct {
	Put       float64 // 1,000 requests that put
	Get       float64 // 1,000 requests that read
	List      float64 // 1,000 requests that list
	Storage   float64 // a GB (10^9 bytes) for a month
	Transfer  float64 // a GB read out of the store
	Source    string
	Retention time.Duration // of the records in the archive, for storage
}

// DefaultPrices are those of S3 Standard in its first region, by which a node
// estimates its requests too.
func DefaultPrices() Prices {
	return Prices{
		Put: 1000 * objstore.PutPrice, Get: 1000 * objstore.GetPrice, List: 1000 * objstore.PutPrice, Storage: 0.023,
		Source:    "list prices of Amazon S3 Standard, US East (N. Virginia), first tier, https://aws.amazon.com/s3/pricing/",
		Retention: 7 * 24 * time.Hour,
	}
}

// check reports what is wrong with the prices.
func (p *Prices) check() error {
	var errs []error
	for name, v := range map[string]float64{"put": p.Put, "get": p.Get, "list": p.List, "storage": p.Storage, "transfer": p.Transfer} {
		if v < 0 || v > 1e6 || math.IsNaN(v) {
			errs = append(errs, fmt.Errorf("price of %s: %g is no amount of dollars from 0 to a million", name, v))
		}
	}
	if p.Retention < 0 || p.Retention > 100*365*24*time.Hour {
		errs = append(errs, fmt.Errorf("retention: %v is not within 0 and 100 years", p.Retention))
	}
	return errors.Join(errs...)
}

const (
	month = 730 * time.Hour
	// MaxLoad bounds the MB of records a second of archive-cost.
	MaxLoad = 10_000
)

// ArchiveCost measures what a constant stream of records asks of the archive, and
// says what a month of it costs. Counts are the node's own.
func ArchiveCost(ctx context.Context, o Options) (*report.Report, error) {
	if o.Load > 0 {
		o.Rate = o.Load * 1e6 / float64(o.Size*o.Batch)
	}
	b, err := start("archive-cost", o)
	if err != nil {
		return nil, err
	}
	b.timed()
	p := &b.Prices
	b.rep.Set("records", fmt.Sprintf("%g MB/s, in batches of %d", o.Load, o.Batch))
	b.rep.Set("prices", p.Source)
	b.rep.Set("1,000 requests: put, list, get", fmt.Sprintf("%g $, %g $, %g $; deletes are free", p.Put, p.List, p.Get))
	b.rep.Set("a GB: stored for a month, read out", fmt.Sprintf("%g $, %g $", p.Storage, p.Transfer))
	b.rep.Set("records stay in the archive for", fmt.Sprintf("%.1f days", p.Retention.Hours()/24))
	b.rep.Set("a month", "730 hours; a GB is 10^9 bytes")
	return b.finish(b.archiveCost(ctx))
}

func (b *bench) archiveCost(ctx context.Context) error {
	for i := range b.Runs {
		err := b.try(ctx, func(t *trial) error {
			stage := fmt.Sprintf("archive-cost %d of %d", i+1, b.Runs)
			before, err := b.archiveStatus(ctx)
			if err != nil {
				return err
			}
			begun := time.Now()
			res, err := t.produce(ctx, b.plan(stage, b.Rate), t.batch)
			if err == nil {
				err = t.nothing(res)
			}
			if err != nil {
				return err
			}
			loaded, err := b.archiveStatus(ctx)
			if err != nil {
				return err
			}
			during := time.Since(begun)
			s, err := t.settled(ctx, stage+": until all of it is archived", false)
			if err != nil {
				return err
			}
			after, err := b.archiveStatus(ctx)
			if err != nil {
				return err
			}
			b.noteMissed("archive-cost", i+1, res)
			if !res.Held() {
				b.rep.Notes = append(b.rep.Notes, fmt.Sprintf("run %d: the rate was not held (%.4g of %.4g batches a second): costs are those of what was produced.", i+1, res.OpsPerSecond(), b.Rate))
			}
			accepted, _ := t.ledger.Counts()
			c := &bill{p: &b.Prices, seconds: during.Seconds(), produced: float64(accepted) * float64(b.Size) / 1e9, shelf: s}
			c.add(before, loaded, after)
			b.report(c, res)
			return t.readBack(ctx)
		})
		if err != nil {
			return err
		}
	}
	b.rep.Notes = append(b.rep.Notes,
		"Costs by bytes are those of the segments of this run and of their chain entries: a run that is short against seal_age makes smaller segments than a month would, and costs more a GB. Costs by time are the log that is shipped, states and exports, while records came.",
		"What readers of the archive, scrubbing and restores ask of the store comes on top.")
	return nil
}

// Causes whose requests go with the bytes that are archived; all others go with time.
var byBytes = map[string]bool{"segment": true, "chain": true, "merge": true}

// bill is what one run asked of the store.
type bill struct {
	p        *Prices
	seconds  float64 // of the load
	produced float64 // GB of records
	shelf    shelf

	timed  asked            // while records came, by causes that go with time
	sized  asked            // until all was archived, by causes that go with bytes
	causes map[string]asked // each of its kind
}

// asked are requests and bytes.
type asked struct{ put, get, list, delete, sent, received float64 }

func (a *asked) plus(b asked) {
	a.put, a.get, a.list, a.delete = a.put+b.put, a.get+b.get, a.list+b.list, a.delete+b.delete
	a.sent, a.received = a.sent+b.sent, a.received+b.received
}

func (a asked) dollars(p *Prices) float64 {
	return a.put*p.Put/1e3 + a.list*p.List/1e3 + a.get*p.Get/1e3 + a.received/1e9*p.Transfer
}

// add takes the counts from a node's three answers: before the load, behind it, and
// when everything was archived.
func (c *bill) add(before, loaded, after broker.ArchiveStatus) {
	c.causes = map[string]asked{}
	first, second, third := demands(before), demands(loaded), demands(after)
	for cause := range third {
		kind, until := &c.timed, second
		if byBytes[cause] {
			kind, until = &c.sized, third
		}
		a := until[cause]
		a.plus(first[cause].times(-1))
		kind.plus(a)
		c.causes[cause] = a
	}
}

func (a asked) times(f float64) asked {
	return asked{a.put * f, a.get * f, a.list * f, a.delete * f, a.sent * f, a.received * f}
}

// demands are a node's counts by cause. What is no put, list or delete reads.
func demands(s broker.ArchiveStatus) map[string]asked {
	out := map[string]asked{}
	for _, d := range s.Cost.Causes {
		a := asked{sent: float64(d.SentBytes), received: float64(d.ReceivedBytes)}
		for op, n := range d.Requests {
			switch op {
			case "put":
				a.put += float64(n)
			case "list":
				a.list += float64(n)
			case "delete":
				a.delete += float64(n)
			default:
				a.get += float64(n)
			}
		}
		out[d.Cause] = a
	}
	return out
}

// report adds a run to the report.
func (b *bench) report(c *bill, res *load.Result) {
	perGB := func(v float64) float64 { return v / c.produced }
	months := month.Seconds() / c.seconds // of the load in a month
	archived := float64(c.shelf.bytes) / 1e9
	share := float64(c.shelf.archived) / float64(max(1, c.shelf.records))

	var made report.Run
	made.Add("produced", "MB/s", c.produced*1e3/c.seconds)
	made.Add("requests held", "batches/s", res.OpsPerSecond())
	made.Add("stored of a GB produced", "GB", archived/share/c.produced)
	made.Add("shipped of a GB produced", "GB", perGB(c.timed.sent/1e9))
	made.Add("segments", "", float64(c.shelf.segments))
	if c.shelf.segments > 0 {
		made.Add("bytes of a segment", "MB", archived*1e3/float64(c.shelf.segments))
	}
	b.into("produced and archived", "open loop", made)

	// What was archived stands for all of it.
	sized := c.sized.times(1 / share)
	var asks report.Run
	for _, op := range []struct {
		name         string
		timed, sized float64
	}{
		{"PUT", c.timed.put, sized.put}, {"GET", c.timed.get, sized.get}, {"LIST", c.timed.list, sized.list}, {"DELETE", c.timed.delete, sized.delete},
	} {
		asks.Add(op.name+" a GB produced", "requests", perGB(op.timed+op.sized))
		asks.Add(op.name+" a month", "requests", (op.timed+op.sized)*months)
	}
	asks.Add("PUT of shipping and states", "a day", c.timed.put/c.seconds*86400)
	b.into("requests, counted by the node", "counts", asks)

	var costs report.Run
	byTime, byBytes := c.timed.dollars(c.p)*months, sized.dollars(c.p)*months
	kept := archived / share * months * (c.p.Retention.Seconds() / month.Seconds()) * c.p.Storage
	costs.Add("requests by time", "$ a month", byTime)
	costs.Add("requests by bytes", "$ a month", byBytes)
	costs.Add("storage of records", "$ a month", kept)
	costs.Add("all", "$ a month", byTime+byBytes+kept)
	costs.Add("requests of a GB produced", "$", perGB(c.timed.dollars(c.p)+sized.dollars(c.p)))
	b.into("a month at this rate", "counts times prices", costs)

	var causes report.Run
	for _, d := range slices.Sorted(maps.Keys(c.causes)) {
		causes.Add(d, "$ a month", c.causes[d].dollars(c.p)*months)
	}
	b.into("requests by cause", "counts times prices", causes)
}

// into adds a run to a measure.
func (b *bench) into(measure, loop string, r report.Run) {
	m := b.rep.Measure(measure, loop)
	m.Runs = append(m.Runs, r)
}
