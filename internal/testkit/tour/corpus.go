package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

const (
	wantText   = 60 << 20 // bytes of text that make a tour worth its name
	maxText    = 400 << 20
	listsDir   = "/var/lib/apt/lists"
	helper     = "/usr/lib/apt/apt-helper"
	updateMax  = 2 * time.Minute
	partitions = 6
)

// record is one stanza.
type record struct {
	key   []byte // name of the package
	value []byte // the stanza as a JSON object, on one line
}

// corpus is what goes in, in its order, by the partition that the key belongs to.
type corpus struct {
	parts   [partitions][]record
	records int
	bytes   int64 // keys and values
	sums    [partitions]digest
	notes   []string // where the text comes from
}

// loadCorpus reads the package lists of this machine. When they are too small,
// it fetches them once more, with the descriptions, into a directory of its own
// among the tools; when that does not work either it takes what there is and
// says so.
func loadCorpus(ctx context.Context) (*corpus, error) {
	c := &corpus{}
	text, files, err := readLists(ctx, listsDir)
	if err != nil {
		return nil, err
	}
	if len(text) < wantText {
		text, files, err = c.fetch(ctx, text, files)
		if err != nil {
			return nil, err
		}
	}
	source := "Debian package lists"
	if len(text) == 0 {
		if text, files, err = sources(ctx); err != nil {
			return nil, err
		}
		source = "Go source text, NOT package lists"
	}
	for _, stanza := range bytes.Split(text, []byte("\n\n")) {
		if r, ok := parse(stanza); ok {
			c.add(r)
		}
	}
	if c.records == 0 {
		return nil, fmt.Errorf("no record in %d bytes of text", len(text))
	}
	c.notes = append(c.notes, fmt.Sprintf("text: %.1f MB of %s in %d files, %d records, %.1f MB of keys and JSON values",
		mb(int64(len(text))), source, files, c.records, mb(c.bytes)))
	return c, nil
}

func (c *corpus) add(r record) {
	at := broker.PartitionForKey(r.key, partitions)
	c.parts[at] = append(c.parts[at], r)
	c.sums[at].add(r.key, r.value)
	c.records++
	c.bytes += int64(len(r.key) + len(r.value))
}

// fetch returns the larger of what is there and what apt-get brings.
func (c *corpus) fetch(ctx context.Context, have []byte, files int) ([]byte, int, error) {
	dir, err := cacheDir()
	if err != nil {
		return nil, 0, err
	}
	text, n, err := readLists(ctx, dir)
	if err == nil && len(text) < wantText {
		if err = update(ctx, dir); err == nil {
			text, n, err = readLists(ctx, dir)
		}
	}
	if err != nil {
		c.notes = append(c.notes, fmt.Sprintf("WARNING: apt-get update brought no package lists: %v", err))
	}
	if ctx.Err() != nil {
		return nil, 0, ctx.Err()
	}
	if len(text) < len(have) {
		text, n = have, files
	}
	if len(text) < wantText {
		c.notes = append(c.notes, fmt.Sprintf("WARNING: only %.1f MB of text are there, the tour should have %.0f MB", mb(int64(len(text))), mb(wantText)))
	}
	return text, n, nil
}

// cacheDir is where fetched lists stay for the next tour.
func cacheDir() (string, error) {
	base := os.Getenv("TIDEMARK_TOOLS")
	if base == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		base = filepath.Join(cache, "tidemark-tools")
	}
	return filepath.Join(base, "apt-lists"), nil
}

// update fetches lists and descriptions and leaves those of the machine alone.
func update(ctx context.Context, dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, "partial"), 0o755); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, updateMax)
	defer cancel()
	cmd := exec.CommandContext(ctx, "apt-get", "-q", "update", "-o", "Dir::State::Lists="+dir, "-o", "Acquire::Languages=en")
	cmd.WaitDelay = 5 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out[max(0, len(out)-400):]))
	}
	return nil
}

// readLists returns the text of all lists of packages and descriptions in dir,
// which may be compressed. A directory that is not there holds none.
func readLists(ctx context.Context, dir string) ([]byte, int, error) {
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	var text bytes.Buffer
	files := 0
	for _, e := range entries {
		if !e.Type().IsRegular() || !strings.Contains(e.Name(), "_Packages") && !strings.Contains(e.Name(), "_Translation-") {
			continue
		}
		cmd := exec.CommandContext(ctx, helper, "cat-file", filepath.Join(dir, e.Name()))
		out, err := cmd.Output()
		if err != nil {
			return nil, 0, fmt.Errorf("read %s: %w", e.Name(), err)
		}
		if text.Len()+len(out) > maxText {
			break // enough for every purpose
		}
		text.Write(bytes.TrimRight(out, "\n"))
		text.WriteString("\n\n")
		files++
	}
	return text.Bytes(), files, nil
}

// sources is the text of last resort: the Go tree's own, in paragraphs.
func sources(ctx context.Context) ([]byte, int, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, 0, fmt.Errorf("find Go's sources: %w", err)
	}
	var text bytes.Buffer
	files := 0
	err = filepath.WalkDir(filepath.Join(strings.TrimSpace(string(out)), "src"), func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || filepath.Ext(path) != ".go" || text.Len() > wantText {
			return err
		}
		data, err := os.ReadFile(path)
		text.WriteString("Package: " + filepath.Base(filepath.Dir(path)) + "\nFile: " + filepath.Base(path) + "\nText: ")
		text.Write(bytes.ReplaceAll(bytes.ToValidUTF8(data, []byte("?")), []byte("\n"), []byte("\n ")))
		text.WriteString("\n\n")
		files++
		return err
	})
	return text.Bytes(), files, err
}
