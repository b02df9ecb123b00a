package main

import (
	"cmp"
	"context"
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
	"github.com/tidemark-mq/tidemark/node"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

func newServe(p *process) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "serve", Short: "Run a node",
		Long: `Run a node until SIGTERM or SIGINT.

Every flag is also a variable (--segment-bytes: TIDEMARK_SEGMENT_BYTES) and a key of
the configuration file (segment_bytes), which is YAML or JSON. Flags go before
variables, variables before the file.

When the node serves, one line of JSON on stdout says where. The log goes to
stderr.`,
		Example: `  tidemark serve --dev
  TIDEMARK_ADMIN_PASSWORD=... tidemark serve --data-dir /var/lib/tidemark --archive 's3://bucket/prod?region=eu-west-1'
  tidemark serve --config /etc/tidemark.yaml --log-level debug`,
		Args: args(),
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration file (TIDEMARK_CONFIG)")
	addSettings(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := loadConfig(p, cmd.Flags(), file)
		if err != nil {
			return err
		}
		return serve(cmd.Context(), p, c)
	}
	return cmd
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
	log      *slog.Logger
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
func serve(ctx context.Context, p *process, c config) (err error) {
	addProcessor()
	password, err := p.secret(c.AdminPasswordFile, "", "TIDEMARK_ADMIN_PASSWORD")
	if err != nil {
		return err
	}
	if password == "" && !c.Dev {
		return usagef("no admin password: put it into TIDEMARK_ADMIN_PASSWORD or a file named by --admin-password-file, or try the broker out with --dev")
	}
	s := &server{c: c, log: newLogger(p.stderr, c), registry: prometheus.NewRegistry(), failed: make(chan error, 3)}
	s.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.open(ctx, password); err != nil {
		return err
	}
	if password == "" {
		p.say("security is off (--dev): everybody who reaches %s may do everything", s.httpAddr())
	}
	if err := s.announce(p); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		s.log.Info("shutting down", "grace", c.ShutdownGrace)
		return nil
	case err := <-s.failed:
		return err
	}
}

// open starts everything, in the order in which it is needed. What is open
// when it fails, close closes.
func (s *server) open(ctx context.Context, password string) error {
	var err error
	if s.c.Archive != "" {
		if s.archive, err = openStore(ctx, s.c.Archive, s.log, s.registry); err != nil {
			return fmt.Errorf("archive %s: %w", s.c.Archive, err)
		}
	}
	// The addresses first: a port that is taken should not cost a recovery, and
	// who asks whether the process lives must not wait for one (B248).
	if s.http, err = listen("--http-addr", s.c.HTTPAddr); err != nil {
		return err
	}
	s.setProgress("opening " + s.c.DataDir)
	s.lobby = openLobby(s.http, s.starting)
	s.log.Info("starting", "http", s.httpAddr(), "data_dir", s.c.DataDir)
	handler := promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{Registry: s.registry, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn)})
	if s.c.MetricsAddr != "" {
		s.setSide(api.Starting(s.starting)) // what would be measured is being built
		routes := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*s.side.Load()).ServeHTTP(w, r) })
		if s.metrics, err = startSide("--metrics-addr", s.c.MetricsAddr, routes, s.failed); err != nil {
			return err
		}
	}
	if s.c.PprofAddr != "" {
		if s.pprof, err = startSide("--pprof-addr", s.c.PprofAddr, pprofRoutes(), s.failed); err != nil {
			return err
		}
	}
	s.node, err = node.Open(ctx, s.nodeOptions())
	if err != nil {
		return err
	}
	o := api.Options{Metrics: handler, Registerer: s.registry, Logger: s.log}
	if password != "" {
		o.Authenticate = authenticator(password)
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

func (s *server) setSide(h http.Handler) { s.side.Store(&h) }

func (s *server) setProgress(text string) { s.progress.Store(&text) }

func (s *server) starting() string { return *s.progress.Load() }

func (s *server) nodeOptions() node.Options {
	return node.Options{
		Dir: s.c.DataDir, NodeID: s.c.NodeID, RaftAddr: s.c.RaftAddr, HTTPAddr: s.httpAddr(), Archive: s.archive,
		WALInterval: s.c.WALInterval, StateInterval: s.c.StateInterval, WALMaxBytes: s.c.WALMaxBytes,
		SegmentBytes: s.c.SegmentBytes, SealAge: s.c.SealAge, SealMinBytes: s.c.SealMinBytes, FlushBytes: s.c.FlushBytes,
		MemoryBudget: s.c.MemoryBudget, CacheBytes: s.c.CacheBytes, DiskReserve: s.c.DiskReserve,
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
	Raft    string `json:"raft"`
	Metrics string `json:"metrics"`
	Node    string `json:"node"`
	DataDir string `json:"data_dir"`
	Archive string `json:"archive"`
	Version string `json:"version"`
}

func (s *server) announce(p *process) error {
	line := ready{
		Event: "ready", HTTP: s.httpAddr(), Raft: s.node.RaftAddr(), Node: s.c.NodeID, DataDir: s.c.DataDir, Version: version,
	}
	if s.metrics != nil {
		line.Metrics = boundAddr(s.c.MetricsAddr, s.metrics.ln)
	}
	if s.archive != nil {
		line.Archive = s.archive.Capabilities().URL
	}
	enc := json.NewEncoder(p.stdout)
	enc.SetEscapeHTML(false) // URLs have ampersands
	if err := enc.Encode(line); err != nil {
		return fmt.Errorf("write to stdout: %w", err)
	}
	return nil
}

// close stops accepting, lets requests end within the grace, makes everything
// durable and ships it, and closes what is open.
func (s *server) close() error {
	var errs []error
	if s.api != nil {
		ctx, cancel := context.WithTimeout(context.Background(), s.c.ShutdownGrace)
		if err := s.api.Shutdown(ctx); err != nil {
			s.log.Warn("requests were cut off at the end of the grace", "grace", s.c.ShutdownGrace, "error", err)
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

// listen opens a TCP listener; flag names where the address came from.
func listen(flag, addr string) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w; is another node running? Give another %s", addr, errors.Unwrap(err), flag)
	}
	return ln, nil
}

// sideServer is a listener beside the API.
type sideServer struct {
	ln   net.Listener
	http *http.Server
	done chan struct{}
}

func startSide(flag, addr string, routes http.Handler, failed chan<- error) (*sideServer, error) {
	ln, err := listen(flag, addr)
	if err != nil {
		return nil, err
	}
	s := &sideServer{ln: ln, done: make(chan struct{}), http: &http.Server{Handler: routes, ReadHeaderTimeout: 5 * time.Second}}
	go func() {
		defer close(s.done)
		if err := s.http.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("%s %s: %w", flag, addr, err)
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
