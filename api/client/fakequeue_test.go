package client

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// queueNode stands in for a node with one topic, inside a bubble of synctest. It
// leases offsets 0 to total-1 once each, and again when they are nacked.
type queueNode struct {
	visibility time.Duration
	total      int

	mu       sync.Mutex
	next     int
	back     []int // nacked
	leased   map[string]time.Time
	most     int      // leases at a time
	log      []string // "ack 3", "extend 3", "nack 3 1s"
	began    time.Time
	settling func(action, handle string) (status int, code string) // nil: as it is
	lose     func(action string) bool                              // the answer of a settle call
	polling  func() (*http.Response, error)                        // in place of a consume; both nil: as it is
	refusing func() (*http.Response, error)                        // in place of a settle call
}

func newQueueNode(visibility time.Duration, total int) *queueNode {
	return &queueNode{visibility: visibility, total: total, leased: map[string]time.Time{}, began: time.Now()}
}

func (q *queueNode) serve(r *http.Request) (*http.Response, error) {
	switch {
	case strings.HasSuffix(r.URL.Path, "/consume"):
		return q.consume(r)
	case strings.HasSuffix(r.URL.Path, "/ack"):
		return q.settle(r)
	default:
		return answer(200, fmt.Sprintf(`{"name":"t","visibility_timeout_ms":%d}`, q.visibility.Milliseconds()))
	}
}

func (q *queueNode) consume(r *http.Request) (*http.Response, error) {
	q.mu.Lock()
	polling := q.polling
	q.mu.Unlock()
	if polling != nil {
		if res, err := polling(); res != nil || err != nil {
			return res, err
		}
	}
	wait, err := time.ParseDuration(r.URL.Query().Get("wait"))
	if err != nil {
		return nil, err
	}
	most, err := strconv.Atoi(r.URL.Query().Get("max"))
	single := err != nil
	if single {
		most = 1
	}
	for end := time.Now().Add(wait); ; {
		if got := q.take(most); len(got) > 0 {
			return q.messages(got, single)
		}
		select {
		case <-r.Context().Done():
			return nil, r.Context().Err()
		case <-time.After(min(100*time.Millisecond, max(0, time.Until(end)))):
			if !time.Now().Before(end) {
				return answer(204, "")
			}
		}
	}
}

func (q *queueNode) take(most int) (offsets []int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(offsets) < most {
		switch {
		case len(q.back) > 0:
			offsets, q.back = append(offsets, q.back[0]), q.back[1:]
		case q.next < q.total:
			offsets, q.next = append(offsets, q.next), q.next+1
		default:
			most = 0
		}
	}
	for _, o := range offsets {
		q.leased[strconv.Itoa(o)] = time.Now().Add(q.visibility)
	}
	q.most = max(q.most, len(q.leased))
	return offsets
}

func (q *queueNode) messages(offsets []int, single bool) (*http.Response, error) {
	if single {
		o := strconv.Itoa(offsets[0])
		return answer(200, "v"+o, "Tidemark-Partition", "0", "Tidemark-Offset", o, "Tidemark-Timestamp-Ms", "1", "Tidemark-Delivery-Count", "1", "Tidemark-Receipt-Handle", o)
	}
	list := make([]string, len(offsets))
	for i, o := range offsets {
		list[i] = fmt.Sprintf(`{"partition":0,"offset":%d,"payload":"v%d","delivery_count":1,"receipt_handle":"%d"}`, o, o, o)
	}
	return answer(200, `{"messages":[`+strings.Join(list, ",")+`]}`, "Content-Type", "application/json")
}

func (q *queueNode) settle(r *http.Request) (*http.Response, error) {
	var body struct {
		Handles []string `json:"receipt_handles"`
	}
	text, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(text, &body)
	}
	if err != nil {
		return nil, err
	}
	action, delay := r.URL.Query().Get("action"), r.URL.Query().Get("delay")
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.refusing != nil {
		for _, h := range body.Handles {
			q.log = append(q.log, action+" "+h+" refused")
		}
		return q.refusing()
	}
	results := make([]string, len(body.Handles))
	for i, h := range body.Handles {
		status, code := q.one(action, h)
		q.log = append(q.log, strings.TrimSpace(fmt.Sprintf("%s %s %s %d", action, h, delay, status)))
		results[i] = fmt.Sprintf(`{"status":%d,"code":%q,"error":"x"}`, status, code)
	}
	if q.lose != nil && q.lose(action) {
		return nil, errCut
	}
	return answer(200, `{"results":[`+strings.Join(results, ",")+`]}`)
}

func (q *queueNode) one(action, h string) (status int, code string) {
	if q.settling != nil {
		if status, code := q.settling(action, h); status > 0 {
			return status, code
		}
	}
	deadline, ok := q.leased[h]
	if !ok || !time.Now().Before(deadline) {
		return 410, "gone"
	}
	switch action {
	case "extend":
		q.leased[h] = time.Now().Add(q.visibility)
	case "nack":
		o, _ := strconv.Atoi(h)
		q.back = append(q.back, o)
		delete(q.leased, h)
	default:
		delete(q.leased, h)
	}
	return 204, ""
}

// lines are the settle calls so far, those that begin like one of the prefixes.
func (q *queueNode) lines(prefixes ...string) (out []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.log {
		for _, p := range prefixes {
			if strings.HasPrefix(l, p) {
				out = append(out, l)
			}
		}
	}
	return out
}
