package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tidemark-mq/tidemark/internal/reload"
)

// reloading returns what SIGHUP does: the file, the password and the certificate
// are read again, beside the flags and variables of the start. It is taken over
// whole, or refused whole.
func (s *server) reloading(p *process, o serveFlags, now loaded) reload.Func {
	secret := s.secret
	return func() ([]string, error) {
		next, nextSecret, err := prepare(p, o)
		if err != nil {
			return nil, errors.New(oneLine(err.Error()))
		}
		changes, refused := changesOf(&now, &next)
		refused = append(refused, loosened(&now.config, &next.config, secret, nextSecret)...)
		if len(refused) > 0 {
			return nil, errors.New(strings.Join(refused, "; "))
		}
		if secret.password != nextSecret.password {
			changes = append(changes, "the admin password")
		}
		if secret.pair != nil && !secret.pair.Equal(nextSecret.pair) {
			changes = append(changes, "the certificate, now "+nextSecret.pair.Subject()+" until "+nextSecret.pair.NotAfter().UTC().Format(time.RFC3339))
		}
		s.take(&next.config, nextSecret)
		now, secret = next, nextSecret
		return changes, nil
	}
}

// take puts a configuration in place that has been checked.
func (s *server) take(c *config, secret secrets) {
	if secret.password != "" {
		s.gate.use(secret.password)
	}
	if s.certs != nil {
		s.certs.Use(secret.pair, c.TLSMinVersion)
		s.warnExpiry(secret.pair)
	}
	s.grace.Store(int64(c.ShutdownGrace))
	s.form.use(c)
}

// changesOf compares two configurations, setting by setting, and says which
// changes need a restart.
func changesOf(now, next *loaded) (changes, refused []string) {
	for i := range settings {
		f := &settings[i]
		was, is := now.text[f.key()], next.text[f.key()]
		if same(f, was, is) {
			continue
		}
		change := fmt.Sprintf("%s from %s to %s", f.key(), orNone(was), orNone(is))
		if f.reload {
			changes = append(changes, change)
		} else {
			refused = append(refused, change+" needs a restart")
		}
	}
	return changes, refused
}

// same says whether two texts are one value: 64MiB is 67108864.
func same(s *setting, a, b string) bool {
	var one, other config
	return s.parse(&one, a) == nil && s.parse(&other, b) == nil && one == other || a == b
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

// loosened says what would be less secure than it is, or cannot change while the
// listener is open.
func loosened(now, next *config, secret, nextSecret secrets) (refused []string) {
	if secret.password != "" && nextSecret.password == "" {
		refused = append(refused, "without an admin password everybody could do everything; that needs a restart")
	}
	switch {
	case secret.password == "" && nextSecret.password != "":
		refused = append(refused, "an admin password where there was none needs a restart")
	case (secret.pair == nil) != (nextSecret.pair == nil):
		refused = append(refused, "TLS is turned on and off by a restart alone")
	case secret.pair != nil && next.TLSMinVersion < now.TLSMinVersion:
		refused = append(refused, "an older tls_min_version would loosen security; that needs a restart")
	}
	for _, path := range nextSecret.exposed {
		if !slices.Contains(secret.exposed, path) {
			refused = append(refused, fmt.Sprintf("every user of this machine may read %s, which holds a secret: take the right from it (chmod o-r)", path))
		}
	}
	return refused
}
