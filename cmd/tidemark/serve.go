package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tidemark-mq/tidemark/api"
	"github.com/tidemark-mq/tidemark/internal/certs"
	"github.com/tidemark-mq/tidemark/internal/reload"
	"github.com/tidemark-mq/tidemark/node"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

func newServe(p *process) *cobra.Command {
	var o serveFlags
	cmd := &cobra.Command{
		Use: "serve", Short: "Run a node",
		Long: `Run a node until SIGTERM or SIGINT.

Every flag is also a variable (--segment-bytes: TIDEMARK_SEGMENT_BYTES) and a key of
the configuration file (segment_bytes), which is YAML, JSON or TOML. Flags go
before variables, variables before the file. Try one out with
` + "`tidemark config check`" + `.

SIGHUP reads file, password and certificate again; what may change so stands in
docs/configuration.md.

When the node serves, one line of JSON on stdout says where. The log goes to
stderr.`,
		Example: `  tidemark serve --dev
  TIDEMARK_ADMIN_PASSWORD=... tidemark serve --data-dir /var/lib/tidemark --archive 's3://bucket/prod?region=eu-west-1'
  tidemark serve --config /etc/tidemark.yaml --log-level debug`,
		Args: args(),
	}
	o.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		l, secret, err := prepare(p, o)
		if err != nil {
			return err
		}
		return serve(cmd.Context(), p, o, l, secret)
	}
	return cmd
}

// serveFlags are how the command line names a configuration.
type serveFlags struct {
	file string
	set  *pflag.FlagSet
}

// add gives a command the flags.
func (o *serveFlags) add(cmd *cobra.Command) {
	o.set = cmd.Flags()
	o.set.StringVar(&o.file, "config", "", "configuration file (TIDEMARK_CONFIG)")
	addSettings(o.set)
}

// settingFlag is the text of a setting; it is parsed with all other sources.
type settingFlag struct {
	text string
	kind string
}

// Set implements pflag.Value.
func (f *settingFlag) Set(text string) error { f.text = text; return nil }

// String implements pflag.Value.
func (f *settingFlag) String() string { return f.text }

// Type implements pflag.Value.
func (f *settingFlag) Type() string { return f.kind }

// addSettings makes flags of the table.
func addSettings(flags *pflag.FlagSet) {
	flags.SortFlags = false
	for _, s := range settings {
		usage := s.usage
		if s.dev != "" {
			usage += "; with --dev " + s.dev
		}
		flag := flags.VarPF(&settingFlag{kind: s.kind}, s.name, "", usage)
		flag.DefValue = s.def
		if s.kind == "bool" {
			flag.NoOptDefVal, flag.DefValue = "true", ""
		}
	}
}

// server is a node and its listeners.
type server struct {
	c        config
	secret   secrets
	surfaces []surface
	log      *slog.Logger
	form     *logForm
	gate     gate
	certs    *certs.Server // nil: plain HTTP
	grace    atomic.Int64  // shutdown_grace
	registry *prometheus.Registry
	archive  objstore.Store // nil without
	node     *node.Node
	api      *api.Server
	http     net.Listener
	lobby    *lobby                       // answers until the node does
	progress atomic.Pointer[string]       // what the start does now
	side     atomic.Pointer[http.Handler] // what the metrics listener answers
	metrics  *sideServer                  // nil without
	pprof    *sideServer                  // nil without
	failed   chan error                   // a listener that ended by itself; room for each
	serving  sync.WaitGroup
}

// addProcessor gives Go one processor more than the machine has. A thread that
// waits for the disk keeps its processor until the runtime takes it away, some
// 20 to 100 us later, and under load the log waits for the disk all the time:
// that left every tenth of two cores unused. GOMAXPROCS overrides it. Go does
// not follow later changes of a container's limit then.
var addProcessor = sync.OnceFunc(func() {
	if _, set := os.LookupEnv("GOMAXPROCS"); !set {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	}
})

// serve runs a node until ctx ends or a listener fails.
func serve(ctx context.Context, p *process, o serveFlags, l loaded, secret secrets) (err error) {
	addProcessor()
	hangups, deaf := p.hangups() // from here on SIGHUP does not end the process
	defer deaf()
	s := &server{c: l.config, secret: secret, surfaces: surfacesOf(&l.config, secret.password != ""), registry: prometheus.NewRegistry(), failed: make(chan error, 3)}
	s.log, s.form = newLogger(p.stderr, &s.c)
	s.grace.Store(int64(s.c.ShutdownGrace))
	s.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	defer func() { err = errors.Join(err, s.close()) }()
	reloader, err := reload.New(s.reloading(p, o, l), s.log, s.registry)
	if err != nil {
		return err
	}
	if err := s.open(ctx); err != nil {
		return err
	}
	s.warn(p)
	if err := s.announce(p); err != nil {
		return err
	}
	reloads, stop := context.WithCancel(ctx)
	defer stop() // before close waits for it
	s.serving.Go(func() { reloader.Run(reloads, hangups) })
	select {
	case <-ctx.Done():
		s.log.Info("shutting down", "grace", time.Duration(s.grace.Load()))
		return nil
	case err := <-s.failed:
		return err
	}
}

