package main

import (
	_ "embed" // the page of `config docs`
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func newConfig(p *process) *cobra.Command {
	return family("config", "Check, print and document the configuration of a node", "  tidemark config check --config /etc/tidemark.yaml",
		newConfigCheck(p), newConfigPrint(p), newConfigDocs(p))
}

func newConfigCheck(p *process) *cobra.Command {
	var o serveFlags
	cmd := &cobra.Command{
		Use: "check", Short: "Say whether a node would start with a configuration",
		Long: `Read a configuration as serve does, with the password and the certificate that it
points to, and say everything that is wrong with it. Nothing is opened or changed.
Exit code 2: something is wrong.`,
		Example: `  tidemark config check --config /etc/tidemark.yaml
  tidemark config check --config new.toml --log-level debug`,
		Args: args(),
		RunE: func(*cobra.Command, []string) error {
			l, s, err := prepare(p, o)
			if err != nil {
				return err
			}
			for _, path := range s.exposed {
				p.say("warning: every user of this machine may read %s, which holds a secret", path)
			}
			where := "flags and variables"
			if l.file != "" {
				where = l.file
			}
			_, err = fmt.Fprintf(p.stdout, "%s: ok\n", where)
			return err
		},
	}
	o.add(cmd)
	return cmd
}

// effective is one setting as `config print` shows it.
type effective struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	From   string `json:"from"`
	Reload bool   `json:"reload"`
}

func newConfigPrint(p *process) *cobra.Command {
	var o serveFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use: "print", Short: "Print every setting with its value and where it comes from",
		Long: `Print every setting with the value that a node would run with, and where it comes
from: a flag, a variable, a line of the file, or the default. The secrets themselves
are never printed.`,
		Example: `  tidemark config print --config /etc/tidemark.yaml
  tidemark config print --dev --json`,
		Args: args(),
		RunE: func(*cobra.Command, []string) error {
			l, s, err := prepare(p, o)
			if err != nil {
				return err
			}
			var all []effective
			for i := range settings {
				f := &settings[i]
				all = append(all, effective{f.key(), l.text[f.key()], l.from[f.key()], f.reload})
			}
			secret := effective{Key: "the admin password", Value: "none: security is off", Reload: true}
			if s.passwordFrom != "" {
				secret.Value, secret.From = "set, not shown", s.passwordFrom
			}
			all = append(all, secret)
			if asJSON {
				return p.printJSON(all)
			}
			t := newTable("SETTING", "VALUE", "FROM")
			for _, e := range all {
				t.row(e.Key, orNone(e.Value), orNone(e.From))
			}
			return t.print(p.stdout)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	o.add(cmd)
	return cmd
}

func newConfigDocs(p *process) *cobra.Command {
	return &cobra.Command{
		Use: "docs", Short: "Print the documentation of every setting as Markdown", Example: "  tidemark config docs > configuration.md",
		Args: args(),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprint(p.stdout, configPage())
			return err
		},
	}
}

//go:embed configpage.txt
var pageText string

// configPage is docs/configuration.md: the text, with the tables in their places.
func configPage() string {
	var table strings.Builder
	table.WriteString("| flag, key of the file, variable | form | default | changes by | what it is |\n|---|---|---|---|---|\n")
	for i := range settings {
		s := &settings[i]
		def := orNone(s.def)
		if s.dev != "" {
			def += "; with `--dev` " + s.dev
		}
		change := "restart"
		if s.reload {
			change = "SIGHUP"
		}
		kind, usage := strings.ReplaceAll(s.kind, "|", ", "), strings.ReplaceAll(s.usage, "|", ", ")
		fmt.Fprintf(&table, "| `%s` `%s` `%s` | %s | %s | %s | %s |\n", s.flag(), s.key(), s.variable(), kind, def, change, usage)
	}
	return strings.Replace(pageText, "{{settings}}\n", table.String(), 1)
}
