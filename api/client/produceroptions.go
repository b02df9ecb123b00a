package client

import (
	"errors"
	"fmt"
	"time"
)

// FullPolicy says what Send does when the buffer is full.
type FullPolicy uint8

// The policies.
const (
	FullBlocks FullPolicy = iota // Send waits for room until its context ends
	FullFails                    // Send fails at once with the code TooMany
)

// Bounds of a batch, which are the node's.
const (
	maxBatchRecords = 1000
	maxBatchBytes   = 8 << 20 // of the form that is sent, JSON is a third larger
	maxRecordCost   = 16 << 20
)

// ProducerOptions say how records are collected and sent. The zero value is a
// good start.
type ProducerOptions struct {
	Partition *uint32       // nil: by key, else the node chooses
	Ack       Ack           // "": the topic's level
	AckWait   time.Duration // how long the node waits for the level; 0: its default

	// Linger is how long a batch waits for more records while nothing else is
	// under way; 0: 5 ms, negative: not at all.
	Linger       time.Duration
	BatchRecords int // that fill a batch; 0: 1000, which is the most
	BatchBytes   int // of keys and values that fill a batch; 0: 1 MiB, at most 8 MiB. A larger record goes alone

	// What has been taken by Send and whose fate is not known.
	BufferRecords int        // 0: 50,000
	BufferBytes   int64      // of keys, values and headers; 0: 64 MiB
	Full          FullPolicy // what Send does beyond either

	// Patience is how long a batch is tried, counted from its first record, while
	// the node refuses it or cannot be reached; 0: 2 minutes.
	Patience time.Duration
	// AtLeastOnce sends a batch again whose answer was lost. Its records may then
	// stand in the log twice. Without it they fail with an error of class
	// RetryUnknown, and are stored once or not at all.
	AtLeastOnce bool
	// Compress sends batches of 1 KiB and more in zstd, which costs this process
	// and the node time and saves the network between them bytes. A node that does
	// not take them gets them as they are. The log is compressed by itself.
	Compress bool
}

func (o ProducerOptions) withDefaults() ProducerOptions {
	if o.Linger == 0 {
		o.Linger = 5 * time.Millisecond
	}
	if o.BatchRecords == 0 {
		o.BatchRecords = maxBatchRecords
	}
	if o.BatchBytes == 0 {
		o.BatchBytes = 1 << 20
	}
	if o.BufferRecords == 0 {
		o.BufferRecords = 50_000
	}
	if o.BufferBytes == 0 {
		o.BufferBytes = 64 << 20
	}
	if o.Patience == 0 {
		o.Patience = 2 * time.Minute
	}
	return o
}

func (o *ProducerOptions) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(o.BatchRecords >= 1 && o.BatchRecords <= maxBatchRecords, "BatchRecords %d is not between 1 and %d", o.BatchRecords, maxBatchRecords)
	check(o.BatchBytes >= 1 && o.BatchBytes <= maxBatchBytes, "BatchBytes %d is not between 1 and %d", o.BatchBytes, maxBatchBytes)
	check(o.BufferRecords >= 1, "BufferRecords %d is less than 1", o.BufferRecords)
	check(o.BufferBytes >= 1, "BufferBytes %d is less than 1", o.BufferBytes)
	check(o.Patience > 0, "Patience %s is negative", o.Patience)
	check(o.AckWait >= 0, "AckWait %s is negative", o.AckWait)
	check(o.Full <= FullFails, "Full %d is not known", o.Full)
	return errors.Join(errs...)
}
