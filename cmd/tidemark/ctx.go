package main

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

func newCtx(p *process) *cobra.Command {
	cmd := family("ctx", "Remember nodes and who you are there", "  tidemark ctx ls",
		newCtxAdd(p), newCtxLs(p), newCtxUse(p), newCtxRm(p))
	cmd.Long = `Remember nodes and who you are there. Commands that talk to a node go to the current
context when neither --server nor TIDEMARK_SERVER says where; --context takes another
one. What a context knows, user and password above all, goes to its own server alone.

Contexts stand in ~/.config/tidemark/contexts.json, which only its owner may read.`
	return cmd
}

func newCtxAdd(p *process) *cobra.Command {
	var s savedContext
	var use, replace bool
	cmd := &cobra.Command{
		Use: "add NAME --server URL", Short: "Add a context",
		Long: `Add a context. The first one becomes the current one. A password is never an
argument: name a file that holds it, which is read at each use, or say
--password-file - to be asked (or to give it on stdin) and have it kept with the
context.`,
		Example: `  tidemark ctx add local --server http://127.0.0.1:7942
  tidemark ctx add prod --server https://mq.example.com:7942 --ca-file ca.pem --password-file - --use`,
		Args: args("NAME"),
	}
	f := cmd.Flags()
	f.StringVarP(&s.Server, "server", "s", "", "node to talk to")
	f.StringVar(&s.User, "user", "", "user to authenticate as (default admin, with a password)")
	f.StringVar(&s.PasswordFile, "password-file", "", "file that holds the password; - asks for it")
	f.StringVar(&s.CAFile, "ca-file", "", "certificates in PEM that an https server is trusted by, instead of the system's")
	f.BoolVar(&use, "use", false, "make it the current context")
	f.BoolVar(&replace, "replace", false, "take the place of one with this name")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		name := args[0]
		if err := broker.ValidateName("context", name); err != nil {
			return usageError{err}
		}
		if s.Server == "" {
			return usagef("ctx add: --server is missing")
		}
		if err := checkServer(s.Server); err != nil {
			return err
		}
		var err error
		if s.PasswordFile == "-" {
			s.PasswordFile = ""
			if s.Password, err = p.askPassword(); err != nil {
				return err
			}
		}
		for _, path := range []*string{&s.PasswordFile, &s.CAFile} {
			if *path == "" {
				continue
			}
			if *path, err = filepath.Abs(*path); err != nil {
				return fmt.Errorf("path of a context: %w", err)
			}
		}
		current := false
		err = p.changeContexts(func(c *contexts) error {
			if _, taken := c.Contexts[name]; taken && !replace {
				return fmt.Errorf("there is a context %q already: say --replace to overwrite it", name)
			}
			if len(c.Contexts) >= maxContexts {
				return fmt.Errorf("there are %d contexts, which is the most: remove one", maxContexts)
			}
			c.Contexts[name] = s
			if use || c.Current == "" {
				c.Current = name
			}
			current = c.Current == name
			return nil
		})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(p.stdout, "added context %s%s\n", name, map[bool]string{true: ", which is the current one"}[current])
		return err
	}
	return cmd
}

// listedContext is a context without its secret.
type listedContext struct {
	Name     string `json:"name"`
	Current  bool   `json:"current"`
	Server   string `json:"server"`
	User     string `json:"user"`
	Password string `json:"password"` // where it is
	CAFile   string `json:"ca_file"`
}

func newCtxLs(p *process) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "ls", Short: "List contexts", Example: "  tidemark ctx ls --json",
		Args: args(),
		RunE: func(*cobra.Command, []string) error {
			c, err := p.readContexts()
			if err != nil {
				return err
			}
			all := []listedContext{}
			for _, name := range slices.Sorted(maps.Keys(c.Contexts)) {
				s := c.Contexts[name]
				l := listedContext{Name: name, Current: name == c.Current, Server: s.Server, User: s.User, Password: s.PasswordFile, CAFile: s.CAFile}
				if s.Password != "" {
					l.Password = "kept with the context"
				}
				all = append(all, l)
			}
			if asJSON {
				return p.printJSON(all)
			}
			t := newTable("", "CONTEXT", "SERVER", "USER", "PASSWORD", "CA FILE")
			for _, l := range all {
				t.row(map[bool]string{true: "*"}[l.Current], l.Name, l.Server, l.User, l.Password, l.CAFile)
			}
			return t.print(p.stdout)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newCtxUse(p *process) *cobra.Command {
	return &cobra.Command{
		Use: "use NAME", Short: "Make a context the current one", Example: "  tidemark ctx use prod",
		Args: args("NAME"), ValidArgsFunction: p.completeContext,
		RunE: func(_ *cobra.Command, args []string) error {
			err := p.changeContexts(func(c *contexts) error {
				if _, ok := c.Contexts[args[0]]; !ok {
					return p.noContext(args[0])
				}
				c.Current = args[0]
				return nil
			})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(p.stdout, "context %s is the current one\n", args[0])
			return err
		},
	}
}

func newCtxRm(p *process) *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME", Short: "Remove a context", Example: "  tidemark ctx rm local",
		Args: args("NAME"), ValidArgsFunction: p.completeContext,
		RunE: func(_ *cobra.Command, args []string) error {
			text := ""
			err := p.changeContexts(func(c *contexts) error {
				if _, ok := c.Contexts[args[0]]; !ok {
					return p.noContext(args[0])
				}
				delete(c.Contexts, args[0])
				if c.Current == args[0] {
					c.Current, text = "", "; there is no current one now"
				}
				return nil
			})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(p.stdout, "removed context %s%s\n", args[0], text)
			return err
		},
	}
}

func (p *process) noContext(name string) error {
	return usagef("there is no context %q; see `tidemark ctx ls`", name)
}

// completeContext names the contexts to a shell.
func (p *process) completeContext(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	c, err := p.readContexts()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return slices.Sorted(maps.Keys(c.Contexts)), cobra.ShellCompDirectiveNoFileComp
}

// errTwoPlaces: --context and --server name a node each.
var errTwoPlaces = errors.New("--context and --server name a node each: give one of them")
