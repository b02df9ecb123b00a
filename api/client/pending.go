package client

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// pending is a batch of a Producer, from its first record until its fate is
// known. Records are kept as the frames that are sent. Until it is taken by the
// sender it belongs to the Producer's lock, then to the sender, and once done is
// closed it does not change.
type pending struct {
	body    []byte // frames
	ends    []int  // of each record in body
	headers map[int][]Header
	calls   map[int]func(Delivered, error)
	cost    int // what its records count, in the batch and in the buffer
	born    time.Time
	done    chan struct{}

	live   []int // records that are sent still; nil: all
	errs   map[int]error
	err    error // of all that are not in errs
	placed []Delivered
	all    Delivered // of all, while placed is nil
}

// Costs beside a record's bytes: lengths in a frame, and the JSON around a header
// with its base64 and escapes.
const (
	frameCost  = 8
	headerCost = 80
)

// cost is an upper bound of what a record adds to a batch of its form, of which
// the JSON of keys and values is a third larger.
func cost(rec *Record) int {
	n := frameCost + len(rec.Key) + len(rec.Value)
	for i := range rec.Headers {
		n += headerCost + 6*len(rec.Headers[i].Name) + 2*len(rec.Headers[i].Value)
	}
	return n
}

func newPending(now time.Time, bytes int) *pending {
	return &pending{born: now, body: make([]byte, 0, bytes), done: make(chan struct{}), all: Delivered{-1, -1, false}}
}

func (b *pending) count() int { return len(b.ends) }

// add copies a record into the batch and returns its index.
func (b *pending) add(rec *Record, call func(Delivered, error)) int {
	i := len(b.ends)
	b.body = AppendFrame(b.body, rec.Key, rec.Value)
	b.ends = append(b.ends, len(b.body))
	if len(rec.Headers) > 0 {
		if b.headers == nil {
			b.headers = make(map[int][]Header)
		}
		list := slices.Clone(rec.Headers)
		for j := range list {
			list[j].Value = slices.Clone(list[j].Value)
		}
		b.headers[i] = list
	}
	if call != nil {
		if b.calls == nil {
			b.calls = make(map[int]func(Delivered, error))
		}
		b.calls[i] = call
	}
	return i
}

// frame returns a record's bytes in body.
func (b *pending) frame(i int) []byte {
	start := 0
	if i > 0 {
		start = b.ends[i-1]
	}
	return b.body[start:b.ends[i]:b.ends[i]]
}

// record reads key and value back out of a frame.
func (b *pending) record(i int) (key, value []byte) {
	key, rest := frameKey(b.frame(i))
	return key, rest[4:]
}

// indexes are the records that are sent.
func (b *pending) indexes() []int {
	if b.live == nil {
		b.live = make([]int, len(b.ends))
		for i := range b.live {
			b.live[i] = i
		}
	}
	return b.live
}

// drop takes the record at a place of the last body out of the batch.
func (b *pending) drop(place int, err error) {
	live := b.indexes()
	if b.errs == nil {
		b.errs = make(map[int]error)
	}
	b.errs[live[place]] = err
	b.live = slices.Delete(live, place, place+1)
}

func (b *pending) left() int {
	if b.live == nil {
		return len(b.ends)
	}
	return len(b.live)
}

// encode returns what is sent: frames, or JSON when a record has headers, which
// frames cannot carry.
func (b *pending) encode() (body []byte, kind string) {
	switch {
	case b.headers != nil:
		return b.json(), "application/json"
	case b.live == nil:
		return b.body, mediaFrames
	}
	for _, i := range b.live {
		body = append(body, b.frame(i)...)
	}
	return body, mediaFrames
}

func (b *pending) json() []byte {
	out := append(make([]byte, 0, len(b.body)*4/3+128*b.left()), `{"messages":[`...)
	for n, i := range b.indexes() {
		if n > 0 {
			out = append(out, ',')
		}
		key, value := b.record(i)
		out = append(out, `{"payload_encoding":"base64","payload":`...)
		out = appendBase64(out, value)
		if key != nil {
			out = append(out, `,"key_encoding":"base64","key":`...)
			out = appendBase64(out, key)
		}
		if list := b.headers[i]; len(list) > 0 {
			out = append(out, `,"headers":`...)
			out = appendHeaders(out, list)
		}
		out = append(out, '}')
	}
	return append(out, `]}`...)
}

func appendHeaders(out []byte, list []Header) []byte {
	for j := range list {
		separator := byte(',')
		if j == 0 {
			separator = '['
		}
		out = append(out, separator)
		name, _ := json.Marshal(list[j].Name) // a string never fails
		out = append(append(out, `{"name":`...), name...)
		out = append(out, `,"value_encoding":"base64","value":`...)
		out = append(appendBase64(out, list[j].Value), '}')
	}
	return append(out, ']')
}

func appendBase64(out, b []byte) []byte {
	return append(base64.StdEncoding.AppendEncode(append(out, '"'), b), '"')
}

// result is a record's fate, once done is closed.
func (b *pending) result(i int) (Delivered, error) {
	if err := b.errs[i]; err != nil {
		return Delivered{-1, -1, false}, err
	}
	if b.err != nil {
		return b.all, b.err
	}
	if b.placed != nil {
		return b.placed[i], nil
	}
	return b.all, nil
}

// place works out from the runs that a batch got where each of its records
// stands. The node puts records with a key by its hash and all others of a batch
// into one partition, in the batch's order; of is the number of partitions, 0
// when it is not known. When the runs do not come out that way, as for a topic
// that was created anew, nothing is claimed.
func (b *pending) place(runs []Placement, of uint32, archived bool) bool {
	next := make(map[int32]int64, len(runs)) // next offset of each partition
	left := make(map[int32]int, len(runs))
	for _, run := range runs {
		if run.FirstOffset < 0 || run.LastOffset-run.FirstOffset != int64(run.Count)-1 {
			return false
		}
		next[int32(run.Partition)], left[int32(run.Partition)] = run.FirstOffset, run.Count
	}
	live := b.indexes()
	at := make([]int32, len(live))
	keyless := 0
	for n, i := range live {
		if key, _ := b.record(i); len(runs) == 1 {
			at[n] = int32(runs[0].Partition)
		} else if key != nil && of > 0 {
			at[n] = int32(broker.PartitionForKey(key, of))
		} else if key != nil {
			return false
		} else {
			at[n] = -1
			keyless++
			continue
		}
		left[at[n]]--
	}
	sticky := int32(-1)
	for partition, n := range left {
		switch {
		case n == 0:
		case n == keyless && sticky < 0:
			sticky = partition
		default:
			return false
		}
	}
	if keyless > 0 && sticky < 0 {
		return false
	}
	b.placed = make([]Delivered, len(b.ends))
	for n, i := range live {
		if at[n] < 0 {
			at[n] = sticky
		}
		b.placed[i] = Delivered{Partition: at[n], Offset: next[at[n]], Archived: archived}
		next[at[n]]++
	}
	return true
}
