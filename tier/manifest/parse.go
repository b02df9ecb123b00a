package manifest

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// KeyKind is the kind of object that a key names.
type KeyKind uint8

// The kinds of objects in an archive.
const (
	KindCluster KeyKind = iota + 1
	KindMeta
	KindEntry
	KindPage
	KindSegmentObject
	KindWALOpen
	KindWALFence
	KindWAL
	KindState
	KindSnapshot
	KindTombstone
)

var keyKindNames = [...]string{"unknown", "cluster", "meta", "entry", "page", "segment", "wal-open", "wal-fence",
	"wal", "state", "snapshot", "tombstone"}

// String returns the kind's name, for example "entry".
func (k KeyKind) String() string {
	if int(k) < len(keyKindNames) {
		return keyKindNames[k]
	}
	return keyKindNames[0]
}

// Key is a parsed key. Only the fields that its kind has are set.
type Key struct {
	Kind        KeyKind
	Partition   broker.PartitionID // entry, page, segment; Topic alone for a tombstone
	Seq         uint64             // entry
	Base, Next  int64              // segment; page has Base alone
	Generation  uint32             // segment: the uploader's generation
	Nonce       uint32             // segment, snapshot
	Sum         uint32             // page: first 4 bytes of the SHA-256
	Node        string             // wal-open, wal-fence, wal, state
	Incarnation uint64             // as Node
	First, End  uint64             // wal: LSN range, half open; state has First alone
	Cluster     uint64             // cluster, meta: cluster generation
	Index       uint64             // meta: Raft index
	Time        time.Time          // snapshot
}

// String returns the key's text: ParseKey(k.String()) is k.
func (k Key) String() string {
	switch k.Kind {
	case KindCluster:
		return ClusterKey(k.Cluster)
	case KindMeta:
		return MetaKey(k.Cluster, k.Index)
	case KindEntry:
		return EntryKey(k.Partition, k.Seq)
	case KindPage:
		sum := Hash{byte(k.Sum >> 24), byte(k.Sum >> 16), byte(k.Sum >> 8), byte(k.Sum)}
		return PageKey(k.Partition, k.Base, sum)
	case KindSegmentObject:
		return SegmentKey(k.Partition, k.Base, k.Next, k.Generation, k.Nonce)
	case KindWALOpen:
		return WALOpenKey(k.Node, k.Incarnation)
	case KindWALFence:
		return WALFenceKey(k.Node, k.Incarnation)
	case KindWAL:
		return WALKey(k.Node, k.Incarnation, k.First, k.End)
	case KindState:
		return StateKey(k.Node, k.Incarnation, k.First)
	case KindSnapshot:
		return SnapshotKey(k.Time, k.Nonce)
	case KindTombstone:
		return TombstoneKey(k.Partition.Topic)
	default:
		return ""
	}
}

// maxKeyLen bounds what ParseKey looks at: the longest key is a shipped WAL
// object of a node with the longest name.
const maxKeyLen = 320

// ParseKey reads a key of the archive's layout. It accepts exactly what the
// builders write, nothing else: InvalidArgument names the key.
func ParseKey(key string) (Key, error) {
	k, ok := parseKey(key)
	// Writing the result back catches every spelling that a lenient number or
	// time parser would let through.
	if !ok || k.String() != key {
		return Key{}, errcode.New(errcode.InvalidArgument, "key %.330q is not part of an archive", key)
	}
	return k, nil
}

func parseKey(key string) (Key, bool) {
	if len(key) > maxKeyLen {
		return Key{}, false
	}
	p := strings.Split(key, "/")
	switch {
	case p[0] == "cluster" && len(p) == 2:
		g, ok := decimal(p[1])
		return Key{Kind: KindCluster, Cluster: g}, ok
	case p[0] == "meta" && len(p) == 2:
		name, ok := strings.CutSuffix(p[1], ".json.zst")
		a, b, ok2 := decimalPair(name)
		return Key{Kind: KindMeta, Cluster: a, Index: b}, ok && ok2
	case p[0] == "t" && len(p) == 5:
		return parsePartitionKey(p)
	case p[0] == "wal" && len(p) == 4:
		return parseWALKey(p)
	case p[0] == "state" && len(p) == 4:
		name, ok := strings.CutSuffix(p[3], ".state.zst")
		lsn, ok2 := decimal(name)
		inc, ok3 := hexNumber(p[2], 16)
		return Key{Kind: KindState, Node: p[1], Incarnation: inc, First: lsn}, ok && ok2 && ok3 && ValidateNode(p[1]) == nil
	case p[0] == "snap" && len(p) == 2:
		return parseSnapshotKey(p[1])
	case p[0] == "x" && len(p) == 2:
		id, ok := hexNumber(p[1], 16)
		return Key{Kind: KindTombstone, Partition: broker.PartitionID{Topic: broker.TopicID(id)}}, ok
	default:
		return Key{}, false
	}
}

