package scenario

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// stored makes a batch with n records from an offset on, with a body of that size.
func stored(base int64, n int32, body int) []byte {
	b := make([]byte, batchHead+body)
	binary.BigEndian.PutUint64(b, uint64(base))
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-batchLead))
	b[16] = 2
	binary.BigEndian.PutUint32(b[23:], uint32(n-1))
	binary.BigEndian.PutUint32(b[57:], uint32(n))
	for i := batchHead; i < len(b); i++ {
		b[i] = byte(i)
	}
	return sum(b)
}

// sum writes the checksum of a batch.
func sum(b []byte) []byte {
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], castagnoli))
	return b
}

// Proves that a stream of stored batches is counted whole, in reads of any size, and
// that what is cut, changed, out of order or no batch at all is an error, without
// memory for a length that is only said.
func TestStoredBatches(t *testing.T) {
	good := slices.Concat(stored(5, 3, 100), stored(8, 1, 0), stored(9, 1000, 2<<20))
	for name, r := range map[string]io.Reader{"whole": bytes.NewReader(good), "byte by byte": iotest.OneByteReader(bytes.NewReader(good[:300])), "none": bytes.NewReader(nil)} {
		n, size, err := storedBatches(r)
		switch {
		case name == "whole" && (err != nil || n != 1004 || size != int64(len(good))):
			t.Errorf("%s: %d records, %d bytes, %v", name, n, size, err)
		case name == "byte by byte" && (err == nil || n != 4):
			t.Errorf("%s: %d records, %v", name, n, err)
		case name == "none" && (err != nil || n != 0):
			t.Errorf("%s: %d records, %v", name, n, err)
		}
	}
	change := func(at int, v byte) []byte {
		b := stored(0, 2, 50)
		b[at] = v
		return b
	}
	length := func(n uint32) []byte {
		b := stored(0, 2, 50)
		binary.BigEndian.PutUint32(b[8:], n)
		return b
	}
	for name, c := range map[string]struct {
		b    []byte
		says string
	}{
		"cut in the head":       {stored(0, 2, 50)[:60], "breaks off"},
		"cut in the body":       {stored(0, 2, 50)[:110], "breaks off"},
		"one bit of the body":   {change(100, 0), "checksum"},
		"one bit of the count":  {change(60, 3), "checksum"},
		"another magic":         {change(16, 1), "no batch"},
		"no records":            {sum(change(60, 0)), "0 records"},
		"a negative delta":      {sum(change(23, 0x80)), "records up to"},
		"a gap":                 {slices.Concat(stored(0, 2, 0), stored(3, 1, 0)), "where 2 is next"},
		"twice":                 {slices.Concat(stored(0, 2, 0), stored(0, 2, 0)), "where 2 is next"},
		"shorter than its head": {length(batchHead - batchLead - 1), "no batch"},
		"negative":              {length(0xffffffff), "no batch"},
		"over the bound":        {length(maxStored - batchLead + 1), "no batch"},
		"at the bound, cut":     {length(maxStored - batchLead), "breaks off"},
	} {
		if _, _, err := storedBatches(bytes.NewReader(c.b)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
