package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Proves that help is complete: every command has a sentence and an example
// that begins with its own name, and every flag says what it does.
func TestHelpIsComplete(t *testing.T) {
	commands := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		commands++
		if cmd.Short == "" {
			t.Errorf("%s has no description", cmd.CommandPath())
		}
		if !strings.Contains(cmd.Example, "tidemark") {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s: --%s says nothing", cmd.CommandPath(), f.Name)
			}
		})
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newRoot(&process{}))
	if commands < 20 {
		t.Fatalf("only %d commands", commands)
	}
	for _, args := range [][]string{{}, {"help"}, {"topic"}, {"bucket", "--help"}, {"help", "topic", "create"}, {"serve", "-h"}} {
		if out := (command{}).must(t, args...); !strings.Contains(out, "Usage:") {
			t.Errorf("%q prints no help: %s", args, out)
		}
	}
}

// printsNoData are the commands that print no data: a node's own lines, a page, a
// script, or one line that says what was done.
var printsNoData = []string{
	"tidemark serve", "tidemark healthcheck", "tidemark help", "tidemark config check", "tidemark config docs",
	"tidemark completion bash", "tidemark completion zsh", "tidemark completion fish", "tidemark completion powershell",
	"tidemark ctx add", "tidemark ctx use", "tidemark ctx rm", "tidemark topic rm",
}

// Proves that every command that prints data can print it as JSON.
func TestDataHasJSON(t *testing.T) {
	found := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		if cmd.HasSubCommands() || slices.Contains(printsNoData, cmd.CommandPath()) {
			return
		}
		if cmd.Flags().Lookup("json") == nil {
			t.Errorf("%s has no --json", cmd.CommandPath())
		}
		found++
	}
	walk(newRoot(&process{}))
	if found < 20 {
		t.Fatalf("only %d commands", found)
	}
	for _, args := range []string{"consume t --json --raw", "replay t --partition 0 --json --raw"} {
		wrong{args: args, code: exitUsage, says: []string{"--json", "--raw"}}.check(t, command{})
	}
}

// Proves that the examples in help are command lines that parse: each flag
// exists and the arguments are as many as the command wants.
func TestExamplesParse(t *testing.T) {
	checked := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, line := range strings.Split(cmd.Example, "\n") {
			words := commandWords(line)
			if words == nil {
				continue
			}
			root := newRoot(&process{})
			found, rest, err := root.Find(words)
			if err == nil {
				err = found.ParseFlags(rest)
			}
			if err == nil && found.Args != nil {
				err = found.Args(found, found.Flags().Args())
			}
			if err != nil || !found.Runnable() {
				t.Errorf("example of %s: %q: %v", cmd.CommandPath(), line, err)
			}
			checked++
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newRoot(&process{}))
	if checked < 25 {
		t.Fatalf("only %d examples", checked)
	}
}

// commandWords returns the arguments of the first tidemark in a line of shell.
func commandWords(line string) []string {
	_, rest, ok := strings.Cut(" "+line, " tidemark ")
	if !ok {
		return nil
	}
	var words []string
	for _, w := range strings.Fields(rest) {
		if w == "|" || w == "#" || w == ">" {
			break
		}
		words = append(words, strings.Trim(w, "')"))
	}
	return words
}

// Proves that shell completion is made for each shell, and that version says
// what was built.
func TestCompletionAndVersion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out := (command{}).must(t, "completion", shell); !strings.Contains(out, "tidemark") {
			t.Errorf("completion %s: %.100s", shell, out)
		}
	}
	if out := (command{}).must(t, "version"); !strings.HasPrefix(out, "tidemark "+version+" (go") {
		t.Errorf("version: %s", out)
	}
	if out := (command{}).must(t, "version", "--json"); !strings.Contains(out, `"version": "`+version+`"`) {
		t.Errorf("version --json: %s", out)
	}
}
