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
