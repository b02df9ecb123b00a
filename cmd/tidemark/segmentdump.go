package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/api"
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
)

func newSegmentDump(p *process) *cobra.Command {
	d := segmentDump{}
	var archive string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "dump FILE|KEY", Short: "Print the batches of a segment, and its records if asked",
		Long: `Print footer and batches of a sealed segment, or the batches of an active one (.log).
With --archive the argument is a key of that archive, as bucket verify and bucket
inspect name it. Each batch is verified before it is printed; the first one that
does not verify ends the command with exit code 1 (segment verify shows all).`,
		Example: `  tidemark segment dump /var/lib/tidemark/topics/4f3c2b1a09876543/0/00000000000000000000.seg
  tidemark segment dump 00000000000000000000.log --records --json`,
		Args: args("FILE|KEY"),
	}
	f := cmd.Flags()
	f.BoolVar(&d.records, "records", false, "print every record as a line of JSON below its batch")
	f.StringVar(&archive, "archive", "", "object store in which KEY is: s3://bucket/prefix or file:///dir")
	f.BoolVar(&asJSON, "json", false, "print one JSON object a line")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		src, err := openSegment(cmd.Context(), p, args[0], archive)
		if err != nil {
			return err
		}
		defer src.close()
		d.w = bufio.NewWriterSize(p.stdout, 64<<10)
		if asJSON {
			d.enc = json.NewEncoder(d.w)
		}
		return errors.Join(d.run(src), d.w.Flush())
	}
	return cmd
}

// segmentDump prints one segment.
type segmentDump struct {
	records bool
	w       *bufio.Writer
	enc     *json.Encoder // nil: for people
	scratch segment.Scratch
	line    []byte
}

type dumpedSegment struct {
	Type            string `json:"type"` // segment
	File            string `json:"file"`
	Kind            string `json:"kind"` // sealed or active
	Bytes           int64  `json:"bytes"`
	Partition       string `json:"partition,omitempty"` // the rest is a sealed one's footer
	First           int64  `json:"first_offset"`
	Next            int64  `json:"next_offset,omitempty"`
	Records         int64  `json:"records,omitempty"`
	Batches         int    `json:"batches,omitempty"`
	MinTimestamp    int64  `json:"min_timestamp_ms,omitempty"`
	MaxTimestamp    int64  `json:"max_timestamp_ms,omitempty"`
	MinAppend       int64  `json:"min_append_ms,omitempty"`
	MaxAppend       int64  `json:"max_append_ms,omitempty"`
	FirstGeneration uint32 `json:"first_generation,omitempty"`
	LastGeneration  uint32 `json:"last_generation,omitempty"`
	DataSHA256      string `json:"data_sha256,omitempty"`
}

type dumpedBatch struct {
	Type         string `json:"type"` // batch
	Position     int64  `json:"position"`
	Bytes        int    `json:"bytes"`
	First        int64  `json:"first_offset"`
	Next         int64  `json:"next_offset"`
	Records      int32  `json:"records"`
	Generation   uint32 `json:"generation"`
	Codec        string `json:"codec"`
	MinTimestamp int64  `json:"base_timestamp_ms"`
	MaxTimestamp int64  `json:"max_timestamp_ms"`
	ProducerID   int64  `json:"producer_id,omitempty"`
}

func (d *segmentDump) run(src *segmentSource) error {
	head, data := dumpedSegment{Type: "segment", File: src.name, Kind: "active", Bytes: src.size}, src.size
	if src.sealed {
		r, f, err := segment.OpenReader(src.name, src, src.size)
		if err != nil {
			return err
		}
		data = f.DataLength
		head = dumpedSegment{
			"segment", src.name, "sealed", src.size, broker.PartitionID{Topic: f.Topic, Partition: f.Partition}.String(),
			f.Base, f.Next, f.Records, r.Index().Len(), f.MinTimestamp, f.MaxTimestamp, f.MinAppend, f.MaxAppend,
			f.FirstGeneration, f.LastGeneration, fmt.Sprintf("%x", f.DataSHA256),
		}
	} else if base, _, ok := segment.ParseName(filepath.Base(src.name)); ok {
		head.First = base
	}
	if err := d.head(&head); err != nil {
		return err
	}
	s := segment.NewScanner(src.name, src, 0, data, nil)
	for {
		b, h, err := s.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && !src.sealed && !errcode.Is(err, errcode.Storage):
			return fmt.Errorf("%w; %d bytes from there to the end of the file are no batch: a torn write if the node crashed, else damage", err, src.size-s.Pos())
		case err != nil:
			return err
		}
		if err := d.batch(s.Pos()-int64(h.Size), b, &h); err != nil {
			return err
		}
	}
}

func (d *segmentDump) head(s *dumpedSegment) error {
	if d.enc != nil {
		return d.enc.Encode(s)
	}
	if s.Kind == "active" {
		_, err := fmt.Fprintf(d.w, "active segment %s  from offset %d, %s\n", s.File, s.First, formatBytes(s.Bytes))
		return err
	}
	_, err := fmt.Fprintf(d.w, "sealed segment %s  partition %s, offsets %s, %d records in %d batches, %s, generations %d..%d, appended %s to %s, data sha256 %s\n",
		s.File, s.Partition, offsetSpan(s.First, s.Next), s.Records, s.Batches, formatBytes(s.Bytes), s.FirstGeneration, s.LastGeneration, stamp(s.MinAppend), stamp(s.MaxAppend), s.DataSHA256)
	return err
}

func (d *segmentDump) batch(pos int64, b []byte, h *segment.BatchHeader) error {
	var err error
	if d.enc != nil {
		out := dumpedBatch{"batch", pos, h.Size, h.BaseOffset, h.NextOffset(), h.Records, h.Generation, h.Codec().String(), h.BaseTimestamp, h.MaxTimestamp, 0}
		if h.ProducerID >= 0 {
			out.ProducerID = h.ProducerID
		}
		err = d.enc.Encode(out)
	} else {
		_, err = fmt.Fprintf(d.w, "batch at %d  offsets %s, %d records, %d bytes %s, generation %d, from %s\n",
			pos, offsetSpan(h.BaseOffset, h.NextOffset()), h.Records, h.Size, h.Codec(), h.Generation, stamp(h.BaseTimestamp))
	}
	if err != nil || !d.records {
		return err
	}
	it, err := segment.Records(b, &d.scratch)
	if err != nil {
		return err
	}
	var rec broker.Record
	for it.Next(&rec) {
		d.line = api.AppendRecordLine(d.line[:0], &rec)
		if _, err := d.w.Write(d.line); err != nil {
			return err
		}
	}
	return it.Err()
}
