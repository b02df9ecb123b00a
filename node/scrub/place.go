package scrub

import (
	"encoding/json"
	"errors"
	"io"
	iofs "io/fs"
	"maps"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

const (
	fileVersion = 1
	maxFile     = 4 << 20 // of the file that keeps the place
	tmpExt      = ".tmp"  // while it is written
)

// placeFile is the file's content.
type placeFile struct {
	Version  int           `json:"version"`
	Walks    [2]placeWalk  `json:"walks"` // local, archive
	Findings []openFinding `json:"findings"`
}

type placeWalk struct {
	Topic     string            `json:"topic"`
	Partition uint32            `json:"partition"`
	From      int64             `json:"from"`
	Round     broker.ScrubRound `json:"round"`
	Last      broker.ScrubRound `json:"last"`
	DueMS     int64             `json:"due"`
	EndMS     int64             `json:"deadline"`
}

type openFinding struct {
	Base int64 `json:"base"`
	broker.ScrubFinding
}

// load reads the place of an earlier process. Without a file that can be read the
// rounds begin again, which costs their reading and nothing else.
func (s *Scrubber) load() {
	_ = s.o.FS.Remove(s.o.Path + tmpExt) // of a save that a crash, or the disk, ended
	b, err := s.readFile()
	var f placeFile
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	if err != nil || f.Version != fileVersion {
		if !errors.Is(err, iofs.ErrNotExist) {
			s.o.Logger.Warn("the place of the scrubber cannot be read, its round begins again", "file", s.o.Path, "error", err)
		}
		return
	}
	for t := range numTiers {
		p, w := &f.Walks[t], s.walks[t]
		topic, err := broker.ParseTopicID(p.Topic)
		if err != nil {
			continue
		}
		w.at, w.from, w.round, w.last = broker.PartitionID{Topic: topic, Partition: p.Partition}, max(0, p.From), p.Round, p.Last
		w.due, w.deadline = time.UnixMilli(p.DueMS), time.UnixMilli(p.EndMS)
		// The interval may be another one now.
		if most := time.UnixMilli(p.Round.StartedAt).Add(s.o.Interval); w.deadline.After(most) {
			w.deadline = most
		}
		if w.due.After(w.deadline) {
			w.due = w.deadline
		}
	}
	for _, x := range f.Findings[:min(len(f.Findings), maxOpen)] {
		topic, err := broker.ParseTopicID(x.TopicID)
		if err != nil {
			continue
		}
		at := place{local, broker.PartitionID{Topic: topic, Partition: x.Partition}, x.Base}
		if x.Tier != local.String() {
			at.tier = archived
		}
		s.findings.open[at] = x.ScrubFinding
	}
}

func (s *Scrubber) readFile() ([]byte, error) {
	f, err := s.o.FS.Open(s.o.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile))
}

// save writes the place down, now and then or when it matters. It is renamed into
// its name after a sync, so that a crash leaves the old or the new one; which of
// them does not matter, so the directory is not synced.
func (s *Scrubber) save(last bool) {
	now := time.Now()
	if !s.findings.take() && !last && now.Sub(s.saved) < saveEvery {
		return
	}
	s.saved = now
	err := s.writeFile()
	if err != nil && !s.failed {
		s.o.Logger.Warn("the place of the scrubber cannot be written, after a restart its round begins again or goes on from an older place", "file", s.o.Path, "error", err)
	}
	s.failed = err != nil
}

func (s *Scrubber) writeFile() error {
	f := placeFile{Version: fileVersion}
	for t := range numTiers {
		w := s.walks[t]
		f.Walks[t] = placeWalk{Topic: w.at.Topic.String(), Partition: w.at.Partition, From: w.from, Round: w.round, Last: w.last, DueMS: w.due.UnixMilli(), EndMS: w.deadline.UnixMilli()}
	}
	s.findings.mu.Lock()
	for _, at := range slices.SortedFunc(maps.Keys(s.findings.open), comparePlaces) {
		f.Findings = append(f.Findings, openFinding{at.base, s.findings.open[at]})
	}
	s.findings.mu.Unlock()
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	tmp := s.o.Path + tmpExt
	file, err := s.o.FS.Create(tmp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = file.Write(b)
	if err == nil {
		err = file.Sync()
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = s.o.FS.Rename(tmp, s.o.Path)
	}
	if err != nil {
		_ = s.o.FS.Remove(tmp) // the next start removes it, if this does not
	}
	return err
}
