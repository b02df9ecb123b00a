// Command mutants breaks one rule of the code at a time and sees a test fail:
//
//	mutants [-only REGEXP] [-histories N] [-list]
//
// A mutation is a file with a few lines replaced, given to the go command as
// an overlay: the work tree is not touched and the build cache does its work.
// It prints a table and exits 1 if a mutation survived, or does not build.
// The table is in mutations.go; docs/testing.md tells how to add to it.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

func main() {
	only := flag.String("only", "", "run the mutations whose rule or name match this `regexp`")
	histories := flag.Int("histories", 12_000, "histories of all models together, of which the killing one makes its share")
	list := flag.Bool("list", false, "list the mutations and run nothing")
	flag.Parse()
	if err := run(*only, *histories, *list); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(only string, histories int, list bool) error {
	pattern, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	root := strings.TrimSpace(string(out))
	work, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	survived, tried := 0, 0
	for _, m := range mutations {
		if !pattern.MatchString(m.Rule + " " + m.Name) {
			continue
		}
		if list {
			fmt.Printf("%-8s %-62s %s %s\n", m.Rule, m.Name, m.Package, m.Test)
			continue
		}
		tried++
		start := time.Now()
		verdict, err := m.try(root, work, histories)
		if err != nil {
			survived++
			verdict = "NOT KILLED: " + err.Error()
		}
		fmt.Printf("%-8s %-62s %5.1f s  %s\n", m.Rule, m.Name, time.Since(start).Seconds(), verdict)
	}
	if survived > 0 {
		return fmt.Errorf("%d of %d mutations were not killed", survived, tried)
	}
	if tried > 0 {
		fmt.Printf("%d mutations, all killed\n", tried)
	}
	return nil
}

// mutate returns the path of each file that m changes, with its new content.
func (m *mutation) mutate(root string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, e := range m.Edits {
		path := filepath.Join(root, filepath.FromSlash(e.File))
		if files[path] == nil {
			b, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			files[path] = b
		}
		if n := strings.Count(string(files[path]), e.Old); n != 1 {
			return nil, fmt.Errorf("%s holds the place to change %d times, want once: %.60q; bring internal/testkit/crash/mutants up to date", e.File, n, e.Old)
		}
		files[path] = []byte(strings.Replace(string(files[path]), e.Old, e.New, 1))
	}
	return files, nil
}

// testLimit bounds one test run of a mutant, which may well hang.
const testLimit = 3 * time.Minute

// try runs the test of m on the changed code and returns what failed.
func (m *mutation) try(root, work string, histories int) (string, error) {
	files, err := m.mutate(root)
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for path, content := range files {
		changed := filepath.Join(work, strings.ReplaceAll(strings.TrimPrefix(path, root), string(filepath.Separator), "_"))
		if err := os.WriteFile(changed, content, 0o600); err != nil {
			return "", err
		}
		replace[path] = changed
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(work, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		return "", err
	}
	binary := filepath.Join(work, "mutant.test")
	ctx, cancel := context.WithTimeout(context.Background(), 2*testLimit)
	defer cancel()
	build := exec.CommandContext(ctx, "go", "test", "-overlay", file, "-vet=off", "-c", "-o", binary, m.Package)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("it does not build: %s", firstLine(string(out)))
	}
	test := exec.CommandContext(ctx, binary, "-test.run", "^"+m.Test+"$", "-test.short", "-test.timeout", testLimit.String())
	test.Dir = filepath.Join(root, m.Package)
	test.Env = append(os.Environ(), fmt.Sprintf("TIDEMARK_HISTORIES=%d", histories))
	out, err := test.CombinedOutput()
	if strings.Contains(string(out), "no tests to run") {
		return "", fmt.Errorf("%s has no test %s", m.Package, m.Test)
	}
	if err == nil {
		return "", fmt.Errorf("%s %s passes", m.Package, m.Test)
	}
	return fmt.Sprintf("%s %s: %s", m.Package, m.Test, reason(string(out))), nil
}

var place = regexp.MustCompile(`^\s*[a-z_0-9]+\.go:\d+: `)

// reason finds what a test said first.
func reason(out string) string {
	for line := range strings.Lines(out) {
		if at := place.FindString(line); at != "" || strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			return clip(strings.TrimSpace(strings.TrimPrefix(line, at)))
		}
	}
	return clip(firstLine(out))
}

func firstLine(s string) string {
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			return line
		}
	}
	return "no output"
}

func clip(s string) string {
	if len(s) > 110 {
		return s[:110] + "..."
	}
	return s
}
