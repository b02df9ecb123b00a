package sessions

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/testkit/realnode"
)

const (
	module   = "../../.."
	stepMax  = 2 * time.Minute
	buildMax = 10 * time.Minute

	// documented is where the documents think that the node is.
	documented = "127.0.0.1:7942"
)

var buildDir string

var build = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), buildMax)
	defer cancel()
	return realnode.Build(ctx, buildDir)
})

func TestMain(m *testing.M) { os.Exit(runAll(m)) }

func runAll(m *testing.M) int {
	var err error
	if buildDir, err = os.MkdirTemp("", "tidemark-sessions-"); err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(buildDir) }()
	return m.Run()
}

// place is a directory as the reader of a document has it, with a node.
type place struct {
	t    *testing.T
	dir  string
	node *realnode.Node // nil: it does not run
	env  []string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	for _, tool := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%s is missing, which the documents' examples use: install it (apt-get install %s)", tool, tool)
		}
	}
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	p := &place{t: t, dir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(p.dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(binary, filepath.Join(p.dir, "bin", "tidemark")); err != nil {
		t.Fatal(err)
	}
	// A terminal's progress bars are no output.
	if err := os.WriteFile(filepath.Join(p.dir, ".curlrc"), []byte("silent\nshow-error\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.env = []string{"CURL_HOME=" + p.dir}
	t.Cleanup(p.kill)
	return p
}

// serve starts the node where `make run` puts its data, unless it runs.
func (p *place) serve() {
	p.t.Helper()
	if p.node != nil {
		return
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), stepMax)
	defer cancel()
	n, err := realnode.Start(ctx, realnode.Options{
		Binary: filepath.Join(p.dir, "bin", "tidemark"), DataDir: filepath.Join(p.dir, "tidemark-data"),
		Archive: "file://" + filepath.Join(p.dir, "tidemark-archive"), Flags: []string{"--disk-reserve", "1MiB"},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	p.node = n
}

func (p *place) kill() {
	if p.node != nil {
		p.node.Kill()
		p.node = nil
	}
}

// command is bash with one command line, in a process group of its own.
func (p *place) command(ctx context.Context, line string) *exec.Cmd {
	if p.node != nil {
		line = strings.ReplaceAll(line, documented, strings.TrimPrefix(p.node.Base, "http://"))
	}
	cmd := exec.CommandContext(ctx, "bash", "-c", line)
	cmd.Dir = p.dir
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "TIDEMARK_") })
	cmd.Env = append(cmd.Env, p.env...)
	if p.node != nil {
		cmd.Env = append(cmd.Env, "TIDEMARK_SERVER="+p.node.Base)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// run runs a command line to its end, which must be a success, and returns what
// a terminal would show.
func (p *place) run(line string) string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), stepMax)
	defer cancel()
	out, err := p.command(ctx, line).CombinedOutput()
	if err != nil {
		p.t.Fatalf("$ %s\n%s%v", line, out, err)
	}
	return string(out)
}

// firstLine runs a command that does not end by itself and returns its first
// line of output.
func (p *place) firstLine(line string) string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), stepMax)
	defer cancel()
	cmd := p.command(ctx, line)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	got, err := bufio.NewReader(stdout).ReadString('\n')
	cancel()
	_ = cmd.Wait() // it was killed
	if err != nil {
		p.t.Fatalf("$ %s\nno line: %v", line, err)
	}
	return got
}

// shown is a command of a document with the output below it.
type shown struct {
	line, output string
}

// session reads the commands of a document: in fenced blocks, behind "$ ".
func session(t *testing.T, file string) (list []shown) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(module, file))
	if err != nil {
		t.Fatal(err)
	}
	fenced := false
	for line := range strings.Lines(string(text)) {
		command, is := strings.CutPrefix(line, "$ ")
		switch {
		case strings.HasPrefix(line, "```"):
			if fenced = !fenced; fenced {
				list = append(list, shown{}) // what stands before a block's first command is no output
			}
		case fenced && is:
			list = append(list, shown{line: strings.TrimSpace(command)})
		case fenced:
			list[len(list)-1].output += line
		}
	}
	return slices.DeleteFunc(list, func(s shown) bool { return s.line == "" })
}

