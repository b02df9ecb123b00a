package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
)

// configErrors is everything that is wrong with a configuration.
type configErrors struct{ errs []error }

// Error implements error.
func (e *configErrors) Error() string { return errors.Join(e.errs...).Error() }

func (e *configErrors) add(format string, args ...any) {
	e.errs = append(e.errs, fmt.Errorf(format, args...))
}

// layer is one source of settings: texts by key.
type layer map[string]any

// Read implements koanf.Provider.
func (l layer) Read() (map[string]any, error) { return l, nil }

// ReadBytes implements koanf.Provider.
func (l layer) ReadBytes() ([]byte, error) {
	return nil, errors.New("a layer has no bytes")
}

// loaded is a configuration with where each of its settings comes from.
type loaded struct {
	config
	file string            // "" = none
	text map[string]string // by key: what was given, or the default; missing where there is neither
	from map[string]string // by key: "default", "--flag", "VARIABLE" or "file:line"
}

// loadConfig lays defaults, file, environment and flags over one another, and
// reports everything that is wrong in any of them at once. What is right is in
// the result beside an error too, unless whole is false: then the file could not
// be read, and what is missing says nothing.
func loadConfig(p *process, flags *pflag.FlagSet, file string, wrong *configErrors) (l loaded, whole bool) {
	if file == "" {
		file = p.getenv("TIDEMARK_CONFIG")
	}
	k := koanf.New(".")
	l = loaded{file: file, from: map[string]string{}}
	put := func(values layer, from, name func(*setting) string) {
		check(values, wrong, name)
		load(k, values)
		for i := range settings {
			if s := &settings[i]; values[s.key()] != nil {
				l.from[s.key()] = from(s)
			}
		}
	}
	whole = true
	if file != "" {
		var f configFile
		f, whole = readConfigFile(file, wrong)
		from := func(s *setting) string { return fmt.Sprintf("%s:%d", file, f.lines[s.key()]) }
		put(f.values, from, func(s *setting) string { return from(s) + ": " + s.key() })
	}
	put(readVariables(p, wrong), (*setting).variable, (*setting).variable)
	put(readFlags(flags), (*setting).flag, (*setting).flag)
	final := koanf.New(".")
	lowest := defaults(k.String("dev"))
	load(final, lowest)
	// Every text was parsed once already, and merging maps cannot fail.
	_ = final.Merge(k)
	l.text = map[string]string{}
	for i := range settings {
		s := &settings[i]
		if !final.Exists(s.key()) {
			continue
		}
		l.text[s.key()] = final.String(s.key())
		if l.from[s.key()] == "" {
			l.from[s.key()] = "default"
		}
		if err := s.parse(&l.config, l.text[s.key()]); err != nil {
			wrong.add("--%s: %w", s.name, err)
		}
	}
	if whole {
		complete(&l.config, wrong)
	}
	return l, whole
}

// load puts a layer on top; a map of texts cannot fail to merge.
func load(k *koanf.Koanf, l layer) { _ = k.Load(l, nil) }

// defaults returns the lowest layer.
func defaults(dev string) layer {
	var c config
	_ = settingOf("dev").parse(&c, dev) // "" means no
	l := layer{}
	for _, s := range settings {
		switch {
		case c.Dev && s.dev != "":
			l[s.key()] = s.dev
		case s.def != "":
			l[s.key()] = s.def
		}
	}
	return l
}

// check parses every text of a layer and takes out what cannot be read; name
// says where a setting of it stands.
func check(l layer, wrong *configErrors, name func(*setting) string) {
	for i := range settings {
		s := &settings[i]
		v, ok := l[s.key()]
		if !ok {
			continue
		}
		if err := s.parse(new(config), v.(string)); err != nil {
			wrong.add("%s: %w", name(s), err)
			delete(l, s.key())
		}
	}
}

// complete makes paths absolute and checks what no single setting knows.
func complete(c *config, wrong *configErrors) {
	if (c.TLSCertFile == "") != (c.TLSKeyFile == "") {
		wrong.add("--tls-cert-file and --tls-key-file go together: one of them is missing")
	}
	if c.DataDir == "" {
		wrong.add("no data directory: set --data-dir (or TIDEMARK_DATA_DIR), or try it out with --dev")
		return
	}
	dir, err := filepath.Abs(c.DataDir)
	if err != nil {
		wrong.add("--data-dir: %w", err)
		return
	}
	c.DataDir = dir
	if strings.HasPrefix(c.Archive, "file://") {
		archive := filepath.Clean(strings.TrimPrefix(c.Archive, "file://"))
		if inside(archive, dir) || inside(dir, archive) {
			wrong.add("--archive %s and --data-dir %s lie in one another: the archive must survive the data directory", c.Archive, dir)
		}
	}
}

// inside says whether path is dir or below it.
func inside(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}

// archiveURL makes the directory of a file:// URL absolute, so that
// file://./dir means what it says.
func archiveURL(raw string) (string, error) {
	rest, ok := strings.CutPrefix(raw, "file://")
	if !ok || !strings.HasPrefix(rest, "./") && !strings.HasPrefix(rest, "../") && rest != "." {
		return raw, nil
	}
	dir, err := filepath.Abs(rest)
	if err != nil {
		return "", err
	}
	return "file://" + dir, nil
}

func readFlags(flags *pflag.FlagSet) layer {
	l := layer{}
	flags.Visit(func(f *pflag.Flag) {
		if s := settingOf(f.Name); s != nil {
			l[s.key()] = f.Value.String()
		}
	})
	return l
}

// foreign are variables with our prefix that mean something to other commands,
// to the build, or nothing.
var foreign = []string{
	"TIDEMARK_CONFIG", "TIDEMARK_ADMIN_PASSWORD",
	"TIDEMARK_SERVER", "TIDEMARK_USER", "TIDEMARK_PASSWORD", "TIDEMARK_PASSWORD_FILE", "TIDEMARK_CA_FILE", "TIDEMARK_CONTEXT",
	"TIDEMARK_TOOLS", "TIDEMARK_ARGS",
}

// serviceLink matches what Kubernetes puts into every container of a namespace
// that has a service called tidemark or tidemark-something.
var serviceLink = regexp.MustCompile(`^TIDEMARK_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// readVariables reads TIDEMARK_*. An empty variable is one that is not set. A
// variable that nobody knows is an error, for it is most likely misspelled.
func readVariables(p *process, wrong *configErrors) layer {
	known := map[string]string{}
	for i := range settings {
		known[settings[i].variable()] = settings[i].key()
	}
	provider := env.Provider("", env.Opt{
		Prefix:      "TIDEMARK_",
		EnvironFunc: func() []string { return p.env },
		TransformFunc: func(name, value string) (string, any) {
			key, ok := known[name]
			switch {
			case value == "":
				return "", nil
			case ok:
				return key, value
			case !slices.Contains(foreign, name) && !serviceLink.MatchString(name):
				wrong.add("%s: no such setting; see `tidemark serve --help`%s", name, resembling(name, known))
			}
			return "", nil
		},
	})
	values, err := provider.Read()
	if err != nil {
		wrong.add("environment: %w", err)
	}
	return values
}

// resembling suggests the known name that begins like an unknown one.
func resembling[V any](name string, known map[string]V) string {
	best, longest := "", 0
	for k := range known {
		n := 0
		for n < len(k) && n < len(name) && k[n] == name[n] {
			n++
		}
		if n > longest || n == longest && k < best {
			best, longest = k, n
		}
	}
	if longest*2 < len(name)+1 {
		return ""
	}
	return fmt.Sprintf(" (%s?)", best)
}
