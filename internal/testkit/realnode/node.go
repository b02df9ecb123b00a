package realnode

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/tidemark-mq/tidemark/api/client"
	"github.com/tidemark-mq/tidemark/internal/testkit/process"
)

// Options say how a node is run.
type Options struct {
	Binary  string
	DataDir string
	Archive string   // URL
	Env     []string // credentials of the archive
	Flags   []string // further flags of serve
}

// Node is a node that serves.
type Node struct {
	*process.Process
	*client.Client
	Base       string        // http://127.0.0.1:port
	Profiles   string        // http://127.0.0.1:port where --pprof-addr was given, else ""
	ReadyAfter time.Duration // from the start of the process to its line

	transport *http.Transport
}

// connections bounds what one node's client keeps open.
const connections = 64

// Start starts a node and waits until it serves. The error of one that does
// not shows what it wrote.
func Start(ctx context.Context, o Options) (*Node, error) {
	began := time.Now()
	p, err := Launch(o)
	if err != nil {
		return nil, err
	}
	n, err := attach(ctx, p)
	if err != nil {
		p.Kill()
		return nil, err
	}
	n.ReadyAfter = time.Since(began)
	return n, nil
}

// Launch starts a node and returns at once: for one that is expected not to
// serve.
func Launch(o Options) (*process.Process, error) {
	args := append([]string{
		"serve", "--dev", "--data-dir", o.DataDir, "--archive", o.Archive,
		"--http-addr", "127.0.0.1:0", "--raft-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0",
	}, o.Flags...)
	return process.Start(process.Options{Path: o.Binary, Args: args, Env: o.Env})
}

// attach reads where the node serves.
func attach(ctx context.Context, p *process.Process) (*Node, error) {
	line, err := p.FirstLine(ctx)
	if err != nil {
		return nil, err
	}
	var ready struct{ Event, HTTP, Pprof string }
	if err := json.Unmarshal([]byte(line), &ready); err != nil || ready.Event != "ready" || ready.HTTP == "" {
		return nil, fmt.Errorf("the first line of tidemark serve is %.200q, not its ready event\n%s", line, p.Log())
	}
	n := &Node{Process: p, Base: "http://" + ready.HTTP, transport: &http.Transport{MaxIdleConnsPerHost: connections, DisableCompression: true}}
	if ready.Pprof != "" {
		n.Profiles = "http://" + ready.Pprof
	}
	n.Client, err = client.New(n.Base, client.Options{
		HTTP: &http.Client{Transport: n.transport}, Name: "testkit",
		Retry: client.Retry{Tries: 1}, // tests count what each request did
	})
	return n, err
}

// Kill ends the node with SIGKILL and closes the connections to it.
func (n *Node) Kill() {
	n.Process.Kill()
	n.transport.CloseIdleConnections()
}

// Stop ends the node in order; it reports whether it ended within grace.
func (n *Node) Stop(grace time.Duration) bool {
	defer n.transport.CloseIdleConnections()
	return n.Process.Stop(grace)
}

// HTTP returns the client that the node's Client uses, for routes that it does
// not know.
func (n *Node) HTTP() *http.Client { return &http.Client{Transport: n.transport} }
