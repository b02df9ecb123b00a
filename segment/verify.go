package segment

import (
	"bufio"
	"fmt"
	"io"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// maxProblems bounds a report.
const maxProblems = 100

// Problem is one thing in a segment that does not verify.
type Problem struct {
	File     string
	Position int64 // bytes from the beginning of the file
	Offset   int64 // base offset of the batch, -1 when it is about no batch
	Next     int64 // exclusive end of the offsets that it is about, 0 when that is not known
	What     string
	Want     string
	Got      string
}

// String is one line with file, position, offset, want and got.
func (p Problem) String() string {
	return fmt.Sprintf("%s: position %d, offset %d: %s: want %s, got %s", p.File, p.Position, p.Offset, p.What, p.Want, p.Got)
}

// Report is the result of Verify.
type Report struct {
	Info     Info      // as the footer says, with the checksums that were computed
	Batches  int       // that verified
	Records  int64     // in those
	Problems []Problem // at most 100
	More     int       // problems that were left out
}

// Err is nil when there are no problems, else Corrupt with the first of them.
func (r *Report) Err() error {
	if len(r.Problems) == 0 {
		return nil
	}
	return errcode.New(errcode.Corrupt, "%s (%d problems)", r.Problems[0], len(r.Problems)+r.More).
		With("file", r.Problems[0].File).With("position", r.Problems[0].Position)
}

// Verify checks a sealed segment of size bytes: footer, index, the checksum of
// every batch, the index against the batches, and the SHA-256 of the data. Deep
// also decodes every record and compares counts and times. One bad batch does
// not hide the others. The error is about reading only (Storage); what the
// bytes have wrong is in the report.
func Verify(name string, r io.ReaderAt, size int64, deep bool) (Report, error) {
	v := verifier{name: name, deep: deep, sums: newSums()}
	f, x, err := readTail(name, r, size)
	if err != nil {
		if errcode.Is(err, errcode.Storage) {
			return v.report, err
		}
		v.problem(size, -1, "footer and index", "that they verify", err.Error())
		return v.report, nil
	}
	v.report.Info = infoOf(&f)
	// The index is without holes, so its batches and what follows them are the
	// whole file, read once and in order.
	v.r = bufio.NewReaderSize(io.NewSectionReader(r, 0, size), int(min(scanBuffer, size)))
	var total Info
	for i := range x.Len() {
		if v.next = f.Next; i+1 < x.Len() {
			v.next = x.At(i + 1).Base
		}
		if err := v.batch(x.At(i), &total); err != nil {
			return v.report, err
		}
	}
	in := &v.report.Info
	in.DataSHA256 = v.sums.sha()
	if _, err := v.read(int(in.IndexLength)); err != nil {
		return v.report, err
	}
	if _, err := v.read(FooterSize); err != nil {
		return v.report, err
	}
	in.FileSHA256, in.FileCRC32C = v.sums.sha(), v.sums.crc
	v.totals(&f, &total)
	return v.report, nil
}

type verifier struct {
	name    string
	r       io.Reader
	deep    bool
	sums    sums
	buf     []byte
	next    int64 // where the batch behind the one that is looked at begins
	scratch Scratch
	report  Report
}

func (v *verifier) problem(pos, offset int64, what, want, got string) {
	if len(v.report.Problems) == maxProblems {
		v.report.More++
		return
	}
	p := Problem{File: v.name, Position: pos, Offset: offset, What: what, Want: want, Got: got}
	if offset >= 0 {
		p.Next = v.next
	}
	v.report.Problems = append(v.report.Problems, p)
}

func (v *verifier) differ(e Entry, what string, want, got int64) {
	if want != got {
		v.problem(e.Position, e.Base, what, fmt.Sprint(want), fmt.Sprint(got))
	}
}

// read returns the next n bytes of the file, valid until the next call.
func (v *verifier) read(n int) ([]byte, error) {
	if cap(v.buf) < n {
		v.buf = make([]byte, n)
	}
	b := v.buf[:n]
	if _, err := io.ReadFull(v.r, b); err != nil {
		return nil, errcode.Wrap(errcode.Storage, err, "read %s at position %d", v.name, v.sums.n)
	}
	v.sums.add(b)
	return b, nil
}

// batch checks one batch against its index entry and takes it into total.
func (v *verifier) batch(e Entry, total *Info) error {
	b, err := v.read(e.Size)
	if err != nil {
		return err
	}
	h, err := VerifyBatch(b)
	if err != nil {
		v.problem(e.Position, e.Base, "batch", "that it verifies", err.Error())
		return nil
	}
	v.differ(e, "base offset", e.Base, h.BaseOffset)
	if total.DataLength > 0 && (h.BaseOffset < total.Next || h.Generation < total.LastGeneration) {
		v.problem(e.Position, e.Base, "order of offset and generation", fmt.Sprintf("from %d, generation %d", total.Next, total.LastGeneration),
			fmt.Sprintf("%d, generation %d", h.BaseOffset, h.Generation))
	}
	total.note(&h)
	v.differ(e, "highest timestamp so far", e.MaxTimestamp, total.MaxTimestamp)
	if v.deep {
		v.records(e, b, &h)
	}
	v.report.Batches++
	v.report.Records += int64(h.Records)
	return nil
}

// records decodes a batch that verified.
func (v *verifier) records(e Entry, b []byte, h *BatchHeader) {
	it, err := Records(b, &v.scratch)
	if err != nil {
		v.problem(e.Position, e.Base, "records", "that they decode", err.Error())
		return
	}
	var rec broker.Record
	highest, n := int64(-1<<63), int64(0)
	for it.Next(&rec) {
		highest, n = max(highest, rec.Timestamp), n+1
	}
	if it.Err() != nil {
		v.problem(e.Position, e.Base, "records", "that they decode", it.Err().Error())
		return
	}
	v.differ(e, "records in the batch", int64(h.Records), n)
	if n > 0 {
		v.differ(e, "highest timestamp in the batch", h.MaxTimestamp, highest)
	}
}

// totals compares the footer with what the batches add up to.
func (v *verifier) totals(f *Footer, total *Info) {
	at := Entry{Position: f.DataLength + f.IndexLength, Base: -1}
	if v.report.Info.DataSHA256 != f.DataSHA256 {
		v.problem(at.Position, -1, "data sha256", fmt.Sprintf("%x", f.DataSHA256), fmt.Sprintf("%x", v.report.Info.DataSHA256))
	}
	if total.DataLength != f.DataLength {
		return // a batch is bad and reported; total without it say nothing
	}
	v.differ(at, "next offset", f.Next, total.Next)
	v.differ(at, "records", f.Records, total.Records)
	v.differ(at, "lowest timestamp", f.MinTimestamp, total.MinTimestamp)
	v.differ(at, "highest timestamp", f.MaxTimestamp, total.MaxTimestamp)
	v.differ(at, "first generation", int64(f.FirstGeneration), int64(total.FirstGeneration))
	v.differ(at, "last generation", int64(f.LastGeneration), int64(total.LastGeneration))
}
