package segment

// Info describes a segment. Of an active one the lengths, positions and
// checksums of index and footer are zero.
type Info struct {
	Base            int64 // first offset
	Next            int64 // exclusive end of offsets
	Records         int64
	Bytes           int64 // whole file; of an active one its data
	MinTimestamp    int64 // ms; lowest base timestamp of a batch
	MaxTimestamp    int64 // ms
	MinAppend       int64 // ms; 0 when not known
	MaxAppend       int64 // ms
	FirstGeneration uint32
	LastGeneration  uint32
	DataLength      int64 // bytes; the index stands behind the data
	IndexLength     int64
	FooterPosition  int64 // the footer ends the file
	FooterLength    int64
	DataSHA256      [32]byte // of the data alone, as the footer says
	FileSHA256      [32]byte // of the whole file, as an upload sends it
	FileCRC32C      uint32   // Castagnoli, of the whole file
}

// note takes a batch into the sums.
func (in *Info) note(h *BatchHeader) {
	low := min(h.BaseTimestamp, h.MaxTimestamp)
	if in.DataLength == 0 {
		in.MinTimestamp, in.MaxTimestamp, in.FirstGeneration = low, h.MaxTimestamp, h.Generation
	}
	in.Next = h.NextOffset()
	in.Records += int64(h.Records)
	in.MinTimestamp = min(in.MinTimestamp, low)
	in.MaxTimestamp = max(in.MaxTimestamp, h.MaxTimestamp)
	in.LastGeneration = h.Generation
	in.DataLength += int64(h.Size)
	in.Bytes = in.DataLength
}

// appended widens the append times; 0 is not a time.
func (in *Info) appended(minMS, maxMS int64) {
	if minMS > 0 && (in.MinAppend == 0 || minMS < in.MinAppend) {
		in.MinAppend = minMS
	}
	in.MaxAppend = max(in.MaxAppend, maxMS, in.MinAppend)
}

func (in *Info) footer(o *Options, indexCRC uint32) Footer {
	return Footer{
		Topic: o.Topic, Partition: o.Partition,
		Base: in.Base, Next: in.Next, Records: in.Records,
		MinTimestamp: in.MinTimestamp, MaxTimestamp: in.MaxTimestamp,
		FirstGeneration: in.FirstGeneration, LastGeneration: in.LastGeneration,
		DataLength: in.DataLength, IndexLength: in.IndexLength, IndexCRC32C: indexCRC, DataSHA256: in.DataSHA256,
		MinAppend: in.MinAppend, MaxAppend: in.MaxAppend,
	}
}

// infoOf is what a footer says; the checksums of the file are not in it.
func infoOf(f *Footer) Info {
	return Info{
		Base: f.Base, Next: f.Next, Records: f.Records, Bytes: f.Size(),
		MinTimestamp: f.MinTimestamp, MaxTimestamp: f.MaxTimestamp, MinAppend: f.MinAppend, MaxAppend: f.MaxAppend,
		FirstGeneration: f.FirstGeneration, LastGeneration: f.LastGeneration,
		DataLength: f.DataLength, IndexLength: f.IndexLength,
		FooterPosition: f.DataLength + f.IndexLength, FooterLength: FooterSize, DataSHA256: f.DataSHA256,
	}
}
