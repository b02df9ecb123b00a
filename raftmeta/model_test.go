package raftmeta

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// model is what the metadata should be, in plain maps.
type model struct {
	topics      map[string]Topic
	assignments map[broker.PartitionID]Assignment
	deleted     map[broker.TopicID]string
	settings    map[string]string
	fenced      map[Incarnation]bool
	incarnation Incarnation
	registered  bool
	active      bool
}

// Random operations with restarts, kills and snapshots between them: after
// each of those, and at the end, the plane holds exactly what the model holds,
// and each operation was accepted or refused as the model says.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		o := testOptions(tempDir(t))
		o.SnapshotThreshold = rapid.SampledFrom([]uint64{3, 10, 1000}).Draw(rt, "threshold")
		o.TrailingLogs = rapid.SampledFrom([]uint64{0, 1, 5}).Draw(rt, "trailing")
		m := open(t, o)
		defer func() { _ = m.Close() }()
		x := &model{
			topics: map[string]Topic{}, assignments: map[broker.PartitionID]Assignment{}, deleted: map[broker.TopicID]string{},
			settings: map[string]string{}, fenced: map[Incarnation]bool{},
		}
		names := rapid.SampledFrom([]string{"a", "A", "b", "orders", "Orders", "x.y"})
		ctx := t.Context()
		restart := func() {
			if err := m.Close(); err != nil {
				rt.Fatal(err)
			}
			m = open(t, o)
			x.compare(rt, m)
		}
		rt.Repeat(map[string]func(*rapid.T){
			"": func(rt *rapid.T) {
				if got := m.State().NumTopics(); got != len(x.topics) {
					rt.Fatalf("%d topics, want %d", got, len(x.topics))
				}
			},
			"register": func(rt *rapid.T) {
				inc := Incarnation(rapid.Uint64Range(1, 4).Draw(rt, "incarnation"))
				_, err := m.RegisterIncarnation(ctx, inc, map[string]string{"http": fmt.Sprint(inc)})
				expect(rt, err, x.fenced[inc], errcode.Conflict)
				if err == nil {
					x.incarnation, x.registered, x.active = inc, true, true
				}
			},
			"fence": func(rt *rapid.T) {
				inc := Incarnation(rapid.Uint64Range(1, 4).Draw(rt, "incarnation"))
				_, err := m.FenceIncarnation(ctx, "n1", inc)
				expect(rt, err, false, 0)
				x.fenced[inc] = true
				x.active = x.active && x.incarnation != inc
			},
			"create": func(rt *rapid.T) {
				want := DefaultTopic(names.Draw(rt, "name"))
				want.Partitions = rapid.Uint32Range(1, 5).Draw(rt, "partitions")
				twin := slices.ContainsFunc(slices.Collect(maps.Keys(x.topics)), func(n string) bool { return strings.EqualFold(n, want.Name) })
				got, err := m.CreateTopic(ctx, want)
				switch {
				case twin:
					expect(rt, err, true, errcode.Exists)
				case !x.active:
					expect(rt, err, true, errcode.Conflict)
				default:
					expect(rt, err, false, 0)
					x.topics[want.Name] = got
					for p := range want.Partitions {
						x.assignments[broker.PartitionID{Topic: got.ID, Partition: p}] = Assignment{Owner: "n1", OwnerIncarnation: x.incarnation, Generation: 1}
					}
				}
			},
			"update": func(rt *rapid.T) {
				tp, ok := x.topics[names.Draw(rt, "name")]
				if !ok {
					rt.Skip("no such topic")
				}
				s := tp.TopicSettings
				s.RetentionMs = rapid.Int64Range(0, 3).Draw(rt, "retention")
				got, err := m.UpdateTopic(ctx, tp, s)
				expect(rt, err, false, 0)
				if got.RetentionMs != s.RetentionMs {
					rt.Fatalf("updated to %+v", got)
				}
				x.topics[tp.Name] = got
			},
			"delete": func(rt *rapid.T) {
				name := names.Draw(rt, "name")
				tp, ok := x.topics[name]
				_, err := m.DeleteTopic(ctx, name)
				expect(rt, err, !ok, errcode.NotFound)
				if ok {
					delete(x.topics, name)
					x.deleted[tp.ID] = name
					maps.DeleteFunc(x.assignments, func(p broker.PartitionID, _ Assignment) bool { return p.Topic == tp.ID })
				}
			},
			"assign": func(rt *rapid.T) {
				tp, ok := x.topics[names.Draw(rt, "name")]
				if !ok {
					rt.Skip("no such topic")
				}
				p := broker.PartitionID{Topic: tp.ID, Partition: rapid.Uint32Range(0, tp.Partitions-1).Draw(rt, "partition")}
				now := x.assignments[p]
				expected := Expect{"n1", now.Generation - uint32(rapid.IntRange(0, 1).Draw(rt, "outdated"))}
				end := now.Start + rapid.Int64Range(0, 100).Draw(rt, "records")
				next := Assignment{Owner: "n1", OwnerIncarnation: x.incarnation, Generation: now.Generation + 1, PreviousEnd: end, Start: end}
				_, err := m.SetAssignment(ctx, p, expected, next)
				expect(rt, err, expected.Generation != now.Generation || !x.active, errcode.Conflict)
				if err == nil {
					x.assignments[p] = next
					tp.ChangedIndex = m.State().Index()
					x.topics[tp.Name] = tp
				}
			},
			"setting": func(rt *rapid.T) {
				key, value := names.Draw(rt, "key"), rapid.StringN(0, 8, -1).Draw(rt, "value")
				value = strings.ToValidUTF8(value, "")
				expect(rt, m.PutSetting(ctx, key, value), false, 0)
				x.settings[key] = value
				if value == "" {
					delete(x.settings, key)
				}
			},
			"snapshot": func(rt *rapid.T) { expect(rt, m.Snapshot(ctx), false, 0) },
			"restart":  func(rt *rapid.T) { restart() },
			"kill": func(rt *rapid.T) {
				eventually(t, "rest after a due snapshot", func() bool { return m.sinceSnapshot() < o.SnapshotThreshold })
				o.Dir = killImage(t, o.Dir)
				restart()
			},
		})
		restart()
	})
}

