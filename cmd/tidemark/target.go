package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// target is the node that a command goes to, and as whom.
type target struct {
	server, user, password, caFile string
}

// resolve finds the target, once: flags, then variables, then the context, each
// for what the ones before did not say. What a context knows goes to its own
// server, and its password goes with its own user: a flag that names another one
// is not answered with somebody else's secret.
func (c *connection) resolve() (target, error) {
	if !c.resolved {
		c.resolved = true
		c.to, c.toErr = c.findTarget()
	}
	return c.to, c.toErr
}

func (c *connection) findTarget() (target, error) {
	t := target{server: c.server, user: cmp.Or(c.user, c.p.getenv("TIDEMARK_USER")), caFile: cmp.Or(c.caFile, c.p.getenv("TIDEMARK_CA_FILE"))}
	var from savedContext
	var err error
	name := c.context
	switch {
	case t.server != "" && name != "":
		return t, usageError{errTwoPlaces}
	case t.server == "" && name == "":
		t.server, name = c.p.getenv("TIDEMARK_SERVER"), c.p.getenv("TIDEMARK_CONTEXT")
		if t.server != "" && name != "" {
			return t, usagef("TIDEMARK_CONTEXT and TIDEMARK_SERVER name a node each: set one of them")
		}
	}
	if t.server == "" {
		if from, err = c.p.chosenContext(name); err != nil {
			return t, err
		}
		t.server = cmp.Or(from.Server, defaultServer)
	}
	t.caFile = cmp.Or(t.caFile, from.CAFile)
	if t.password, err = c.givenPassword(); err != nil {
		return t, err
	}
	if t.password == "" && (t.user == "" || t.user == cmp.Or(from.User, adminUser)) {
		t.user = cmp.Or(t.user, from.User)
		if t.password = from.Password; t.password == "" && from.PasswordFile != "" {
			if t.password, err = c.p.secret(from.PasswordFile, "", ""); err != nil {
				return t, err
			}
		}
	}
	if t.user = cmp.Or(t.user, from.User); t.user == "" && t.password != "" {
		t.user = adminUser
	}
	return t, nil
}

// chosenContext returns a context by its name, or the current one, which may be
// none.
func (p *process) chosenContext(name string) (savedContext, error) {
	all, err := p.readContexts()
	if err != nil {
		return savedContext{}, err
	}
	s, ok := all.Contexts[cmp.Or(name, all.Current)]
	if !ok && name != "" {
		return s, p.noContext(name)
	}
	return s, nil
}

// givenPassword is what flags and variables say; "" when they do not.
func (c *connection) givenPassword() (string, error) {
	if c.passwordFile == "-" {
		return c.p.askPassword()
	}
	return c.p.secret(c.passwordFile, "TIDEMARK_PASSWORD_FILE", "TIDEMARK_PASSWORD")
}

// askPassword asks on the terminal, without showing what is typed, or takes the
// first line of another stdin and leaves the rest for the command.
func (p *process) askPassword() (string, error) {
	f, ok := p.stdin.(*os.File)
	if !ok || !isTerminal(f) {
		return p.passwordLine()
	}
	before, err := term.GetState(int(f.Fd()))
	if err != nil {
		return "", fmt.Errorf("ask for the password: %w", err)
	}
	// An interrupt while nothing is shown must not leave the terminal so.
	show := func() { _ = term.Restore(int(f.Fd()), before) } // there is nothing else to try
	p.asking.Store(&show)
	defer p.asking.Store(nil)
	fmt.Fprint(p.stderr, "password: ")
	b, err := term.ReadPassword(int(f.Fd()))
	fmt.Fprintln(p.stderr)
	if err != nil {
		return "", fmt.Errorf("ask for the password: %w", err)
	}
	if len(b) == 0 {
		return "", usagef("the password is empty")
	}
	return string(b), nil
}

// passwordLine reads byte by byte, so that it takes nothing of what follows.
func (p *process) passwordLine() (string, error) {
	var line []byte
	for b := make([]byte, 1); len(line) <= maxPasswordFile; {
		n, err := p.stdin.Read(b)
		if n == 1 && b[0] != '\n' {
			line = append(line, b[0])
			continue
		}
		if n == 0 && err == nil {
			continue
		}
		if n == 0 && !errors.Is(err, io.EOF) {
			return "", fmt.Errorf("read the password from stdin: %w", err)
		}
		text := strings.TrimSuffix(string(line), "\r")
		if text == "" {
			return "", usagef("the first line of stdin is empty; it should be the password")
		}
		return text, nil
	}
	return "", usagef("the first line of stdin is longer than %d bytes; it should be the password", maxPasswordFile)
}
