package api

import (
	"errors"
	"fmt"
	"time"
)

// Limits are the bounds of the HTTP plane. A zero field means its default.
type Limits struct {
	HeaderBytes     int           // request line and headers; beyond: 431 (64 KiB, at least 8 KiB)
	HeaderTime      time.Duration // from the first byte to the end of the headers; beyond: the connection is closed (5 s)
	IdleTime        time.Duration // between two requests of one connection (60 s)
	Connections     int           // open connections; beyond: accepted, answered 503, closed (16,384)
	BodyStep        time.Duration // for each 64 KiB of a body to arrive, the first bytes have HeaderTime too; beyond: 408 (10 s)
	WriteStep       time.Duration // for each 64 KiB of an answer to leave; beyond: the connection is closed (30 s)
	RecordBytes     int64         // value of one record where the topic says nothing; beyond: 413 (1 MiB)
	KeyBytes        int64         // key of one record in a batch; beyond: 413 (64 KiB)
	RecordHeaders   int           // headers of one record; beyond: 400 (128)
	BatchBytes      int64         // body of a batch produce; beyond: 413 (16 MiB)
	BatchRecords    int           // records of a batch produce; beyond: 413 (1,000)
	ConsumeRecords  int           // records of one consume; beyond: 400 (100)
	ConsumeBytes    int64         // keys and values of one consume answer after its first record; the rest goes back (4 MiB)
	AckHandles      int           // receipt handles of one ack; beyond: 413 (100)
	SmallBody       int64         // bodies of requests that carry no records; beyond: 413 (64 KiB)
	Waiting         int           // consumes of one identity at a time; beyond: 429 (16,384)
	LargeBody       int64         // bodies and answers above this size count into LargeBodyBytes (64 KiB)
	LargeBodyBytes  int64         // large bodies and answers together; beyond: 503 (256 MiB)
	PageRecords     int           // records of one page of the log; beyond: 400 (1,000)
	PageBytes       int64         // keys and values of one page after its first record; beyond: 400 (16 MiB)
	Streams         int           // streams of the log at work at a time, those that wait for a record not counted; beyond: they wait their turn, for WriteStep, then 503 (256)
	KeepAlive       time.Duration // after that long without a record an event stream gets a comment (15 s)
	ConsumeWait     time.Duration // longest wait of a consume or page; longer ones are clamped (10 s)
	ProduceWait     time.Duration // longest wait of a produce; beyond: 400 (30 s)
	LeaseTime       time.Duration // longest extension of a lease, and longest delay of a nack; beyond: 400 (12 h)
	AdminTime       time.Duration // for calls about topics and about offsets (30 s)
	LingerBytes     int64         // read and thrown away after an early answer, so that the client can read it (32 MiB)
	LingerTime      time.Duration // for the same (5 s)
	RefusalsAtATime int           // connections beyond the bound that are being answered; beyond: closed without an answer (256)
}

// DefaultLimits returns the limits that apply where nothing is configured.
func DefaultLimits() Limits {
	return Limits{
		HeaderBytes: 64 << 10, HeaderTime: 5 * time.Second, IdleTime: time.Minute,
		Connections: 16384, BodyStep: 10 * time.Second, WriteStep: 30 * time.Second,
		RecordBytes: 1 << 20, KeyBytes: 64 << 10, RecordHeaders: 128,
		BatchBytes: 16 << 20, BatchRecords: 1000,
		ConsumeRecords: 100, ConsumeBytes: 4 << 20, AckHandles: 100, SmallBody: 64 << 10,
		Waiting: 16384, LargeBody: 64 << 10, LargeBodyBytes: 256 << 20,
		PageRecords: 1000, PageBytes: 16 << 20, Streams: 256, KeepAlive: 15 * time.Second,
		ConsumeWait: 10 * time.Second, ProduceWait: 30 * time.Second, LeaseTime: 12 * time.Hour,
		AdminTime: 30 * time.Second, LingerBytes: 32 << 20, LingerTime: 5 * time.Second,
		RefusalsAtATime: 256,
	}
}