// warn says what an operator should know about the security of this node.
func (s *server) warn(p *process) {
	for _, path := range s.secret.exposed {
		s.log.Warn("every user of this machine may read a file that holds a secret; take the right from it (chmod o-r)", "file", path)
	}
	switch {
	case s.secret.password == "":
		p.say("security is off (--dev): everybody who reaches %s may do everything", s.httpAddr())
	case s.certs == nil && !onLoopback(s.http):
		s.log.Warn("passwords and records cross the network as plain text: give --tls-cert-file and --tls-key-file, or put TLS in front", "http", s.httpAddr())
	}
	if s.pprof != nil && !onLoopback(s.pprof.ln) {
		s.log.Warn("everybody who reaches the listener for profiles sees the memory's content and can slow the node; name a loopback address", "http", boundAddr(s.c.PprofAddr, s.pprof.ln))
	}
	if s.certs != nil {
		s.log.Info("speaking TLS", "certificate", s.secret.pair.Subject(), "until", s.secret.pair.NotAfter())
		s.warnExpiry(s.secret.pair)
	}
}

// soon is how long before its end a certificate is warned about.
const soon = 14 * 24 * time.Hour

func (s *server) warnExpiry(pair *certs.Pair) {
	if left := time.Until(pair.NotAfter()); left < soon {
		s.log.Warn("the certificate is over soon: put a new one in its place and send SIGHUP", "until", pair.NotAfter(), "hours", int(left.Hours()))
	}
}

// onLoopback says whether only this machine reaches a listener.
func onLoopback(ln net.Listener) bool {
	addr, ok := ln.Addr().(*net.TCPAddr)
	return ok && addr.IP.IsLoopback()
}

// open starts everything, in the order in which it is needed. What is open
// when it fails, close closes.
func (s *server) open(ctx context.Context) error {
	var err error
	if s.secret.pair != nil {
		if s.certs, err = certs.NewServer(s.secret.pair, s.c.TLSMinVersion, s.registry); err != nil {
			return err
		}
	}
	if s.c.Archive != "" {
		if s.archive, err = openStore(ctx, s.c.Archive, s.log, s.registry); err != nil {
			return fmt.Errorf("archive %s: %w", s.c.Archive, err)
		}
	}
	// The addresses first: a port that is taken should not cost a recovery, and
	// who asks whether the process lives must not wait for one (B248).
	if s.http, err = listenOn(s.surfaces, surfaceAPI); err != nil {
		return err
	}
	s.setProgress("opening " + s.c.DataDir)
	s.lobby = openLobby(s.http, s.tls(), s.starting)
	s.log.Info("starting", "http", s.httpAddr(), "data_dir", s.c.DataDir)
	handler := promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{Registry: s.registry, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn)})
	if s.c.MetricsAddr != "" {
		s.setSide(api.Starting(s.starting)) // what would be measured is being built
		routes := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*s.side.Load()).ServeHTTP(w, r) })
		if s.metrics, err = startSide(s.surfaces, surfaceMetrics, routes, s.failed); err != nil {
			return err
		}
	}
	if s.c.PprofAddr != "" {
		if s.pprof, err = startSide(s.surfaces, surfacePprof, pprofRoutes(), s.failed); err != nil {
			return err
		}
	}
	s.node, err = node.Open(ctx, s.nodeOptions())
	if err != nil {
		return err
	}
	o := api.Options{Metrics: handler, Registerer: s.registry, Logger: s.log, TLS: s.tls()}
	if s.secret.password != "" {
		s.gate.use(s.secret.password)
		o.Authenticate = s.gate.authenticate
	}
	if s.api, err = api.New(s.node, o); err != nil {
		return err
	}
	s.setSide(metricsRoutes(handler, s.api.Handler()))
	if err := s.lobby.close(); err != nil {
		return fmt.Errorf("hand the listener on %s to the node: %w", s.httpAddr(), err)
	}
	s.serving.Go(func() { s.failed <- s.api.Serve(s.http) })
	return nil
}

// tls is what the API's listener speaks; nil is plain HTTP.
func (s *server) tls() *tls.Config {
	if s.certs == nil {
		return nil
	}
	return s.certs.Config()
}

func (s *server) setSide(h http.Handler) { s.side.Store(&h) }

func (s *server) setProgress(text string) { s.progress.Store(&text) }

