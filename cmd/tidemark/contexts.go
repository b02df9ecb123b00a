package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

const (
	contextsFormat  = 1
	maxContextsFile = 1 << 20
	maxContexts     = 1000
)

// contexts are the nodes that a user goes to, by name.
type contexts struct {
	Version  int                     `json:"version"`
	Current  string                  `json:"current,omitempty"`
	Contexts map[string]savedContext `json:"contexts"`
}

// savedContext is one node and who a user is there.
type savedContext struct {
	Server       string `json:"server"`
	User         string `json:"user,omitempty"`
	Password     string `json:"password,omitempty"`
	PasswordFile string `json:"password_file,omitempty"`
	CAFile       string `json:"ca_file,omitempty"`
}

// contextsPath is where the contexts of a user stand; "" without a home.
func (p *process) contextsPath() string {
	dir := p.getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) { // so says the specification
		home := p.getenv("HOME")
		if home == "" {
			return ""
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "tidemark", "contexts.json")
}

// readContexts reads the contexts of the user; none is no error.
func (p *process) readContexts() (contexts, error) {
	none := contexts{Version: contextsFormat, Contexts: map[string]savedContext{}}
	path := p.contextsPath()
	if path == "" {
		return none, nil
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil
	}
	if err != nil {
		return none, usagef("contexts: %w", err)
	}
	defer f.Close()
	b, err := readAtMost(f, path, maxContextsFile)
	if err != nil {
		return none, usagef("contexts: %w", err)
	}
	c, line, err := parseContexts(b)
	if err != nil {
		return none, usagef("contexts file %s:%d: %w; mend it, or move it away and add the contexts again", path, line, err)
	}
	if info, err := f.Stat(); err == nil && info.Mode().Perm()&0o077 != 0 && c.holdsPassword() {
		p.say("warning: %s holds passwords and others may read it; take that right away (chmod 600)", path)
	}
	return c, nil
}

func parseContexts(b []byte) (c contexts, line int, err error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields() // a newer build's would be lost at the next change
	err = dec.Decode(&c)
	line = 1 + bytes.Count(b[:min(int(dec.InputOffset()), len(b))], []byte("\n"))
	if err == nil {
		if _, more := dec.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("more follows the object")
		}
	}
	var at *json.SyntaxError
	if errors.As(err, &at) {
		line = 1 + bytes.Count(b[:min(int(at.Offset), len(b))], []byte("\n"))
	}
	switch {
	case err != nil:
		return c, line, err
	case c.Version != contextsFormat:
		return c, line, fmt.Errorf("it has version %d, this build knows %d", c.Version, contextsFormat)
	case len(c.Contexts) > maxContexts:
		return c, line, fmt.Errorf("it has %d contexts; at most %d", len(c.Contexts), maxContexts)
	}
	if c.Contexts == nil {
		c.Contexts = map[string]savedContext{}
	}
	for name, s := range c.Contexts {
		if err := errors.Join(broker.ValidateName("context", name), checkServer(s.Server)); err != nil {
			return c, line, err
		}
	}
	if _, ok := c.Contexts[c.Current]; c.Current != "" && !ok {
		return c, line, fmt.Errorf("the current context %q is not in it", c.Current)
	}
	return c, line, nil
}

func (c *contexts) holdsPassword() bool {
	for _, s := range c.Contexts {
		if s.Password != "" {
			return true
		}
	}
	return false
}

// changeContexts changes the contexts of the user, one process at a time. The
// file is there in its old or in its new form, whatever happens.
func (p *process) changeContexts(change func(*contexts) error) error {
	path := p.contextsPath()
	if path == "" {
		return usagef("contexts: neither XDG_CONFIG_HOME nor HOME is set, so there is no place for them")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("contexts: %w", err)
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("contexts: %w", err)
	}
	defer lock.Close() // which unlocks it
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	c, err := p.readContexts()
	if err != nil {
		return err
	}
	if err := change(&c); err != nil {
		return err
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // whoever links it elsewhere keeps the link
	}
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("contexts: %w", err)
	}
	return replaceFile(path, append(b, '\n'))
}

// replaceFile puts b in the place of a file, readable by its owner alone.
func replaceFile(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".contexts-*") // 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // best effort: the error is what counts
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
