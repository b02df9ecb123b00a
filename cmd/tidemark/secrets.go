package main

import (
	"os"
	"time"

	"github.com/tidemark-mq/tidemark/internal/certs"
)

// secrets are what a configuration points to and never shows.
type secrets struct {
	password     string // "" = no security
	passwordFrom string // where it stands; "" = there is none
	pair         *certs.Pair
	exposed      []string // files with a secret that everybody on this machine may read
}

// readSecrets reads what a configuration points to, and puts everything that is
// wrong with it into wrong.
func readSecrets(p *process, c *config, wrong *configErrors) (s secrets) {
	var err error
	s.password, err = p.secret(c.AdminPasswordFile, "", "TIDEMARK_ADMIN_PASSWORD")
	switch {
	case err != nil:
		wrong.errs = append(wrong.errs, err)
	case c.AdminPasswordFile != "":
		s.passwordFrom = c.AdminPasswordFile
		s.look(c.AdminPasswordFile)
	case s.password != "":
		s.passwordFrom = "TIDEMARK_ADMIN_PASSWORD"
	case !c.Dev:
		wrong.add("no admin password: put it into TIDEMARK_ADMIN_PASSWORD or a file named by --admin-password-file, or try the broker out with --dev")
	}
	if c.TLSCertFile != "" && c.TLSKeyFile != "" {
		if s.pair, err = certs.Load(c.TLSCertFile, c.TLSKeyFile, time.Now()); err != nil {
			wrong.errs = append(wrong.errs, err)
		}
		s.look(c.TLSKeyFile)
	}
	return s
}

// look remembers a file that other users may read. Its group is taken for
// meant: that is how containers get their secrets.
func (s *secrets) look(path string) {
	if openToAll(path) {
		s.exposed = append(s.exposed, path)
	}
}

// openToAll says whether every user of the machine may read a file.
func openToAll(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().Perm()&0o004 != 0
}

// prepare loads the configuration of a node with all that it points to. The
// error is everything that is wrong with either.
func prepare(p *process, o serveFlags) (loaded, secrets, error) {
	var wrong configErrors
	var s secrets
	l, whole := loadConfig(p, o.set, o.file, &wrong)
	if whole {
		s = readSecrets(p, &l.config, &wrong)
	}
	if len(wrong.errs) > 0 {
		return l, s, &wrong
	}
	return l, s, nil
}