func (s *server) starting() string { return *s.progress.Load() }

func (s *server) nodeOptions() node.Options {
	return node.Options{
		Dir: s.c.DataDir, NodeID: s.c.NodeID, RaftAddr: s.c.RaftAddr, HTTPAddr: s.httpAddr(), Archive: s.archive,
		WALInterval: s.c.WALInterval, StateInterval: s.c.StateInterval, WALMaxBytes: s.c.WALMaxBytes,
		SegmentBytes: s.c.SegmentBytes, SealAge: s.c.SealAge, SealMinBytes: s.c.SealMinBytes, FlushBytes: s.c.FlushBytes,
		MemoryBudget: boundMemory(s.c), CacheBytes: s.c.CacheBytes, DiskReserve: s.c.DiskReserve,
		GarbageGrace: s.c.GarbageGrace, GarbageInterval: s.c.GarbageInterval, PITRWindow: s.c.PITRWindow, OrphanInterval: s.c.OrphanInterval, ScrubInterval: s.c.ScrubInterval,
		MergeInterval: cmp.Or(s.c.MergeInterval, -1), MergeMinSegments: int(s.c.MergeMinSegments), RetentionInterval: s.c.RetentionInterval,
		Logger: s.log, Registerer: s.registry, OnProgress: s.setProgress,
	}
}

// httpAddr is the host that was asked for with the port that was given.
func (s *server) httpAddr() string { return boundAddr(s.c.HTTPAddr, s.http) }

func boundAddr(asked string, ln net.Listener) string {
	host, _, _ := net.SplitHostPort(asked) // it was checked
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	return net.JoinHostPort(host, port)
}

// ready is the line on stdout.
type ready struct {
	Event   string `json:"event"`
	HTTP    string `json:"http"`
	TLS     bool   `json:"tls"`
	Raft    string `json:"raft"`
	Metrics string `json:"metrics"`
	Pprof   string `json:"pprof,omitempty"`
	Node    string `json:"node"`
	DataDir string `json:"data_dir"`
	Archive string `json:"archive"`
	Version string `json:"version"`
}

func (s *server) announce(p *process) error {
	line := ready{
		Event: "ready", HTTP: s.httpAddr(), TLS: s.certs != nil, Raft: s.node.RaftAddr(), Node: s.c.NodeID, DataDir: s.c.DataDir, Version: version,
	}
	if s.metrics != nil {
		line.Metrics = boundAddr(s.c.MetricsAddr, s.metrics.ln)
	}
	if s.pprof != nil {
		line.Pprof = boundAddr(s.c.PprofAddr, s.pprof.ln)
	}
	if s.archive != nil {
		line.Archive = s.archive.Capabilities().URL
	}
	enc := json.NewEncoder(p.stdout)
	enc.SetEscapeHTML(false) // URLs have ampersands
	if err := enc.Encode(line); err != nil {
		return errors.New("write the ready line to stdout: " + err.Error()) // a node that ends says why, also when nobody reads
	}
	return nil
}

// close stops accepting, lets requests end within the grace, makes everything
// durable and ships it, and closes what is open.
func (s *server) close() error {
	var errs []error
	if s.api != nil {
		grace := time.Duration(s.grace.Load())
		ctx, cancel := context.WithTimeout(context.Background(), grace)
		if err := s.api.Shutdown(ctx); err != nil {
			s.log.Warn("requests were cut off at the end of the grace", "grace", grace, "error", err)
		}
		cancel()
	}
	errs = append(errs, s.lobby.close())
	if s.http != nil {
		s.http.Close() // it is closed already if it was served
	}
	s.serving.Wait()
	if s.node != nil {
		errs = append(errs, s.node.Close())
	}
	// Metrics and profiles last: they show how the rest ends.
	errs = append(errs, s.metrics.close(), s.pprof.close())
	if s.archive != nil {
		errs = append(errs, s.archive.Close())
	}
	return errors.Join(errs...)
}

// sideServer is a listener beside the API.
type sideServer struct {
	ln   net.Listener
	http *http.Server
	done chan struct{}
}

func startSide(all []surface, name string, routes http.Handler, failed chan<- error) (*sideServer, error) {
	ln, err := listenOn(all, name)
	if err != nil {
		return nil, err
	}
	s := &sideServer{ln: ln, done: make(chan struct{}), http: &http.Server{Handler: routes, ReadHeaderTimeout: 5 * time.Second}}
	go func() {
		defer close(s.done)
		if err := s.http.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("serve %s on %s: %w", name, ln.Addr(), err)
		}
	}()
	return s, nil
}

func (s *sideServer) close() error {
	if s == nil {
		return nil
	}
	err := s.http.Close()
	<-s.done
	return err
}