// parsePartitionKey reads t/<topic>/<partition>/{m,p,s}/<name>.
func parsePartitionKey(p []string) (Key, bool) {
	topic, ok := hexNumber(p[1], 16)
	part, ok2 := decimal(p[2])
	if !ok || !ok2 || part > math.MaxUint32 {
		return Key{}, false
	}
	k := Key{Partition: broker.PartitionID{Topic: broker.TopicID(topic), Partition: uint32(part)}}
	switch p[3] {
	case "m":
		k.Kind = KindEntry
		name, ok := strings.CutSuffix(p[4], ".json.zst")
		k.Seq, ok2 = decimal(name)
		return k, ok && ok2 && k.Seq > 0
	case "p":
		k.Kind = KindPage
		name, ok := strings.CutSuffix(p[4], ".json.zst")
		first, sum, ok2 := strings.Cut(name, "-")
		base, ok3 := offset(first)
		s, ok4 := hexNumber(sum, 8)
		k.Base, k.Sum = base, uint32(s)
		return k, ok && ok2 && ok3 && ok4
	case "s":
		k.Kind = KindSegmentObject
		name, ok := strings.CutSuffix(p[4], ".seg")
		f := strings.Split(name, "-")
		if !ok || len(f) != 4 {
			return Key{}, false
		}
		base, ok1 := offset(f[0])
		next, ok2 := offset(f[1])
		gen, ok3 := hexNumber(f[2], 8)
		nonce, ok4 := hexNumber(f[3], 8)
		k.Base, k.Next, k.Generation, k.Nonce = base, next, uint32(gen), uint32(nonce)
		return k, ok1 && ok2 && ok3 && ok4 && base < next
	default:
		return Key{}, false
	}
}

func parseWALKey(p []string) (Key, bool) {
	inc, ok := hexNumber(p[2], 16)
	if !ok || ValidateNode(p[1]) != nil {
		return Key{}, false
	}
	k := Key{Node: p[1], Incarnation: inc}
	switch p[3] {
	case "OPEN":
		k.Kind = KindWALOpen
	case "FENCE":
		k.Kind = KindWALFence
	default:
		k.Kind = KindWAL
		name, ok := strings.CutSuffix(p[3], ".ship")
		first, next, ok2 := decimalPair(name)
		k.First, k.End = first, next
		return k, ok && ok2 && first < next
	}
	return k, true
}

func parseSnapshotKey(name string) (Key, bool) {
	name, ok := strings.CutSuffix(name, ".json")
	at, nonce, ok2 := strings.Cut(name, "-")
	t, err := time.Parse(snapTime, at)
	n, ok3 := hexNumber(nonce, 8)
	return Key{Kind: KindSnapshot, Time: t, Nonce: uint32(n)}, ok && ok2 && ok3 && err == nil
}

// ValidateNode checks a node id that becomes part of a key: 1 to 200 of
// a-z 0-9 . _ -, and neither "." nor "..". Upper-case letters are refused
// because a directory on some systems could not tell two such nodes apart.
func ValidateNode(node string) error {
	if node != strings.ToLower(node) {
		return errcode.New(errcode.InvalidArgument, "node id %.200q has upper-case letters: use a-z 0-9 . _ -", node)
	}
	return broker.ValidateName("node", node)
}

// decimal reads exactly 20 decimal digits.
func decimal(s string) (uint64, bool) {
	if len(s) != 20 {
		return 0, false
	}
	v, err := strconv.ParseUint(s, 10, 64)
	return v, err == nil
}

// offset reads a decimal that fits a record offset.
func offset(s string) (int64, bool) {
	v, ok := decimal(s)
	return int64(v), ok && v <= math.MaxInt64
}

func decimalPair(s string) (uint64, uint64, bool) {
	a, b, ok := strings.Cut(s, "-")
	x, ok1 := decimal(a)
	y, ok2 := decimal(b)
	return x, y, ok && ok1 && ok2
}

// hexNumber reads exactly n lower-case hexadecimal digits.
func hexNumber(s string, n int) (uint64, bool) {
	if len(s) != n {
		return 0, false
	}
	v, err := strconv.ParseUint(s, 16, 64)
	return v, err == nil
}