// minHeaderBytes is twice what net/http adds to its own bound on headers.
const minHeaderBytes = 8 << 10

// Validate reports every field that is out of bounds, after zero fields have
// taken their defaults.
func (l Limits) Validate() error {
	l = l.withDefaults()
	var errs []error
	check := func(name string, v, least int64) {
		if v < least {
			errs = append(errs, fmt.Errorf("limit %s is %d, the least is %d", name, v, least))
		}
	}
	check("HeaderBytes", int64(l.HeaderBytes), minHeaderBytes)
	for name, v := range map[string]time.Duration{
		"HeaderTime": l.HeaderTime, "IdleTime": l.IdleTime, "BodyStep": l.BodyStep, "WriteStep": l.WriteStep,
		"ConsumeWait": l.ConsumeWait, "ProduceWait": l.ProduceWait, "LeaseTime": l.LeaseTime,
		"AdminTime": l.AdminTime, "LingerTime": l.LingerTime, "KeepAlive": l.KeepAlive,
	} {
		check(name, int64(v), int64(time.Millisecond))
	}
	for name, v := range map[string]int64{
		"Connections": int64(l.Connections), "RecordBytes": l.RecordBytes, "KeyBytes": l.KeyBytes,
		"RecordHeaders": int64(l.RecordHeaders), "BatchBytes": l.BatchBytes, "BatchRecords": int64(l.BatchRecords),
		"ConsumeRecords": int64(l.ConsumeRecords), "ConsumeBytes": l.ConsumeBytes, "AckHandles": int64(l.AckHandles),
		"SmallBody": l.SmallBody, "Waiting": int64(l.Waiting), "LargeBody": l.LargeBody,
		"LargeBodyBytes": l.LargeBodyBytes, "PageRecords": int64(l.PageRecords), "PageBytes": l.PageBytes,
		"LingerBytes": l.LingerBytes, "RefusalsAtATime": int64(l.RefusalsAtATime), "Streams": int64(l.Streams),
	} {
		check(name, v, 1)
	}
	return errors.Join(errs...)
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	orInt(&l.HeaderBytes, d.HeaderBytes)
	orInt(&l.HeaderTime, d.HeaderTime)
	orInt(&l.IdleTime, d.IdleTime)
	orInt(&l.Connections, d.Connections)
	orInt(&l.BodyStep, d.BodyStep)
	orInt(&l.WriteStep, d.WriteStep)
	orInt(&l.RecordBytes, d.RecordBytes)
	orInt(&l.KeyBytes, d.KeyBytes)
	orInt(&l.RecordHeaders, d.RecordHeaders)
	orInt(&l.BatchBytes, d.BatchBytes)
	orInt(&l.BatchRecords, d.BatchRecords)
	orInt(&l.ConsumeRecords, d.ConsumeRecords)
	orInt(&l.ConsumeBytes, d.ConsumeBytes)
	orInt(&l.AckHandles, d.AckHandles)
	orInt(&l.SmallBody, d.SmallBody)
	orInt(&l.Waiting, d.Waiting)
	orInt(&l.LargeBody, d.LargeBody)
	orInt(&l.LargeBodyBytes, d.LargeBodyBytes)
	orInt(&l.PageRecords, d.PageRecords)
	orInt(&l.PageBytes, d.PageBytes)
	orInt(&l.Streams, d.Streams)
	orInt(&l.KeepAlive, d.KeepAlive)
	orInt(&l.ConsumeWait, d.ConsumeWait)
	orInt(&l.ProduceWait, d.ProduceWait)
	orInt(&l.LeaseTime, d.LeaseTime)
	orInt(&l.AdminTime, d.AdminTime)
	orInt(&l.LingerBytes, d.LingerBytes)
	orInt(&l.LingerTime, d.LingerTime)
	orInt(&l.RefusalsAtATime, d.RefusalsAtATime)
	return l
}

// orInt gives v its default when it is zero.
func orInt[T ~int | ~int64](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}
