package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/tier/objstore/storeurl"
)

// surface is a place where a node meets a network or a store.
type surface struct {
	Name        string `json:"name"`
	Direction   string `json:"direction"` // "in" or "out"
	Address     string `json:"address"`
	Protocol    string `json:"protocol"`
	Credentials string `json:"credentials"`
	Setting     string `json:"setting"`
	Purpose     string `json:"purpose"`
}

// Names of surfaces.
const (
	surfaceAPI     = "api"
	surfaceRaft    = "raft"
	surfaceMetrics = "metrics"
	surfacePprof   = "pprof"
	surfaceArchive = "archive"
	surfaceAWS     = "aws credentials"
)

// surfacesOf is the table of everything that a node with this configuration
// listens on and connects to. `serve` opens its listeners out of it.
func surfacesOf(c *config, secured bool) []surface {
	who := "user and password, but for /healthz and /readyz"
	if !secured {
		who = "none: security is off"
	}
	web := "http"
	if c.TLSCertFile != "" {
		web = "https"
	}
	all := []surface{
		{surfaceAPI, "in", c.HTTPAddr, web, who, "http_addr", "the API, /healthz, /readyz, /metrics"},
		{surfaceRaft, "in", c.RaftAddr, "raft", "none: loopback only", "raft_addr", "metadata of the cluster"},
	}
	if c.MetricsAddr != "" {
		all = append(all, surface{surfaceMetrics, "in", c.MetricsAddr, "http", "none", "metrics_addr", "/metrics, /healthz, /readyz"})
	}
	if c.PprofAddr != "" {
		all = append(all, surface{surfacePprof, "in", c.PprofAddr, "http", "none", "pprof_addr", "profiles of the process"})
	}
	return append(all, archiveSurfaces(c.Archive)...)
}

// archiveSurfaces are what an archive is reached by.
func archiveSurfaces(archive string) []surface {
	u, err := storeurl.Parse(archive)
	switch {
	case err != nil: // there is none
		return nil
	case u.Scheme == "file":
		return []surface{{surfaceArchive, "out", u.Dir, "files", "the process's user", "archive", "the object store of the cluster"}}
	}
	to := surface{surfaceArchive, "out", u.Endpoint, "https", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or what the AWS environment has", "archive", "the object store of the cluster"}
	if e, err := url.Parse(u.Endpoint); err == nil && e.Host != "" {
		to.Address, to.Protocol = e.Host, e.Scheme
	} else if u.Endpoint == "" {
		region := u.Region
		if region == "" {
			region = "<region of the AWS environment>"
		}
		to.Address = u.Bucket + ".s3." + region + ".amazonaws.com:443"
	}
	return []surface{to, {
		surfaceAWS, "out", "169.254.169.254:80, sts and sso of the region", "http, https", "of the machine", "archive",
		"only without keys in the environment: where AWS keeps the role of a machine",
	}}
}

// listenOn opens the listener of a surface.
func listenOn(all []surface, name string) (net.Listener, error) {
	for _, f := range all {
		if f.Name != name || f.Direction != "in" {
			continue
		}
		ln, err := net.Listen("tcp", f.Address)
		if err != nil {
			flag := "--" + strings.ReplaceAll(f.Setting, "_", "-")
			return nil, fmt.Errorf("listen on %s: %w; is another node running? Give another %s", f.Address, errors.Unwrap(err), flag)
		}
		return ln, nil
	}
	return nil, fmt.Errorf("listener %s is not in the table of surfaces: this is a bug, please report it", name)
}

func newSurfaces(p *process) *cobra.Command {
	var o serveFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use: "surfaces", Short: "List every port and outbound endpoint of a configuration",
		Long: `List what a node with this configuration listens on and connects to: for firewalls,
and for whoever asks. It takes the flags, variables and file of serve, and opens
nothing.`,
		Example: `  tidemark surfaces --dev
  tidemark surfaces --config /etc/tidemark.yaml --json`,
		Args: args(),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	o.add(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		l, s, err := prepare(p, o)
		if err != nil {
			return err
		}
		all := surfacesOf(&l.config, s.passwordFrom != "")
		if asJSON {
			return p.printJSON(all)
		}
		t := newTable("SURFACE", "WAY", "ADDRESS", "PROTOCOL", "CREDENTIALS", "SETTING", "FOR")
		for _, f := range all {
			t.row(f.Name, f.Direction, f.Address, f.Protocol, f.Credentials, f.Setting, f.Purpose)
		}
		return t.print(p.stdout)
	}
	return cmd
}
