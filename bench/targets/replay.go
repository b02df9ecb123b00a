package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/tidemark-mq/tidemark/bench/child"
	"github.com/tidemark-mq/tidemark/bench/rawhttp"
)

// S8: sequential replay of what is on local disk.
func s8(ctx context.Context, g *rig) ([]figure, error) {
	c, err := g.broker(ctx, "none")
	if err != nil {
		return nil, err
	}
	records := pick(g, int64(400_000), 4_000)
	if err := fill(ctx, c, "replay", 1, 1024, records); err != nil {
		return nil, stop(err, c)
	}
	values := float64(records) * 1024
	ndjson := figure{what: "NDJSON, MB/s of values", bound: atLeast(150)}
	raw := figure{what: "stored batches / min(0.5 x loopback TCP, 1 GB/s)", bound: atLeast(1)}
	for range pick(g, 5, 1) {
		bare, err := loopback(pick(g, 1<<30, 16<<20))
		var secs float64
		if err == nil {
			_, secs, err = replay(ctx, c, "application/x-ndjson")
		}
		if err != nil {
			return nil, stop(err, c)
		}
		ndjson.rounds = append(ndjson.rounds, values/1e6/secs)
		n, secs, err := replay(ctx, c, "application/vnd.kafka.record-batch")
		var refused refusedError
		switch {
		case errors.As(err, &refused):
			raw.why = refused.Error()
		case err != nil:
			return nil, stop(err, c)
		default:
			raw.rounds = append(raw.rounds, float64(n)/1e6/secs/min(bare/2, 1000))
		}
	}
	return []figure{ndjson, raw}, stop(nil, c)
}

// refusedError is the status of an answer that a node does not give.
type refusedError int

func (e refusedError) Error() string {
	return "this build has no such answer (status " + strconv.Itoa(int(e)) + ")"
}

// replay reads the whole log of the one partition and drops it.
func replay(ctx context.Context, c *child.Child, accept string) (n int64, seconds float64, err error) {
	target, err := rawhttp.NewTarget("http://"+c.Ready.HTTP, "", "")
	if err != nil {
		return 0, 0, err
	}
	conn, err := target.Dial(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close()
	begun := time.Now()
	res, err := conn.Stream(rawhttp.Request{Method: http.MethodGet, Path: "/v1/topics/replay/partitions/0/records", Accept: accept})
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = res.Body.Close() }() // how it ended is known by then
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != accept {
		return 0, 0, refusedError(res.StatusCode)
	}
	buf := make([]byte, 256<<10)
	for {
		k, err := res.Body.Read(buf)
		n += int64(k)
		if errors.Is(err, io.EOF) {
			return n, time.Since(begun).Seconds(), nil
		}
		if err != nil {
			return n, 0, err
		}
	}
}

// loopback returns what one TCP connection within this machine carries, in MB/s.
func loopback(bytes int) (float64, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer ln.Close()
	sent := make(chan error, 1)
	go func() {
		nc, err := ln.Accept()
		if err == nil {
			buf := make([]byte, 256<<10)
			for n := 0; n < bytes && err == nil; n += len(buf) {
				_, err = nc.Write(buf)
			}
			nc.Close()
		}
		sent <- err
	}()
	nc, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		ln.Close()
		return 0, errors.Join(err, <-sent)
	}
	defer nc.Close()
	begun := time.Now()
	buf := make([]byte, 256<<10)
	n := int64(0)
	for {
		k, err := nc.Read(buf)
		n += int64(k)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, errors.Join(err, <-sent)
		}
	}
	rate := float64(n) / 1e6 / time.Since(begun).Seconds()
	return rate, <-sent
}
