package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"testing"
)

// status is a line that the program prints.
type status struct {
	Event    string
	HTTP     string
	WAL      bool
	Requests uint64
	Records  uint64
	Groups   uint64
}

func decode(t *testing.T, lines *bufio.Scanner) status {
	t.Helper()
	if !lines.Scan() {
		t.Fatalf("no status line: %v", lines.Err())
	}
	var s status
	if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
		t.Fatalf("status line %q: %v", lines.Text(), err)
	}
	return s
}

func post(t *testing.T, addr string, body io.Reader) int {
	t.Helper()
	res, err := http.Post("http://"+addr+"/v1/topics/bench/produce", "application/octet-stream", body)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if n, err := io.Copy(io.Discard, res.Body); err != nil || n != 0 {
		t.Errorf("the answer has %d bytes of body (%v), want none", n, err)
	}
	return res.StatusCode
}

// The whole program in both modes: ready line, answers at and over the body
// bound with and without a declared length, and counters at the end.
func TestServe(t *testing.T) {
	for _, wal := range []string{"", filepath.Join(t.TempDir(), "ring")} {
		o := options{addr: "127.0.0.1:0", wal: wal, walSize: 64 << 20, maxBody: 10_000}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		pr, pw := io.Pipe()
		done := make(chan error, 1)
		go func() { done <- run(ctx, o, pw); _ = pw.Close() }()
		lines := bufio.NewScanner(pr)
		ready := decode(t, lines)
		if ready.Event != "ready" || ready.WAL != (wal != "") {
			t.Fatalf("first line %+v, want ready with wal=%v", ready, wal != "")
		}
		for size, want := range map[int]int{0: 200, 1024: 200, 10_000: 200, 10_001: 413} {
			body := bytes.Repeat([]byte{'x'}, size)
			if got := post(t, ready.HTTP, bytes.NewReader(body)); got != want {
				t.Errorf("%d bytes: status %d, want %d", size, got, want)
			}
			// A reader of unknown type is sent in chunks, without a length.
			if got := post(t, ready.HTTP, io.MultiReader(bytes.NewReader(body))); got != want {
				t.Errorf("%d bytes in chunks: status %d, want %d", size, got, want)
			}
		}
		http.DefaultClient.CloseIdleConnections()
		stop()
		end := decode(t, lines)
		if err := <-done; err != nil {
			t.Errorf("stop: %v", err)
		}
		if end.Event != "stopped" || end.Requests != 6 {
			t.Errorf("last line %+v, want stopped after 6 answers", end)
		}
		if wal != "" && (end.Records != 6 || end.Groups == 0) {
			t.Errorf("last line %+v, want 6 records in the log", end)
		}
	}
}
