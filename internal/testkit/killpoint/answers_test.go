package killpoint

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

// answer is one line that a client writes down: what it is about to ask, or
// what it was told.
type answer struct {
	What     string // send, stored; ack, acked; trim, trimmed
	Topic    string
	Record   int   `json:",omitempty"` // its number, with which its value begins
	Offset   int64 `json:",omitempty"`
	Archived bool  `json:",omitempty"`
}

// answers is the client's notebook. A line that was written is in the kernel's
// hands: it survives the process.
type answers struct {
	file *os.File
	sent int // records so far
}

func openAnswers(path string) (*answers, error) {
	t, err := readAnswers(path)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return &answers{file: f, sent: t.sent}, err
}

func (a *answers) say(x answer) {
	line, err := json.Marshal(x)
	if err == nil {
		_, err = a.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(fmt.Sprintf("the child cannot keep its notes: %v", err))
	}
	if x.What == "send" {
		a.sent++
	}
}

// told is what a client knows in the end.
type told struct {
	sent   int
	topics map[string]*toldTopic
}

type toldTopic struct {
	sent     map[int]bool
	stored   map[int]int64 // record to offset
	archived map[int]bool
	asked    map[int64]bool // offsets of acks that may have been written
	acked    map[int64]bool
	trim     int64 // the highest start that was asked for
	trimmed  int64 // and that was answered
}

func readAnswers(path string) (*told, error) {
	t := &told{topics: map[string]*toldTopic{}}
	for _, name := range []string{busy, slow} {
		t.topics[name] = &toldTopic{sent: map[int]bool{}, stored: map[int]int64{}, archived: map[int]bool{}, asked: map[int64]bool{}, acked: map[int64]bool{}}
	}
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		return t, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close() // it was only read
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var a answer
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", path, lines.Text(), err)
		}
		topic := t.topics[a.Topic]
		switch a.What {
		case "send":
			t.sent++
			topic.sent[a.Record] = true
		case "stored":
			topic.stored[a.Record] = a.Offset
			if a.Archived {
				topic.archived[a.Record] = true
			}
		case "ack":
			topic.asked[a.Offset] = true
		case "acked":
			topic.acked[a.Offset] = true
		case "trim":
			topic.trim = max(topic.trim, a.Offset)
		case "trimmed":
			topic.trimmed = max(topic.trimmed, a.Offset)
		}
	}
	return t, lines.Err()
}
