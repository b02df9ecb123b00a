package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// newRoot builds the tree of commands.
func newRoot(p *process) *cobra.Command {
	root := &cobra.Command{
		Use:   "tidemark",
		Short: "A message broker whose history lives in an object store",
		Long: `Tidemark is a message broker: topics are queues with leases and replayable logs at
once. New records live on the node, older ones in an object store, and a node
can be restored from that store alone.

Commands that talk to a node find it with --server (or TIDEMARK_SERVER), or in the
current context (tidemark ctx).
Exit codes: 0 done, 1 failed, 2 wrong usage.`,
		Example: `  tidemark serve --dev                                    # a node on 127.0.0.1:7942
  tidemark topic create orders --partitions 6
  echo '{"n":1}' | tidemark produce orders
  tidemark consume orders`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE:          helpOrUnknown,
	}
	c := &p.node
	c.p = p
	root.AddCommand(
		newServe(p), newTopic(p, c), newProduce(p, c), newConsume(p, c), newReplay(p, c),
		newRestore(p), newArchive(p, c), newBucket(p), newWAL(p), newSegment(p), newHealthcheck(p, c), newBench(p, c),
		newCtx(p), newConfig(p), newSurfaces(p), newCompletion(p, root), newVersion(p),
	)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w; see `%s --help`", err, cmd.CommandPath())
	})
	root.SetIn(p.stdin)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	// It exists only once cobra has added it.
	root.InitDefaultHelpCmd()
	finish(root)
	return root
}

// finish gives the command that cobra made the same manners as ours.
func finish(cmd *cobra.Command) {
	cmd.DisableAutoGenTag = true
	if cmd.Name() == "help" {
		cmd.Example = "  tidemark help topic create"
	}
	if cmd.Args != nil {
		cmd.Args = usageArgs(cmd.Args)
	}
	for _, sub := range cmd.Commands() {
		finish(sub)
	}
}

// usageArgs makes what a check of arguments says a usage error.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		var usage usageError
		if err == nil || errors.As(err, &usage) {
			return err
		}
		return usagef("%w; see `%s --help`", err, cmd.CommandPath())
	}
}

// args checks positional arguments by their names.
func args(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		command := strings.TrimPrefix(cmd.CommandPath(), "tidemark ")
		if len(given) > len(names) {
			return usagef("%s: unexpected argument %q; see `%s --help`", command, given[len(names)], cmd.CommandPath())
		}
		for i, name := range names {
			if i >= len(given) {
				return usagef("%s: %s is missing; see `%s --help`", command, name, cmd.CommandPath())
			}
			if given[i] == "" {
				return usagef("%s: %s is empty", command, name)
			}
		}
		return nil
	}
}

// family is a command that only holds others.
func family(use, short, example string, subs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Example: example}
	cmd.AddCommand(subs...)
	cmd.Args, cmd.RunE = cobra.ArbitraryArgs, helpOrUnknown
	return cmd
}

// helpOrUnknown runs a command that only holds others.
func helpOrUnknown(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	like := ""
	cmd.SuggestionsMinimumDistance = 2
	if names := cmd.SuggestionsFor(args[0]); len(names) > 0 {
		like = fmt.Sprintf(" (%s?)", names[0])
	}
	return usagef("unknown command %q%s; see `%s --help`", args[0], like, cmd.CommandPath())
}

// printJSON writes v as indented JSON.
func (p *process) printJSON(v any) error {
	enc := json.NewEncoder(p.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
