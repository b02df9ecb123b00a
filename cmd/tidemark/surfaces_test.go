package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	child "github.com/tidemark-mq/tidemark/internal/testkit/process"
)

// listenersOf asks the kernel on which addresses a process listens.
func listenersOf(t *testing.T, pid int) (addrs []string) {
	t.Helper()
	mine := map[string]bool{}
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil {
			if inode, ok := strings.CutPrefix(to, "socket:["); ok {
				mine[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	for _, file := range []string{"tcp", "tcp6", "udp", "udp6"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, file))
		if err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			words := strings.Fields(lines.Text())
			if len(words) < 10 || !mine[words[9]] || file[:3] == "tcp" && words[3] != "0A" {
				continue
			}
			host, port, _ := strings.Cut(words[1], ":")
			ip, err1 := hex.DecodeString(host)
			n, err2 := strconv.ParseUint(port, 16, 16)
			if err1 != nil || err2 != nil {
				t.Fatalf("line of /proc: %s", lines.Text())
			}
			for word := range slices.Chunk(ip, 4) {
				slices.Reverse(word)
			}
			addrs = append(addrs, net.JoinHostPort(net.IP(ip).String(), strconv.FormatUint(n, 10)))
		}
		f.Close()
	}
	slices.Sort(addrs)
	return addrs
}

// Proves that the table is the truth: what the kernel says a node listens on is
// what `surfaces` lists for its configuration, no more and no less, with all
// listeners and with the fewest.
func TestSurfacesAreWhatIsOpen(t *testing.T) {
	t.Parallel()
	for name, more := range map[string][]string{
		"fewest": nil,
		"all":    {"--metrics-addr", closedPort(t), "--pprof-addr", closedPort(t)},
	} {
		args := append([]string{
			"--dev", "--data-dir", t.TempDir() + "/data", "--archive", "none", "--disk-reserve", "1B", "--log-level", "error",
			"--http-addr", closedPort(t), "--raft-addr", closedPort(t),
		}, more...)
		var table []surface
		if err := json.Unmarshal([]byte((command{}).must(t, append([]string{"surfaces", "--json"}, args...)...)), &table); err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, f := range table {
			if f.Direction == "in" {
				want = append(want, f.Address)
			}
		}
		slices.Sort(want)
		p := startProcess(t, nil, append([]string{"serve"}, args...)...)
		readyLine(t, p)
		if got := listenersOf(t, p.PID()); !slices.Equal(got, want) || len(want) != 2+len(more)/2 {
			t.Errorf("%s: it listens on %v, the table has %v", name, got, want)
		}
		stopped(t, p)
	}
}

func stopped(t *testing.T, p *child.Process) {
	t.Helper()
	if !p.Stop(time.Minute) || p.ExitCode() != exitOK {
		t.Errorf("exit %d: %s", p.ExitCode(), p.Stderr())
	}
}

// Proves what the table says of archives, TLS and credentials.
func TestSurfacesOf(t *testing.T) {
	f := newTLSFiles(t, "x")
	c := command{env: []string{"TIDEMARK_ADMIN_PASSWORD=x"}}
	for _, w := range []struct {
		args string
		says []string
		not  string
	}{
		{"--archive s3://bucket/p?region=eu-west-1", []string{"bucket.s3.eu-west-1.amazonaws.com:443", "169.254.169.254", "user and password"}, "security is off"},
		{"--archive s3://bucket/p?endpoint=http://10.0.0.9:9000", []string{"10.0.0.9:9000"}, "amazonaws.com"},
		{"--archive file:///srv/archive", []string{"/srv/archive", "files"}, "169.254"},
		{"--archive none " + strings.Join(f.flags(), " "), []string{"https"}, "archive"},
	} {
		out := c.run(append([]string{"surfaces", "--data-dir", "/d"}, strings.Fields(w.args)...)...)
		for _, s := range w.says {
			if !strings.Contains(out.out, s) {
				t.Errorf("%s: no word of %q in %+v", w.args, s, out)
			}
		}
		if strings.Contains(out.out, w.not) {
			t.Errorf("%s: %s", w.args, out.out)
		}
	}
	if out := (command{}).must(t, "surfaces", "--dev", "--archive", "none"); !strings.Contains(out, "none: security is off") || !strings.Contains(out, "127.0.0.1:7942") {
		t.Errorf("--dev: %s", out)
	}
}
