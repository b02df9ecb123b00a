package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Proves that completion works in bash, with the package bash-completion and
// without it: commands, flags and the names of contexts.
func TestBashCompletion(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	xdg := t.TempDir()
	c := command{env: []string{"XDG_CONFIG_HOME=" + xdg}}
	c.must(t, "ctx", "add", "production", "--server", "http://x")
	script := writeFile(t, "completion", c.must(t, "completion", "bash"))
	for _, w := range []struct {
		line string
		want []string
	}{
		{"tidemark to", []string{"topic"}},
		{"tidemark topic cr", []string{"create"}},
		{"tidemark serve --log-", []string{"--log-format", "--log-level"}},
		{"tidemark ctx use p", []string{"production"}},
		{"tidemark topic ls --context p", []string{"production"}},
		{"tidemark completion z", []string{"zsh"}},
	} {
		cmd := exec.Command("bash", "--noprofile", "--norc", "-c", `
tidemark() { `+asProgram+`=1 "$EXE" "$@"; }
source "$SCRIPT"
complete -p tidemark >/dev/null || exit 1
COMP_LINE=$LINE COMP_POINT=${#LINE} COMP_TYPE=9
read -ra COMP_WORDS <<<"$LINE"
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
compopt() { :; }
__start_tidemark
printf '%s\n' "${COMPREPLY[@]}"`)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "EXE=" + exe, "SCRIPT=" + script, "LINE=" + w.line, "XDG_CONFIG_HOME=" + xdg, "HOME=" + xdg}
		out, err := cmd.CombinedOutput()
		var got []string
		for _, line := range linesOf(string(out)) {
			word, _, _ := strings.Cut(line, " ") // a description may follow
			got = append(got, word)
		}
		if slices.Sort(got); err != nil || !slices.Equal(got, w.want) {
			t.Errorf("%q: %q, %v; want %q", w.line, got, err, w.want)
		}
	}
}

// Proves that the scripts for zsh and fish are read by those shells and complete
// commands, flags and the names of contexts, where the shells are installed.
func TestOtherShells(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	xdg, bin := t.TempDir(), t.TempDir()
	c := command{env: []string{"XDG_CONFIG_HOME=" + xdg}}
	c.must(t, "ctx", "add", "production", "--server", "http://x")
	if err := os.WriteFile(bin+"/tidemark", []byte("#!/bin/sh\n"+asProgram+"=1 exec '"+exe+"' \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		line string
		want []string
	}{
		{"tidemark to", []string{"topic"}},
		{"tidemark topic cr", []string{"create"}},
		{"tidemark serve --log-", []string{"--log-format", "--log-level"}},
		{"tidemark ctx use p", []string{"production"}},
	}
	var typed []string
	for _, w := range cases {
		typed = append(typed, w.line)
	}
	for shell, program := range map[string][]string{
		// What the completion system of zsh would show is printed instead: there is
		// no line editor without a terminal.
		"zsh": {"-f", "-c", `autoload -Uz compinit && compinit -D -u
source "$SCRIPT"
[[ ${_comps[tidemark]} == _tidemark ]] || exit 1
_describe() { print -l -- "${completions[@]}" }
for line in "${(f)TYPED}"; do words=("${(s: :)line}") CURRENT=${#words}; _tidemark; print -- ---; done`},
		"fish": {"--no-config", "-c", `source $SCRIPT
for line in (string split \n -- $TYPED); complete -C "$line"; echo ---; end`},
	} {
		path, err := exec.LookPath(shell)
		if err != nil {
			t.Logf("%s is not installed", shell)
			continue
		}
		script := writeFile(t, "completion."+shell, c.must(t, "completion", shell))
		cmd := exec.Command(path, program...)
		cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "SCRIPT=" + script, "TYPED=" + strings.Join(typed, "\n"), "XDG_CONFIG_HOME=" + xdg, "HOME=" + xdg, "TERM=dumb"}
		out, err := cmd.CombinedOutput()
		answers := strings.Split(string(out), "---\n")
		if err != nil || len(answers) != len(cases)+1 {
			t.Errorf("%s: %v\n%s", shell, err, out)
			continue
		}
		for i, w := range cases {
			var got []string
			for _, line := range linesOf(answers[i]) {
				got = append(got, strings.FieldsFunc(line, func(r rune) bool { return r == ':' || r == '\t' })[0])
			}
			if slices.Sort(got); !slices.Equal(got, w.want) {
				t.Errorf("%s, %q: %q; want %q", shell, w.line, got, w.want)
			}
		}
	}
}
