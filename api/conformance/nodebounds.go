package conformance

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/tidemark-mq/tidemark/api"
)

// Bounds of a whole node are reached where that takes no more than this: a
// target with small bounds shows what one with the defaults does.
const (
	reachableConnections = 1024
	reachableBytes       = 64 << 20
)

// nodeBounds: what all clients share.
func nodeBounds(l api.Limits) (cases []Case) {
	const path = "/v1/topics/{t}/produce/batch"
	if l.Connections <= reachableConnections {
		cases = append(cases, Case{
			Rule: "connections beyond the bound are answered and closed", Alone: true,
			Steps: steps(
				Held{n: l.Connections, text: head1("GET", "/healthz"), answered: true, then: steps(
					Talk{writes(head1("GET", "/healthz")), answers("GET", refused(503, "overloaded").head("Retry-After: 1")), ends()},
				)},
				Held{n: l.Connections - 1, text: head1("GET", "/healthz"), answered: true, then: steps(
					Talk{writes(head1("GET", "/healthz")), answers("GET", ok(200))},
				)},
			),
		})
	}
	if l.Waiting <= reachableConnections {
		cases = append(cases, Case{
			Rule: "consumes in flight of one identity have a bound", Alone: true, Differs: "waiting",
			Steps: steps(
				Held{n: l.Waiting, text: head1("GET", "/v1/topics/{t}/consume?wait=1h"), then: steps(
					get("/v1/topics/{t}/consume").becomes(429).fails(429, "too_many").field("retry", `"after"`),
				)},
				get("/v1/topics/{t}/consume").becomes(204),
				Held{n: l.Waiting - 1, text: head1("GET", "/v1/topics/{t}/consume?wait=1h"), then: steps(get("/v1/topics/{t}/consume").is(204))},
			),
		})
	}
	if l.LargeBodyBytes <= reachableBytes && l.BatchBytes > l.LargeBody {
		// A body of a declared length takes one byte more than that, to see its end.
		fits := int(l.LargeBodyBytes / l.BatchBytes)
		head := head1("POST", path, "Content-Type: application/x-ndjson", fmt.Sprintf("Content-Length: %d", l.BatchBytes-1))
		whole := send("POST", path, linesOf(l.BatchBytes-1, l.RecordBytes/2), "Content-Type: application/x-ndjson")
		cases = append(cases, Case{
			Rule: "large bodies in flight share a budget, small ones pass", Alone: true,
			Steps: steps(
				Held{n: fits, text: head, more: l.BatchBytes - 2, then: steps(
					whole.becomes(503).fails(503, "overloaded").head("Retry-After: 1"),
					post("/v1/topics/{t}/produce", fill(100)).is(202),
				)},
				whole.becomes(202),
				Held{n: fits - 1, text: head, more: l.BatchBytes - 2, then: steps(whole.is(202))},
			),
		})
	}
	return cases
}

// Held are connections that stay open while other steps run.
type Held struct {
	n        int
	text     string // written on each
	more     int64  // zero bytes after it
	answered bool   // each is answered 200 before the steps run
	then     []Step
}

// do implements Step.
func (h Held) do(r *run) {
	var open []net.Conn
	defer func() {
		for _, nc := range open {
			nc.Close()
		}
	}()
	r.client.CloseIdleConnections() // they count
	deadline := time.Now().Add(stepMax)
	for len(open) < h.n {
		nc, err := h.one(r)
		switch {
		case err == nil:
			open = append(open, nc)
		case time.Now().After(deadline):
			r.t.Errorf("connection %d of %d: %v", len(open)+1, h.n, err)
			return
		default: // connections of earlier steps may still be counted
			r.pause()
		}
	}
	r.client.CloseIdleConnections()
	for _, s := range h.then {
		s.do(r)
	}
}

func (h *Held) one(r *run) (nc net.Conn, err error) {
	if nc, err = net.DialTimeout("tcp", r.target.host(), stepMax); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			nc.Close()
		}
	}()
	if err = nc.SetDeadline(time.Now().Add(stepMax)); err != nil {
		return nil, err
	}
	if _, err = io.WriteString(nc, r.name(h.text)); err != nil {
		return nil, err
	}
	if h.more > 0 {
		if _, err = io.Copy(nc, io.LimitReader(zeros{}, h.more)); err != nil {
			return nil, err
		}
	}
	if !h.answered {
		return nc, nil
	}
	res, err := http.ReadResponse(bufio.NewReader(nc), nil)
	if err != nil {
		return nil, err
	}
	if err = res.Body.Close(); err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("it is answered %s", res.Status)
	}
	return nc, err
}
