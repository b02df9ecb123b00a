package api

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// Clients that hold the budget of large bodies and answers without moving lose
// it soon: while half of it is taken, large ones have a tenth of the time. Small
// ones, and large ones while there is plenty, have all of it.
func TestLargeOnesHurry(t *testing.T) {
	const mib = 1 << 20
	s := start(t, limits(func(l *Limits) {
		l.LargeBodyBytes, l.ConsumeBytes = 24*mib, 32*mib
		l.BodyStep, l.WriteStep = 30*time.Second, 30*time.Second
		l.RecordBytes = 16 * mib
	}))
	soon := func(what string, begun time.Time) {
		t.Helper()
		if took := time.Since(begun); took > 20*time.Second {
			t.Errorf("%s took %v", what, took)
		}
	}
	x := &exchange{s: s.s, charged: mib}
	if got := x.patience(time.Second); got != time.Second {
		t.Errorf("a large body has %v of a second while there is plenty", got)
	}
	// A body that stops behind more than half of the budget.
	begun := time.Now()
	nc, r := s.raw(fmt.Sprintf("POST /v1/topics/orders/produce HTTP/1.1\r\nHost: x\r\nX-Tidemark-Client: t\r\nContent-Length: %d\r\n\r\n", 15*mib))
	if _, err := nc.Write(make([]byte, 13*mib)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "half of the budget is taken", s.s.crowded)
	if got := x.patience(time.Second); got != time.Second/hurry {
		t.Errorf("a large body has %v of a second while half of the budget is taken", got)
	}
	if got := (&exchange{s: s.s}).patience(time.Second); got != time.Second {
		t.Errorf("a small body has %v of a second", got)
	}
	s.want(s.readAnswer(r, "POST"), 408, "canceled")
	soon("the end of a body that stopped", begun)
	eventually(t, "its part is free", func() bool { return s.s.largeBodies.Load() == 0 })
	// A consumer that takes nothing of its answer gives its leases back.
	for range 16 {
		s.f.put("orders", strings.Repeat("x", mib-1))
	}
	begun = time.Now()
	nc, _ = s.raw("POST /v1/topics/orders/consume?max=16&partition=0 HTTP/1.1\r\nHost: x\r\nX-Tidemark-Client: t\r\nContent-Length: 0\r\n\r\n")
	if err := nc.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the leases are given back", func() bool { return s.f.releasedCount() == 16 })
	soon("the end of an answer that nobody takes", begun)
}
