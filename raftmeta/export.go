package raftmeta

import (
	"bytes"
	"encoding/json"
	"maps"
	"strings"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

const (
	exportFormat  = "tidemark-meta"
	exportVersion = 1

	// MaxExportBytes bounds an export. The bounds of the state keep one below
	// it: with every count, name and value at its bound it has about 210 MB.
	MaxExportBytes = 256 << 20
)

// exportDoc is the export, field for field; see docs/formats/metadata.md.
type exportDoc struct {
	Format    string               `json:"format"`
	Version   int                  `json:"version"`
	RaftIndex uint64               `json:"raft_index"`
	Cluster   Cluster              `json:"cluster"`
	Nodes     elements[Node]       `json:"nodes"`
	Fenced    elements[Fenced]     `json:"fenced_incarnations"`
	Topics    elements[exportItem] `json:"topics"`
	Deleted   elements[Deleted]    `json:"deleted_topics"`
	Settings  map[string]string    `json:"settings"`
}

type exportItem struct {
	Topic
	Assignments elements[Assignment] `json:"assignments"`
}

func (t exportItem) validate() error {
	if err := t.Topic.validate(); err != nil {
		return err
	}
	if len(t.Assignments) != int(t.Partitions) {
		return errcode.New(errcode.InvalidArgument, "topic %s has %d partitions and %d assignments", t.Name, t.Partitions, len(t.Assignments))
	}
	return nil
}

// elements is a JSON array whose elements are checked one after the other as
// they are decoded: millions of tiny wrong elements end at the first, before
// they become millions of large structs.
type elements[T interface{ validate() error }] []T

// UnmarshalJSON implements json.Unmarshaler.
func (l *elements[T]) UnmarshalJSON(b []byte) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if tok, err := dec.Token(); err != nil || tok != json.Delim('[') {
		return errcode.New(errcode.Corrupt, "a list is expected, not %.20s", b)
	}
	for dec.More() {
		var v T
		if err := strictError(dec.Decode(&v)); err != nil {
			return err
		}
		if err := v.validate(); err != nil {
			return err
		}
		*l = append(*l, v)
	}
	return nil
}

// Export returns the state as canonical JSON: equal states give equal bytes,
// and index names the last change they contain.
func (s *State) Export() (index uint64, data []byte, err error) {
	if err := s.ready(); err != nil {
		return 0, nil, err
	}
	doc := exportDoc{
		Format: exportFormat, Version: exportVersion, RaftIndex: s.index, Cluster: s.cluster,
		Nodes: s.Nodes(), Fenced: s.FencedIncarnations(), Deleted: s.DeletedTopics(),
		Topics: make([]exportItem, 0, s.byName.Len()), Settings: notNil(s.settings),
	}
	s.byName.Ascend(func(it namedTopic) bool {
		doc.Topics = append(doc.Topics, exportItem{it.entry.topic, it.entry.assignments})
		return true
	})
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(doc); err != nil {
		return 0, nil, errcode.Wrap(errcode.Internal, err, "encode the metadata export of index %d", s.index)
	}
	if buf.Len() > MaxExportBytes {
		return 0, nil, errcode.New(errcode.TooLarge, "the metadata export of index %d has %d bytes; at most %d can be read back", s.index, buf.Len(), MaxExportBytes)
	}
	return s.index, buf.Bytes(), nil
}

// ParseExport reads an export. An unknown format or version is refused by name
// (unsupported_version); everything else that is not an export is corrupt. The
// memory it takes is bounded by a small multiple of len(data).
func ParseExport(data []byte) (*State, error) {
	if len(data) > MaxExportBytes {
		return nil, errcode.New(errcode.TooLarge, "metadata export has %d bytes; at most %d are read", len(data), MaxExportBytes)
	}
	var head struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, errcode.New(errcode.Corrupt, "metadata export does not decode: %w", err)
	}
	if head.Format != exportFormat || head.Version != exportVersion {
		return nil, errcode.New(errcode.UnsupportedVersion, "metadata export is of format %.40q version %d; this build reads %q version %d: use the tidemark version that wrote it, or a newer one",
			head.Format, head.Version, exportFormat, exportVersion)
	}
	var doc exportDoc
	if err := decodeStrict(data, &doc); err != nil {
		return nil, errcode.New(exportCode(err), "metadata export does not decode: %w", err)
	}
	s, err := doc.state()
	if err != nil {
		return nil, errcode.New(errcode.Corrupt, "metadata export is not consistent: %w", err)
	}
	return s, nil
}

