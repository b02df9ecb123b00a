package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// commit is set at build time with -X main.commit where the build does not see
// the repository.
var commit = ""

// built says what this program was made of.
type built struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"` // "" = not known
	Time     string `json:"commit_time,omitempty"`
	Modified bool   `json:"modified"` // there were changes beside the commit
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func buildOf() built {
	b := built{Version: version, Commit: commit, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok || b.Commit != "" {
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

func newVersion(p *process) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version of this program",
		Example: "  tidemark version --json",
		Args:    args(),
		RunE: func(*cobra.Command, []string) error {
			b := buildOf()
			if asJSON {
				return p.printJSON(b)
			}
			from := ""
			if b.Commit != "" {
				from = ", commit " + b.Commit[:min(12, len(b.Commit))]
			}
			if b.Modified {
				from += " with changes"
			}
			_, err := fmt.Fprintf(p.stdout, "tidemark %s (%s, %s%s)\n", b.Version, b.Go, b.Platform, from)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
