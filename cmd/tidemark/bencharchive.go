package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// selfArchive is the archive of a node that a benchmark starts. A nil one is none.
type selfArchive struct {
	base  string // URL below which it is made; "": a directory beside the node's data
	now   string // URL in use; "" before the first
	store objstore.Store
	local bool // it is in the benchmark's directory, which goes as a whole
	keep  bool
	log   *slog.Logger
}

const removeTime = time.Minute // to remove a run's objects from a store

// url is what the node is given.
func (a *selfArchive) url() string {
	if a == nil {
		return "none"
	}
	return a.now
}

// open returns the archive itself, nil without one.
func (a *selfArchive) open() objstore.Store {
	if a == nil {
		return nil
	}
	return a.store
}

// renew makes a new archive, with a name that nobody has, and removes the last one.
func (a *selfArchive) renew(ctx context.Context, dir string) error {
	if a == nil {
		return nil
	}
	if err := a.remove(); err != nil {
		return err
	}
	var mark [6]byte
	_, _ = rand.Read(mark[:]) // never fails
	name := fmt.Sprintf("bench-%x", mark)
	a.local = a.base == ""
	a.now = "file://" + filepath.Join(dir, name)
	if !a.local {
		base, err := archiveURL(a.base)
		if err != nil {
			return usagef("--archive: %w", err)
		}
		u, err := url.Parse(base)
		if err != nil {
			return usagef("--archive: %w", err)
		}
		u.Path = strings.TrimSuffix(u.Path, "/") + "/" + name
		a.now = u.String()
	}
	store, err := openStore(ctx, a.now, a.log, nil)
	if err != nil {
		return err
	}
	a.store = objstore.For(store, objstore.CauseRead)
	return nil
}

// remove removes the archive in use: every object of it was made by this benchmark.
func (a *selfArchive) remove() (err error) {
	if a == nil || a.store == nil {
		return nil
	}
	if !a.local && !a.keep {
		ctx, cancel := context.WithTimeout(context.Background(), removeTime)
		defer cancel()
		if err = a.empty(ctx); err != nil {
			err = fmt.Errorf("remove the benchmark's objects at %s: %w", a.now, err)
		}
	}
	err = errors.Join(err, a.store.Close())
	a.store = nil
	return err
}

// empty deletes all objects.
func (a *selfArchive) empty(ctx context.Context) error {
	for {
		page, err := a.store.List(ctx, "", "", 0)
		if err != nil || len(page.Objects) == 0 {
			return err
		}
		keys := make([]string, len(page.Objects))
		for i, o := range page.Objects {
			keys[i] = o.Key
		}
		if err := a.store.Delete(ctx, keys); err != nil {
			return err
		}
	}
}