// exportCode keeps unsupported_version; whatever else is wrong inside an
// export, the export is what is corrupt.
func exportCode(err error) errcode.Code {
	if errcode.Is(err, errcode.UnsupportedVersion) {
		return errcode.UnsupportedVersion
	}
	return errcode.Corrupt
}

// state checks what concerns more than one element and builds the state.
func (doc *exportDoc) state() (*State, error) {
	if err := doc.Cluster.validate(); err != nil {
		return nil, err
	}
	if err := doc.bounds(); err != nil {
		return nil, err
	}
	s := newState()
	s.index, s.cluster = doc.RaftIndex, doc.Cluster
	s.nodes = make(map[string]Node, len(doc.Nodes))
	for _, n := range doc.Nodes {
		n.Addresses = notNil(n.Addresses)
		s.nodes[n.ID] = n
	}
	s.fenced = make(map[Incarnation]Fenced, len(doc.Fenced))
	for _, f := range doc.Fenced {
		s.fenced[f.Incarnation] = f
	}
	s.settings = maps.Clone(doc.Settings)
	for _, d := range doc.Deleted {
		if _, twice := s.Deleted(d.ID); twice {
			return nil, errcode.New(errcode.InvalidArgument, "deleted topic %s stands there twice", d.ID)
		}
		if err := s.addDeleted(d); err != nil {
			return nil, err
		}
	}
	for _, t := range doc.Topics {
		_, gone := s.Deleted(t.ID)
		if s.entry(t.ID) != nil || gone || s.folded.Has(strings.ToLower(t.Name)) {
			return nil, errcode.New(errcode.InvalidArgument, "topic %s with id %s has the id or name of another", t.Name, t.ID)
		}
		s.put(&topicEntry{topic: t.Topic, assignments: t.Assignments})
	}
	return s, nil
}

// bounds checks counts, orders and settings.
func (doc *exportDoc) bounds() error {
	if len(doc.Nodes) > MaxNodes || len(doc.Fenced) > MaxFenced || len(doc.Topics) > MaxTopics || len(doc.Deleted) > MaxDeleted || len(doc.Settings) > MaxSettings {
		return errcode.New(errcode.InvalidArgument, "%d nodes, %d fenced incarnations, %d topics, %d deleted topics, %d settings: one is over its bound",
			len(doc.Nodes), len(doc.Fenced), len(doc.Topics), len(doc.Deleted), len(doc.Settings))
	}
	partitions := 0
	for _, t := range doc.Topics {
		partitions += len(t.Assignments)
	}
	if partitions > MaxAssignments {
		return errcode.New(errcode.InvalidArgument, "%d partitions are over the bound of %d", partitions, MaxAssignments)
	}
	for key, value := range doc.Settings {
		if err := validateSetting(key, value); err != nil {
			return err
		}
		if value == "" {
			return errcode.New(errcode.InvalidArgument, "setting %s is empty", key)
		}
	}
	ordered := ascending(doc.Nodes, func(a, b Node) bool { return a.ID < b.ID }) &&
		ascending(doc.Fenced, func(a, b Fenced) bool { return a.Incarnation < b.Incarnation }) &&
		ascending(doc.Topics, func(a, b exportItem) bool { return a.Name < b.Name }) &&
		ascending(doc.Deleted, func(a, b Deleted) bool { return a.Seq < b.Seq })
	if !ordered {
		return errcode.New(errcode.InvalidArgument, "a list is not in strictly ascending order")
	}
	return nil
}

func ascending[T any](l []T, less func(a, b T) bool) bool {
	for i := 1; i < len(l); i++ {
		if !less(l[i-1], l[i]) {
			return false
		}
	}
	return true
}