func expect(rt *rapid.T, err error, refused bool, code errcode.Code) {
	rt.Helper()
	if (err != nil) != refused || refused && !errcode.Is(err, code) {
		rt.Fatalf("got %v, refused should be %v with %v", err, refused, code)
	}
}

func (x *model) compare(rt *rapid.T, m *Meta) {
	rt.Helper()
	s := m.State()
	topics := map[string]Topic{}
	assignments := map[broker.PartitionID]Assignment{}
	for _, tp := range s.Topics() {
		topics[tp.Name] = tp
		list, _ := s.Assignments(tp.ID)
		for p, a := range list {
			assignments[broker.PartitionID{Topic: tp.ID, Partition: uint32(p)}] = a
		}
	}
	deleted := map[broker.TopicID]string{}
	for _, d := range s.DeletedTopics() {
		deleted[d.ID] = d.Name
	}
	fenced := map[Incarnation]bool{}
	for _, f := range s.FencedIncarnations() {
		fenced[f.Incarnation] = true
	}
	n, registered := s.Node("n1")
	if !maps.Equal(topics, x.topics) || !maps.Equal(assignments, x.assignments) || !maps.Equal(deleted, x.deleted) ||
		!maps.Equal(s.Settings(), x.settings) || !maps.Equal(fenced, x.fenced) || s.NumPartitions() != len(assignments) ||
		registered != x.registered || n.Incarnation != x.incarnation || registered && (n.State == NodeActive) != x.active {
		_, data, _ := s.Export()
		rt.Fatalf("state\n%s\ndiffers from the model\n%+v", data, x)
	}
}