// variable is what differs from run to run, and what stands for it.
var variable = []struct {
	what *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`"receipt_handle":"[^"]*"`), `"receipt_handle":"H"`},
	{regexp.MustCompile(`"timestamp":\d+`), `"timestamp":S`},
	{regexp.MustCompile(`"timestamp_ms":\d+`), `"timestamp_ms":MS`},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`), "TIME"},
	{regexp.MustCompile(`\b[0-9a-f]{16}\b`), "ID"},
	{regexp.MustCompile(`\d+\.\d+ s, [\d.]+k?/s`), "T s, R/s"},
	{regexp.MustCompile(`took +[\d.]+m?s`), "took T"},
	{regexp.MustCompile(`[\d.]+ ([KM]i)?B\b`), "SIZE"},
	{regexp.MustCompile(`\d+ objects?`), "N objects"},
	{regexp.MustCompile(`about \d+ records?, if`), "about N records, if"},
	{regexp.MustCompile(`(file://)?/[^\s"]*/(tidemark-(data|archive))`), "DIR/$2"},
	{regexp.MustCompile(`[ \t]+`), " "},
}

func fixed(text string) string {
	for _, v := range variable {
		text = v.what.ReplaceAllString(text, v.by)
	}
	return strings.TrimSpace(text)
}

// same says whether output is what a document shows. Which partition a consume
// begins with is nobody's promise, so of its records the form counts.
func same(s shown, got string) bool {
	want, have := strings.Split(fixed(s.output), "\n"), strings.Split(fixed(got), "\n")
	if !strings.Contains(s.line, "tidemark consume") {
		return slices.Equal(want, have)
	}
	return slices.EqualFunc(want, have, func(a, b string) bool { return a == b || form(a) == form(b) && form(a) != "" })
}

// form is the names of a JSON object, "" for what is none.
func form(line string) string {
	line = strings.NewReplacer(":S,", ":0,", ":MS,", ":0,").Replace(line)
	var object map[string]json.RawMessage
	if json.Unmarshal([]byte(line), &object) != nil {
		return ""
	}
	var names []string
	for name := range object {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

// play runs a session. The node runs while commands talk to it, and is killed,
// as the text says, where its directory is deleted.
func play(t *testing.T, file string, least int) {
	t.Helper()
	list := session(t, file)
	if len(list) < least {
		t.Fatalf("%s shows %d commands, not %d", file, len(list), least)
	}
	p := newPlace(t)
	for _, s := range list {
		switch {
		case strings.Contains(s.line, "rm -rf tidemark-data"):
			p.kill()
		case strings.Contains(s.line, "tidemark restore"):
		case strings.Contains(s.line, "tidemark ") || strings.Contains(s.line, "curl "):
			p.serve()
		}
		if got := p.run(s.line); !same(s, got) {
			t.Errorf("%s shows\n$ %s\n%s\nand it is\n%s", file, s.line, fixed(s.output), fixed(got))
		}
	}
}

// README's five minutes are what a new user sees.
func TestReadme(t *testing.T) { play(t, "README.md", 8) }

// The tour is what who takes it sees.
func TestTour(t *testing.T) { play(t, "docs/tour.md", 9) }

// What is compared is told apart: a session with another output, or with a
// record that has other fields, is noticed.
func TestDifferencesAreNoticed(t *testing.T) {
	replay, consume := shown{line: "bin/tidemark replay t", output: `{"offset":0,"payload":1}`}, shown{line: "bin/tidemark consume t", output: `{"offset":0,"timestamp":12,"payload":1}`}
	for _, c := range []struct {
		s    shown
		got  string
		want bool
	}{
		{replay, "{\"offset\":0,\"payload\":1}\n", true}, {replay, `{"offset":1,"payload":1}`, false}, {replay, "", false},
		{consume, `{"offset":7,"timestamp":99,"payload":3}`, true}, {consume, `{"offset":7,"timestamp":99}`, false}, {consume, "error", false},
		{shown{line: "x", output: "restored in 3 lines"}, "restored in 4 lines", false},
	} {
		if got := same(c.s, c.got); got != c.want {
			t.Errorf("%q and %q: %v", c.s.output, c.got, got)
		}
	}
}

// lines are those of a text that are not empty.
func lines(text string) (list []string) {
	for line := range bytes.Lines([]byte(text)) {
		if s := strings.TrimSpace(string(line)); s != "" {
			list = append(list, s)
		}
	}
	return list
}
